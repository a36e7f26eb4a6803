// Package core is what a program that embeds Hermes imports: an Engine runs cells of code in persistent kernels.
package core

import (
	"io"
	"log/slog"
	"time"

	"github.com/hermes-framework/hermes/plugin"
)

// Version is the version of this module.
const Version = "0.1.0"

// Config says how an Engine works. The zero value of every field has a meaning; core itself reads no environment variable.
type Config struct {
	// PluginDirs are searched in order for backend binaries, hermes-backend-NAME. Nothing in them is executed to find out.
	PluginDirs []string
	// LockFile is the plugins.lock with the hashes of the binaries that may be run. Empty: only built-in backends run.
	LockFile string
	// Builtin are backends that need no binary of their own and no lock: the program re-executes itself.
	Builtin []Builtin
	// StateDir holds the records of named sessions (made 0700). Empty: Request.Session is an error.
	StateDir string
	// RuntimeDir holds plugin sockets and copies (made 0700). Empty: a new directory under os.TempDir.
	RuntimeDir string
	// Environments gives names to targets.
	Environments map[string]EnvironmentConfig
	// Interpreter is the Python that runs kernel hosts, a name on the environment's PATH or a path. Empty: python3.
	Interpreter string
	// MaxSessionKernels bounds the kernels of this engine for each environment; the least recently used idle one ends first. 0: 4; negative: no bound.
	// Kernels of named sessions are not this engine's and are not counted.
	MaxSessionKernels int
	// KernelIdleTimeout ends a kernel that ran nothing for so long. 0: 30 minutes; negative: never. A named session's kernel host has the timeout
	// of the engine that started it; there negative means 30 minutes, too.
	KernelIdleTimeout time.Duration
	// ThroughPlugin sends every byte of a cell through the backend plugin, also where the plugin names an address to dial directly.
	ThroughPlugin bool
	// SpillDir keeps output too large for a Result, one 0600 file for each stream. Empty: RuntimeDir, and the files go with the engine.
	SpillDir string
	// Logger gets the engine's and the plugins' records. Nil: none.
	Logger *slog.Logger
}

// Builtin is a backend that lives in the embedding program itself, which is started once more to serve it, see plugin.ServeBuiltin.
type Builtin struct {
	Name string
	Path string   // the program; empty: the running one
	Args []string // nil: plugin.BuiltinArgs(Name)
	Env  []string // "K=V" entries, added to the allow-listed environment of every plugin
}

// EnvironmentConfig is a target and its backend's configuration.
type EnvironmentConfig struct {
	Target string         `json:"target"`
	Config map[string]any `json:"config,omitempty"`
}

// Language is a language of cells.
type Language string

// The languages.
const (
	Python Language = "python"
	Bash   Language = "bash"
)

// Outcome says how a cell ended.
type Outcome string

// The outcomes. OutcomeLost: it started, its end was not recorded, its effects may be partial or complete; said only after its process tree is gone.
// OutcomeUnknown: it may or may not have run, and nothing left can tell. OutcomeRefused: it certainly did not run.
const (
	OutcomeOK          Outcome = "ok"
	OutcomeError       Outcome = "error"
	OutcomeExit        Outcome = "exit"
	OutcomeTimeout     Outcome = "timeout"
	OutcomeInterrupted Outcome = "interrupted"
	OutcomeLost        Outcome = "lost"
	OutcomeUnknown     Outcome = "unknown"
	OutcomeRefused     Outcome = "refused"
)

