package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hermes-framework/hermes/core"
)

func (a *app) kernelsCommand() *cobra.Command {
	ls := &cobra.Command{
		Use:   "ls",
		Short: "List the kernels of named sessions",
		Args:  args(0, 0, "argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.kernels(cmd.Context(), (*core.Engine).Kernels)
		},
	}
	prune := &cobra.Command{
		Use:   "prune",
		Short: "End the idle kernels of named sessions and forget dead ones",
		Args:  args(0, 0, "argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.kernels(cmd.Context(), (*core.Engine).Prune)
		},
	}
	for _, cmd := range []*cobra.Command{ls, prune} {
		a.addJSON(cmd)
	}

	return group("kernels", "List and end the kernels of named sessions", ls, prune,
		a.eachKernelCommand("interrupt", "Interrupt the cell that a kernel runs", (*core.Engine).Interrupt),
		a.eachKernelCommand("kill", "End a kernel and every process it started", (*core.Engine).Kill),
	)
}

// kernels prints what list returns.
func (a *app) kernels(ctx context.Context, list func(*core.Engine, context.Context) ([]core.KernelStatus, error)) error {
	s, err := a.settings()
	if err != nil {
		return err
	}

	return a.withEngine(ctx, s, func(ctx context.Context, engine *core.Engine) error {
		found, err := list(engine, ctx)
		if err != nil && (len(found) == 0 || ctx.Err() != nil) {
			return stoppedOr(ctx, err)
		}
		if printErr := a.printKernels(found); printErr != nil || err == nil {
			return printErr
		}
		a.warnf("%s", sentence(failureOf(err))) // some could not be asked for: the others are of use all the same
		return exit(statusOf(err))
	})
}

// eachKernelCommand makes a command that does one thing to each kernel that its arguments name.
func (a *app) eachKernelCommand(use, short string, do func(*core.Engine, context.Context, string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:     use + " ID...",
		Short:   short,
		Long:    short + ". ID is a kernel's id, the beginning of one, or the name of a session.",
		Example: "  hermes kernels " + use + " work",
		Args:    args(1, -1, "kernel id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.eachKernel(cmd.Context(), args, do)
		},
	}
	a.addJSON(cmd)

	return cmd
}

func (a *app) eachKernel(ctx context.Context, names []string, do func(*core.Engine, context.Context, string) error) error {
	s, err := a.settings()
	if err != nil {
		return err
	}

	return a.withEngine(ctx, s, func(ctx context.Context, engine *core.Engine) error {
		all, listErr := engine.Kernels(ctx)
		chosen, err := chooseKernels(all, names)
		if err != nil && listErr != nil {
			return stoppedOr(ctx, listErr) // it may be among those that could not be asked for
		}
		if err != nil {
			return err
		}
		for _, k := range chosen {
			if err := do(engine, ctx, k.ID); err != nil {
				return stoppedOr(ctx, err)
			}
		}
		if a.json {
			return a.printJSON(notNil(chosen))
		}
		for _, k := range chosen {
			if err := a.printf("%s\n", k.ID); err != nil {
				return err
			}
		}
		return nil
	})
}

// chooseKernels finds what names mean: an id, a session (all its kernels), or the beginning of exactly one id. All names are looked
// up before anything is done, so that a mistyped one changes nothing.
func chooseKernels(all []core.KernelStatus, names []string) ([]core.KernelStatus, error) {
	var chosen []core.KernelStatus
	seen := map[string]bool{}
	for _, name := range names {
		found, err := chooseKernel(all, name)
		if err != nil {
			return nil, err
		}
		for _, k := range found {
			if !seen[k.ID] {
				seen[k.ID] = true
				chosen = append(chosen, k)
			}
		}
	}

	return chosen, nil
}

func chooseKernel(all []core.KernelStatus, name string) ([]core.KernelStatus, error) {
	var sessions, prefixes []core.KernelStatus
	for _, k := range all {
		switch {
		case k.ID == name:
			return []core.KernelStatus{k}, nil
		case k.Session == name:
			sessions = append(sessions, k)
		case name != "" && strings.HasPrefix(k.ID, name):
			prefixes = append(prefixes, k)
		}
	}
	switch {
	case len(sessions) > 0:
		return sessions, nil
	case len(prefixes) == 1:
		return prefixes, nil
	case len(prefixes) > 1:
		return nil, usagef("write more of it", "%q is the beginning of %d kernel ids", name, len(prefixes))
	}

	return nil, &notFoundError{msg: fmt.Sprintf("no kernel and no session %q", name), hint: "hermes kernels ls shows those that are there"}
}

func (a *app) printKernels(found []core.KernelStatus) error {
	if a.json {
		return a.printJSON(notNil(found))
	}
	if len(found) == 0 {
		return nil
	}

	return a.table("ID\tSESSION\tENVIRONMENT\tLANGUAGE\tSTATE\tCELLS\tPID\tSTARTED\tLAST USED", func(w io.Writer) {
		now := time.Now()
		for _, k := range found {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", k.ID, dash(k.Session), k.Environment, k.Language, k.State,
				k.Cells, k.PID, ago(now, k.Started), ago(now, k.LastUsed))
		}
	})
}

// table prints aligned columns; what fails is seen when they are written out.
func (a *app) table(header string, rows func(io.Writer)) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, header)
	rows(w)

	return a.wrote(w.Flush())
}

// notNil makes an empty list [] in JSON.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}

	return list
}

func dash(text string) string {
	if text == "" {
		return "-"
	}

	return text
}

func ago(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	d := now.Sub(then).Round(time.Second)
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	}

	return fmt.Sprintf("%dd ago", int(d.Hours()/24))
}
