package core

import (
	"time"

	"github.com/hermes-framework/hermes/core/cell"
)

// Request is one cell to run.
type Request struct {
	Environment string            // a target URL or a name from Config.Environments; empty: local:
	Session     string            // named session, whose kernel outlives this engine; empty: a kernel of this engine
	Owner       string            // whose kernel, among those without a session; kernels are never shared between owners
	Language    cell.Language     // empty: Python
	Code        string            // UTF-8, at most MaxCode bytes
	Env         map[string]string // added to the kernel's environment when it is started
	Dir         string            // working directory of a new kernel; empty: the environment's (for local:, the engine's own)
	Interpreter string            // empty: Config.Interpreter
	Timeout     time.Duration     // from the moment the cell starts; 0: none
	ID          string            // the cell's id; empty: a fresh one. The same ID again is the same cell
	Reset       bool              // start from a fresh kernel
}

// MaxCode is the largest cell, in bytes.
const MaxCode = 8 << 20
