package main

import (
	"context"
	"errors"
	"os"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
)

// runFlags are the flags of `hermes run`.
type runFlags struct {
	environment string
	session     string
	language    string
	vars        []string
	envFiles    []string
	dir         string
	timeout     durationFlag
	id          string
	reset       bool
	code        string
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [-c CODE | FILE | -]",
		Short: "Run a cell",
		Long: `Run one cell of Python or shell and print what it prints, then the value of its last expression.

The kernel ends with the command, unless -s names a session: then variables, imports and working directory are there for the
next cell of that session. The language is python unless -l says otherwise, whatever the file is called.`,
		Example: `  hermes run -c 'print(6*7)'
  hermes run -s work -l bash -c 'cd /tmp; x=1'
  hermes run --timeout 30s --json script.py
  echo '1+1' | hermes run -`,
		Args: args(0, 1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.run(cmd, f, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.environment, "environment", "E", "", "target URL, or a name from the configuration (default local:)")
	flags.StringVarP(&f.session, "session", "s", "", "session whose kernel outlives this command")
	flags.StringVarP(&f.language, "language", "l", "", "python or bash (default python)")
	flags.StringArrayVarP(&f.vars, "env", "e", nil, "set NAME=VALUE in a new kernel; NAME alone takes its value from here")
	flags.StringArrayVar(&f.envFiles, "env-file", nil, "read such variables from a file")
	flags.StringVarP(&f.dir, "workdir", "w", "", "working directory of a new kernel (default, on this machine: the current one)")
	flags.Var(&f.timeout, "timeout", "stop the cell after so long (default: no limit)")
	flags.StringVar(&f.id, "id", "", "id of the cell: the same id again is the same cell and does not run twice")
	flags.BoolVar(&f.reset, "reset", false, "start from a fresh kernel")
	flags.StringVarP(&f.code, "code", "c", "", "the code")
	a.addJSON(cmd)
	flags.BoolVar(&a.events, "events", false, "print one JSON object per line, as things happen")
	completeValues(cmd, "language", string(cell.Python), string(cell.Bash))

	return cmd
}

func (a *app) run(cmd *cobra.Command, f runFlags, args []string) error {
	if a.json && a.events {
		return usagef("give one of them", "both --json and --events were given")
	}
	src, err := parseSource(f.code, cmd.Flags().Changed("code"), args)
	if err != nil {
		return err
	}
	s, err := a.settings()
	if err != nil {
		return err
	}
	req, err := a.request(cmd, f, s)
	if err != nil {
		return err
	}
	if req.Code, err = src.read(a.stdin); err != nil {
		return err
	}

	return a.runCell(cmd.Context(), s, req)
}

// request is the cell that the flags describe, still without its code.
func (a *app) request(cmd *cobra.Command, f runFlags, s *settings) (core.Request, error) {
	req := core.Request{Session: f.session, ID: f.id, Reset: f.reset, Language: s.language}
	for _, name := range []string{"session", "id", "environment", "workdir"} {
		if flag := cmd.Flags().Lookup(name); flag != nil && flag.Changed && flag.Value.String() == "" {
			return req, usagef("leave the flag out, or give it a value", "the value of --%s is empty", name)
		}
	}

	var err error
	if f.language != "" {
		if req.Language, err = parseLanguage(f.language); err != nil {
			return req, usagef("", "-l %v", err)
		}
	}
	if req.Environment, err = s.environmentFor(f.environment); err != nil {
		return req, err
	}
	if req.Dir, err = s.dir(req.Environment, f.dir); err != nil {
		return req, err
	}
	if req.Env, err = variables(f.envFiles, f.vars, os.LookupEnv); err != nil {
		return req, err
	}
	if f.timeout.text != "" {
		req.Timeout, err = parseDuration(f.timeout.text)
	}

	return req, err
}

// runCell runs req in an engine of its own and prints what comes.
func (a *app) runCell(ctx context.Context, s *settings, req core.Request) error {
	if a.json || a.events {
		s.spillDir = spillDir(a.paths().state)
	}
	var last atomic.Value // the id of the cell
	err := a.withEngine(ctx, s, func(ctx context.Context, engine *core.Engine) error {
		_, err := a.runIn(ctx, engine, req, a.newPrinter(), func(id string) { last.Store(id) })
		return err
	})
	if errors.Is(err, errForced) {
		if a.last.Swap(true) {
			return exit(statusInterrupted) // the result came at that very moment
		}
		id, _ := last.Load().(string)
		return left(req, id)
	}

	return err
}

// runIn runs req in an engine that is there and shows what comes. A reader of stdout that goes away interrupts the cell. The error
// is the exit status, when the user knows the rest.
func (a *app) runIn(ctx context.Context, engine *core.Engine, req core.Request, out printer, named func(cell string)) (cell.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var failed error
	result, err := engine.Run(ctx, req, func(ev cell.Event) {
		if ev.Cell != "" {
			named(ev.Cell)
		}
		if failed == nil {
			if failed = out.event(ev); failed != nil {
				cancel(failed)
			}
		}
	})
	if result.Cell.Outcome == "" {
		return result, noResult(ctx, err)
	}
	if failed == nil {
		failed = out.result(req, result)
	}
	if failed != nil && !brokenPipe(failed) {
		a.warnf("%v", failed)
		return result, exit(statusFailed)
	}
	if result.Cell.Outcome == cell.OutcomeRefused && stopCause(ctx) != nil {
		return result, exit(statusInterrupted)
	}

	return result, exit(cellStatus(result.Cell, req.Language))
}

// noResult is the error to report when Run gave no outcome: what made the program itself give up, else err.
func noResult(ctx context.Context, err error) error {
	cause := stopCause(ctx)
	switch {
	case cause == nil, statusOf(err) == statusUnknown:
		return err
	case brokenPipe(cause):
		return exit(statusInterrupted)
	}

	return cause
}

// stopCause is the signal or the failed write that cancelled ctx, if one did.
func stopCause(ctx context.Context) error {
	cause := context.Cause(ctx)
	var (
		stopped *interruptError
		gone    *outputError
	)
	if errors.As(cause, &stopped) || errors.As(cause, &gone) {
		return cause
	}

	return nil
}
