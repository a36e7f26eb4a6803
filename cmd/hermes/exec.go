package main

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// execFlags are the flags of `hermes exec`.
type execFlags struct {
	environment string
	vars        []string
	dir         string
	timeout     durationFlag
	stdin       bool
	tty         bool
}

func (a *app) execCommand() *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] -- CMD [ARG...]",
		Short: "Run one command",
		Long: `Run one command, exactly as given (no shell), outside any kernel. Its exit status is that of hermes exec; 126 and 127 say
that it could not be executed or was not found, 128+n that signal n ended it.`,
		Example: `  hermes exec -- ls -l
  tar c dir | hermes exec -i -- tar x -C /tmp
  hermes exec -i -t -- bash`,
		Args: args(1, -1, "command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.exec(cmd.Context(), f, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags behind CMD are CMD's
	flags.StringVarP(&f.environment, "environment", "E", "", "target URL, or a name from the configuration (default local:)")
	flags.StringArrayVarP(&f.vars, "env", "e", nil, "set NAME=VALUE; NAME alone takes its value from here")
	flags.StringVarP(&f.dir, "workdir", "w", "", "working directory (default, on this machine: the current one)")
	flags.Var(&f.timeout, "timeout", "stop the command after so long (default: no limit)")
	flags.BoolVarP(&f.stdin, "stdin", "i", false, "pass stdin on")
	flags.BoolVarP(&f.tty, "tty", "t", false, "run the command on a terminal")

	return cmd
}

func (a *app) exec(ctx context.Context, f execFlags, argv []string) error {
	s, err := a.settings()
	if err != nil {
		return err
	}
	req := core.ExecRequest{Argv: argv, Stdout: a.stdout, Stderr: a.stderr}
	if req.Environment, err = s.environmentFor(f.environment); err != nil {
		return err
	}
	if req.Dir, err = s.dir(req.Environment, f.dir); err != nil {
		return err
	}
	if req.Env, err = variables(nil, f.vars, os.LookupEnv); err != nil {
		return err
	}
	if f.timeout.text != "" {
		if req.Timeout, err = parseDuration(f.timeout.text); err != nil {
			return err
		}
	}
	if f.stdin {
		req.Stdin = a.stdin
	}

	return a.execIn(ctx, s, req, f.tty)
}

func (a *app) execIn(ctx context.Context, s *settings, req core.ExecRequest, tty bool) error {
	c := newController(ctx)
	defer c.close()
	req.Control = c.control
	out := &watchedWriter{w: req.Stdout, failed: c.cancel}
	req.Stdout = out

	return a.engineFor(c.ctx, s, c.forced, func(ctx context.Context, engine *core.Engine) error {
		// The environment is opened first, so that what is not found in it is told from an environment that is not found.
		if _, err := engine.Environment(ctx, req.Environment); err != nil {
			return stoppedOr(ctx, err)
		}
		if tty {
			a.terminal(&req, c)
		}
		c.started()
		st, err := engine.Exec(ctx, req)
		if err != nil {
			return a.execFailure(ctx, out, err)
		}
		if err := stoppedOr(ctx, nil); err != nil { // killed by the second signal, and its end was faster than our cancelling
			return err
		}
		return exit(commandStatus(st))
	})
}

// execFailure tells a reader that went away, an interrupt and a command that could not be run apart.
func (a *app) execFailure(ctx context.Context, out *watchedWriter, err error) error {
	if failed := out.err(); failed != nil {
		if brokenPipe(failed) {
			return exit(statusInterrupted)
		}
		return failed
	}
	err = stoppedOr(ctx, err)
	a.warnf("%s", sentence(failureOf(err)))

	return exit(commandFailure(err))
}

// stoppedOr is the signal that cancelled ctx, else err.
func stoppedOr(ctx context.Context, err error) error {
	if stopped := (*interruptError)(nil); errors.As(context.Cause(ctx), &stopped) {
		return stopped
	}

	return err
}

// controller passes signals on to a command: the first as it came, the second as KILL; a third one ends this program. While the
// environment is still being opened the first one gives up and the second ends the program.
type controller struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	control chan sdk.Control
	forced  chan struct{}
	stop    func()

	mu      sync.Mutex
	running bool
	count   int
	undo    func() // of terminal
}

func newController(ctx context.Context) *controller {
	c := &controller{control: make(chan sdk.Control, 16), forced: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.stop = onSignals(func(_ int, s os.Signal) { c.signal(s) })

	return c
}

// close gives signals and the terminal back, also when the command has not ended.
func (c *controller) close() {
	c.stop()
	c.cancel(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.undo != nil {
		c.undo()
	}
}

func (c *controller) onClose(undo func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.undo = undo
}

// started says that signals are the command's from now on.
func (c *controller) started() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = true
}

func (c *controller) signal(s os.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	step := c.count
	if !c.running {
		step++ // nothing can be signalled yet
	}
	switch {
	case step == 1:
		c.send(sdk.Control{Signal: shortName(s)})
	case step == 2 && c.running:
		c.send(sdk.Control{Signal: "KILL"})
		c.cancel(&interruptError{signal: asSyscall(s)})
	case step == 2:
		c.cancel(&interruptError{signal: asSyscall(s)})
	case step == 3:
		close(c.forced)
	}
}

// send never blocks: what a command does not take in time is dropped.
func (c *controller) send(msg sdk.Control) {
	select {
	case c.control <- msg:
	default:
	}
}

// watchedWriter remembers that a write failed, and calls failed once.
type watchedWriter struct {
	w      io.Writer
	failed context.CancelCauseFunc

	mu    sync.Mutex
	first error
}

func (w *watchedWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.first == nil {
			w.first = &outputError{err: err}
			w.failed(w.first)
		}
	}

	return n, err
}

func (w *watchedWriter) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.first
}
