package core

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// ExecRequest is one command to run, outside any kernel.
type ExecRequest struct {
	Environment string
	Argv        []string // exact; no shell
	Env         map[string]string
	Dir         string        // empty: the environment's (for local:, the engine's own)
	Timeout     time.Duration // 0: none
	TTY         *sdk.Window   // non-nil asks for a terminal
	Stdin       io.Reader     // nil: end-of-file at once
	Stdout      io.Writer     // nil: discarded
	Stderr      io.Writer     // nil: discarded
	Control     <-chan sdk.Control
}

// ExitStatus is how a command ended.
type ExitStatus = sdk.ExitStatus

// Exec runs one command, outside any kernel, and returns how it ended. A non-zero exit is a status, not an error. Cancelling ctx, or the
// request's timeout, ends the whole process tree: TERM, sdk.Grace, KILL; the error is then ctx's cause, or wraps ErrTimeout.
func (e *Engine) Exec(ctx context.Context, req ExecRequest) (ExitStatus, error) {
	if len(req.Argv) == 0 {
		return ExitStatus{}, invalid("", "exec: no command")
	}
	env, err := e.environment(ctx, req.Environment)
	if err != nil {
		return ExitStatus{}, err
	}
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, req.Timeout, cell.ErrTimeout)
		defer cancel()
	}
	var vars []string
	for _, k := range slices.Sorted(maps.Keys(req.Env)) {
		vars = append(vars, k+"="+req.Env[k])
	}
	cmd := sdk.Command{Argv: req.Argv, Env: vars, InheritEnv: true, Dir: env.dir(req.Dir), TTY: req.TTY}
	status, err := env.place.Env.Exec(ctx, cmd, sdk.IO{Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr, Control: req.Control})
	switch {
	case err == nil:
		return status, nil
	case errors.Is(context.Cause(ctx), cell.ErrTimeout):
		return status, &sdk.Error{
			Code: sdk.CodeTimeout, Delivery: sdk.AsError(err, sdk.Ran).Delivery, Cause: cell.ErrTimeout,
			Message: fmt.Sprintf("environment %s: exec %s: its time limit of %s passed; it was ended", label(env.name), req.Argv[0], req.Timeout),
		}
	}
	return status, fmt.Errorf("environment %s: exec %s: %w", label(env.name), req.Argv[0], err)
}
