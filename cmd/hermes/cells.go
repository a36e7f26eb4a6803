package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
)

func (a *app) cellsCommand() *cobra.Command {
	ls := &cobra.Command{
		Use:   "ls",
		Short: "List the cells of named sessions",
		Args:  args(0, 0, "argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withCells(cmd.Context(), func(ctx context.Context, engine *core.Engine) error {
				found, err := engine.Cells(ctx)
				if err != nil && (len(found) == 0 || ctx.Err() != nil) {
					return stoppedOr(ctx, err)
				}
				if printErr := a.printCells(found); printErr != nil || err == nil {
					return printErr
				}
				a.warnf("%s", sentence(failureOf(err))) // some could not be asked for: the others are of use all the same
				return exit(statusOf(err))
			})
		},
	}
	a.addJSON(ls)

	return group("cells", "Look at, wait for and cancel the cells of named sessions", ls,
		a.cellCommand("show", "Print what a cell has come to, without waiting for its end", a.showCell),
		a.cellCommand("wait", "Wait for a cell's end, print it as run does, and exit with its status", a.waitCell),
		a.cellCommand("cancel", "Interrupt a cell, or refuse one that has not started", a.cancelCell),
	)
}

// cellCommand makes a command for the one cell that its argument names.
func (a *app) cellCommand(use, short string, do func(context.Context, *core.Engine, string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:     use + " ID",
		Short:   short,
		Long:    short + ". ID is a cell's id, or the beginning of one that `hermes cells ls` shows.",
		Example: "  hermes cells " + use + " my-cell",
		Args:    args(1, 1, "cell id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withCells(cmd.Context(), func(ctx context.Context, engine *core.Engine) error {
				all, _ := engine.Cells(ctx) // what could not be asked for matters to do
				id, err := chooseCell(all, args[0])
				if err != nil {
					return err
				}
				return do(ctx, engine, id)
			})
		},
	}
	a.addJSON(cmd)

	return cmd
}

func (a *app) withCells(ctx context.Context, use func(context.Context, *core.Engine) error) error {
	s, err := a.settings()
	if err != nil {
		return err
	}
	if a.json {
		s.spillDir = spillDir(a.paths().state)
	}

	return a.withEngine(ctx, s, use)
}

// chooseCell is the id that name means: itself, or the only one that it is the beginning of.
func chooseCell(all []core.CellStatus, name string) (string, error) {
	ids := map[string]bool{}
	for _, c := range all {
		if c.ID == name {
			return name, nil
		}
		if name != "" && strings.HasPrefix(c.ID, name) {
			ids[c.ID] = true
		}
	}
	if len(ids) > 1 {
		return "", usagef("write more of it", "%q is the beginning of %d cell ids", name, len(ids))
	}
	for id := range ids {
		return id, nil
	}

	return name, nil
}

func (a *app) waitCell(ctx context.Context, engine *core.Engine, id string) error {
	out := a.newPrinter()
	var failed error
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	res, err := engine.Cell(ctx, id, func(ev cell.Event) {
		if failed == nil {
			if failed = out.event(ev); failed != nil {
				cancel(failed)
			}
		}
	})

	return a.endOfCell(ctx, out, res, failed, err)
}

// endOfCell prints what a cell came to and is its exit status.
func (a *app) endOfCell(ctx context.Context, out printer, res cell.Result, failed, err error) error {
	if res.Cell.Outcome == "" {
		return noResult(ctx, err)
	}
	req := core.Request{Session: res.Kernel.Session, Language: res.Kernel.Language}
	if failed == nil {
		failed = out.result(req, res)
	}
	if failed != nil && !brokenPipe(failed) {
		a.warnf("%v", failed)
		return exit(statusFailed)
	}

	return exit(cellStatus(res.Cell, req.Language))
}

// shownCell is what `cells show --json` prints.
type shownCell struct {
	Status core.CellStatus `json:"status"`
	Cell   *cell.Cell      `json:"cell"`   // null until it has ended
	Kernel *cell.Kernel    `json:"kernel"` // likewise
	Stdout string          `json:"stdout"` // so far
	Stderr string          `json:"stderr"`
}

func (a *app) showCell(ctx context.Context, engine *core.Engine, id string) error {
	out := printer(&textPrinter{app: a})
	var failed error
	status, res, err := engine.ShowCell(ctx, id, func(ev cell.Event) {
		if !a.json && failed == nil {
			failed = out.event(ev)
		}
	})
	if res.Cell.ID == "" {
		return noResult(ctx, err)
	}
	running := res.Cell.Outcome == ""
	if a.json {
		doc := shownCell{Status: status, Stdout: res.Cell.Stdout, Stderr: res.Cell.Stderr}
		if !running {
			doc.Cell, doc.Kernel = &res.Cell, &res.Kernel
		}
		if err := a.printJSON(doc); err != nil || running {
			return err
		}
		return exit(cellStatus(res.Cell, res.Kernel.Language))
	}
	if running {
		a.warnf("the cell is %s", status.State)
		return failed
	}

	return a.endOfCell(ctx, out, res, failed, err)
}

func (a *app) cancelCell(ctx context.Context, engine *core.Engine, id string) error {
	if err := engine.CancelCell(ctx, id); err != nil {
		return stoppedOr(ctx, err)
	}
	if !a.json {
		return nil
	}
	all, err := engine.Cells(ctx)
	for _, c := range all {
		if c.ID == id {
			return a.printJSON(c)
		}
	}

	return stoppedOr(ctx, err)
}

func (a *app) printCells(found []core.CellStatus) error {
	if a.json {
		return a.printJSON(notNil(found))
	}
	if len(found) == 0 {
		return nil
	}

	return a.table("ID\tSESSION\tLANGUAGE\tSTATE\tSUBMITTED\tOUTPUT", func(w io.Writer) {
		now := time.Now()
		for _, c := range found {
			state := c.State
			if c.Outcome != "" {
				state = string(c.Outcome)
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\n", printable(c.ID), dash(c.Session), c.Language, state, ago(now, c.Submitted), c.StdoutBytes+c.StderrBytes)
		}
	})
}

// printable is an id, which somebody chose, in one line of a table.
func printable(id string) string {
	if quoted := fmt.Sprintf("%q", id); quoted != `"`+id+`"` || strings.ContainsRune(id, ' ') {
		return quoted
	}

	return id
}