// Request is one cell to run.
type Request struct {
	Environment string            // a target URL or a name from Config.Environments; empty: local:
	Session     string            // named session, whose kernel outlives this engine; empty: a kernel of this engine
	Owner       string            // whose kernel, among those without a session; kernels are never shared between owners
	Language    Language          // empty: Python
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

// Result is a finished cell and the kernel that ran it. Its JSON form is the one that `hermes run --json` prints.
type Result struct {
	Cell   Cell   `json:"cell"`
	Kernel Kernel `json:"kernel"`
}

// Cell is what became of one cell. Stdout and Stderr hold at most 50 kB, head and tail; Spill names the file with more.
type Cell struct {
	ID            string     `json:"id"`
	Outcome       Outcome    `json:"outcome"`
	Reason        string     `json:"reason,omitempty"` // why it was refused or lost, in a word or a sentence
	Stdout        string     `json:"stdout"`
	Stderr        string     `json:"stderr"`
	Value         *string    `json:"value"`
	Error         *CellError `json:"error"`
	ExitCode      *int       `json:"exit_code"`
	Signal        string     `json:"signal"`
	DurationMS    float64    `json:"duration_ms"`
	StdoutBytes   int64      `json:"stdout_bytes"`
	StdoutOmitted int64      `json:"stdout_omitted"`
	StderrBytes   int64      `json:"stderr_bytes"`
	StderrOmitted int64      `json:"stderr_omitted"`
	Spill         *Spill     `json:"spill"`
	ToolCalls     int        `json:"tool_calls"`
}

// Spill names the owner-only files that hold a cell's output, up to 64 MiB of each stream.
type Spill struct {
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
}

// CellError is an exception (or, for a shell cell, a status) that ended a cell.
type CellError struct {
	Type      string `json:"type"`
	Message   string `json:"message"`
	Traceback string `json:"traceback"`
}

// Kernel is the kernel that ran a cell, as of that cell.
type Kernel struct {
	ID              string   `json:"id"`
	Session         string   `json:"session"`
	Environment     string   `json:"environment"`
	Host            string   `json:"host"`
	Language        Language `json:"language"`
	Incarnation     string   `json:"incarnation"`
	Reused          bool     `json:"reused"`
	StateLost       bool     `json:"state_lost"`
	StateLostReason string   `json:"state_lost_reason"`
	StateReset      bool     `json:"state_reset"`
	Cells           int      `json:"cells"`
	Fallback        bool     `json:"fallback"`
}

// EventKind says what an Event tells.
type EventKind string

// The kinds of event.
const (
	EventAccepted EventKind = "accepted" // the cell has its id and place in the kernel's queue
	EventStarted  EventKind = "started"  // its code was handed to the kernel
	EventOutput   EventKind = "output"   // Data from Stream, Offset bytes into it
	EventGap      EventKind = "gap"      // bytes Offset to Offset+Omitted of Stream were not delivered live
	EventNote     EventKind = "note"     // Text for a person
	EventEnd      EventKind = "end"      // the Result is complete
)

// Event is something that happened to a cell while it ran.
type Event struct {
	Kind    EventKind `json:"event"`
	Cell    string    `json:"cell"`
	Stream  string    `json:"stream,omitempty"` // "stdout" or "stderr"
	Offset  int64     `json:"offset,omitempty"`
	Data    []byte    `json:"-"`              // as it came, valid until emit returns; the JSON form is Text, with U+FFFD for what is not UTF-8
	Text    string    `json:"text,omitempty"` // whole characters only: a character cut between two events is in the later one
	Omitted int64     `json:"omitted,omitempty"`
	Result  *Result   `json:"result,omitempty"`
}

// KernelStatus is a live kernel, as `hermes kernels ls --json` prints it.
type KernelStatus struct {
	ID          string    `json:"id"`
	Session     string    `json:"session"`
	Environment string    `json:"environment"`
	Language    Language  `json:"language"`
	State       string    `json:"state"` // idle, busy, starting
	Cells       int       `json:"cells"`
	PID         int       `json:"pid"`
	Started     time.Time `json:"started"`
	LastUsed    time.Time `json:"last_used"`
}

// ExecRequest is one command to run, outside any kernel.
type ExecRequest struct {
	Environment string
	Argv        []string // exact; no shell
	Env         map[string]string
	Dir         string         // empty: the environment's (for local:, the engine's own)
	Timeout     time.Duration  // 0: none
	TTY         *plugin.Window // non-nil asks for a terminal
	Stdin       io.Reader      // nil: end-of-file at once
	Stdout      io.Writer      // nil: discarded
	Stderr      io.Writer      // nil: discarded
	Control     <-chan plugin.Control
}

// ExitStatus is how a command ended.
type ExitStatus = plugin.ExitStatus

// PluginStatus is a backend that the engine knows of.
type PluginStatus struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	Builtin bool   `json:"builtin"`
	Trusted bool   `json:"trusted"`
	SHA256  string `json:"sha256,omitempty"`
	Problem string `json:"problem,omitempty"` // why it cannot be used, in a sentence
	State   string `json:"state"`             // stopped, running, backoff, quarantined
}

// EnvironmentStatus is a named environment of the configuration.
type EnvironmentStatus struct {
	Name   string `json:"name"`
	Target string `json:"target"`
	Open   bool   `json:"open"`
}

// Check is one line of what CheckEnvironment found.
type Check struct {
	Name   string `json:"name"` // connection, exec, python, directory, kernel, limits, latency, …
	OK     bool   `json:"ok"`
	Warn   bool   `json:"warn,omitempty"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
}
