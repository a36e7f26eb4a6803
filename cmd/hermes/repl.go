package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
)

func (a *app) replCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "repl [flags]",
		Short: "Run cells as you type them",
		Long: `Read cells from the terminal, or from stdin, and run them in one kernel. A blank line ends an indented block. Ctrl-C interrupts the
cell that runs, or clears the line; Ctrl-D leaves. With -s the session is there for the next time.`,
		Example: "  hermes repl\n  hermes repl -s work -l bash",
		Args:    args(0, 0, "argument"),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.repl(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.environment, "environment", "E", "", "target URL, or a name from the configuration (default local:)")
	flags.StringVarP(&f.session, "session", "s", "", "session whose kernel outlives this command")
	flags.StringVarP(&f.language, "language", "l", "", "python or bash (default python)")
	completeValues(cmd, "language", string(cell.Python), string(cell.Bash))

	return cmd
}

func (a *app) repl(cmd *cobra.Command, f runFlags) error {
	s, err := a.settings()
	if err != nil {
		return err
	}
	req, err := a.request(cmd, f, s)
	if err != nil {
		return err
	}
	s.kernelIdleTimeout = -1 // somebody sits in front of it

	r := newRepl(cmd.Context(), a, req)
	defer r.close()

	err = a.engineFor(r.ctx, s, r.forced, r.loop)
	if errors.Is(err, errForced) {
		return exit(statusInterrupted)
	}

	return err
}

// repl is a conversation with one kernel. Its loop runs in one goroutine; signals come in another.
type repl struct {
	app         *app
	ctx         context.Context
	quit        context.CancelCauseFunc
	req         core.Request
	lines       lineReader
	interactive bool
	out         *textPrinter
	forced      chan struct{}
	stop        func()

	mu        sync.Mutex
	interrupt context.CancelCauseFunc // of the cell that runs
	pressed   int                     // Ctrl-C during this cell
	left      bool
}

func newRepl(ctx context.Context, a *app, req core.Request) *repl {
	r := &repl{app: a, req: req, out: &textPrinter{app: a}, forced: make(chan struct{})}
	r.ctx, r.quit = context.WithCancelCause(ctx)
	r.lines, r.interactive = a.newLineReader(openHistory(historyFile(a.paths().state, req.Language)))
	r.stop = onSignals(func(_ int, s os.Signal) { r.signal(asSyscall(s)) })

	return r
}

// historyFile is where a language's history is kept; empty when there is no place for it.
func historyFile(state string, language cell.Language) string {
	if state == "" || os.MkdirAll(state, 0o700) != nil {
		return ""
	}

	return filepath.Join(state, "history-"+string(language))
}

func (r *repl) close() {
	r.stop()
	r.quit(nil)
	r.lines.close()
}

// signal interrupts the cell that runs. Ctrl-C three times during one cell, or once while a program and no person is asked for a
// line, ends the repl, as TERM and HUP do at any time.
func (r *repl) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	cause := &interruptError{signal: s}
	if r.interrupt != nil {
		r.pressed++
		r.interrupt(cause)
	}
	switch {
	case s != syscall.SIGINT && r.interrupt != nil && r.pressed == 1:
		r.quit(cause) // the loop ends when the cell has
	case s != syscall.SIGINT, r.interrupt == nil && !r.interactive, r.pressed >= 3:
		r.quit(cause)
		if !r.left {
			r.left = true
			close(r.forced)
		}
	}
}

// loop reads and runs cells until the input ends, a cell exits, or the repl is told to stop.
func (r *repl) loop(ctx context.Context, engine *core.Engine) error {
	if r.interactive {
		r.app.warnf("%s in %s; Ctrl-D leaves", r.req.Language, r.req.Environment)
	}
	var text string
	for stopCause(ctx) == nil {
		line, err := r.lines.read(r.prompt(text != ""))
		switch {
		case errors.Is(err, errCleared):
			text = ""
			continue
		case errors.Is(err, io.EOF):
			return r.finish(ctx, engine, text)
		case err != nil:
			return err
		}
		if text, err = r.take(ctx, engine, text, line); err != nil {
			return err
		}
	}

	return stopCause(ctx)
}

func (r *repl) prompt(more bool) string {
	switch {
	case r.req.Language == cell.Bash && more:
		return "> "
	case r.req.Language == cell.Bash:
		return "$ "
	case more:
		return "... "
	}

	return ">>> "
}

// take adds a line to text, runs what became a cell, and returns what is left.
func (r *repl) take(ctx context.Context, engine *core.Engine, text, line string) (string, error) {
	if text != "" && inputState(r.req.Language, text) == inputBlock && !continuesBlock(text, line) {
		if err := r.run(ctx, engine, text); err != nil {
			return "", err
		}
		text = ""
	}
	if text != "" {
		line = text + "\n" + line
	}
	if inputState(r.req.Language, line) != inputComplete {
		return line, nil
	}

	return "", r.run(ctx, engine, line)
}

// finish runs what stood before the end of the input. Only a person who pressed Ctrl-D in the middle of a block did not mean it.
func (r *repl) finish(ctx context.Context, engine *core.Engine, text string) error {
	if r.interactive {
		return r.app.printf("\n")
	}

	return r.run(ctx, engine, text)
}

// run runs one cell. Its error ends the repl.
func (r *repl) run(ctx context.Context, engine *core.Engine, code string) error {
	if strings.TrimSpace(code) == "" {
		return nil
	}
	cellCtx, cancel := context.WithCancelCause(ctx)
	r.running(cancel)
	defer r.running(nil)
	defer cancel(nil)

	req := r.req
	req.Code = code
	res, err := r.app.runIn(cellCtx, engine, req, r.out, func(string) {})
	if r.interactive {
		_ = r.out.out.newLine(r.app.stdout) // the prompt wants a line of its own
	}
	switch status := (*exitError)(nil); {
	case res.Cell.Outcome == cell.OutcomeExit:
		return &exitError{status: cellStatus(res.Cell, req.Language)} // also when that is 0
	case err == nil, errors.As(err, &status) && status.status != statusFailed:
		return nil
	case ctx.Err() == nil && r.interactive:
		r.app.warnf("%s", sentence(failureOf(err)))
		return nil
	}

	return err
}

func (r *repl) running(cancel context.CancelCauseFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.interrupt, r.pressed = cancel, 0
}
