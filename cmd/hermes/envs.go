package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hermes-framework/hermes/core"
)

func (a *app) envCommand() *cobra.Command {
	ls := &cobra.Command{
		Use:   "ls",
		Short: "List the environments that the configuration names",
		Args:  args(0, 0, "argument"),
		RunE:  func(*cobra.Command, []string) error { return a.envList() },
	}
	check := &cobra.Command{
		Use:   "check [ENV]",
		Short: "Try an environment out and say what it lacks",
		Long: `Open an environment (default: the one that run would use), run a command and a cell in it, and print one line for each thing
that was looked at. The status is 0, or 125 when something fails.`,
		Example: "  hermes env check local:",
		Args:    args(0, 1, "environment"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.envCheck(cmd.Context(), strings.Join(args, ""))
		},
	}
	for _, cmd := range []*cobra.Command{ls, check} {
		a.addJSON(cmd)
	}

	return group("env", "List and check environments", ls, check)
}

// envDoc is an environment that can be named with -E.
type envDoc struct {
	Name    string `json:"name"`
	Target  string `json:"target"`
	Default bool   `json:"default"`
}

// envList starts nothing: what the configuration says is all there is to say.
func (a *app) envList() error {
	s, err := a.settings()
	if err != nil {
		return err
	}
	list := s.named()
	if _, named := s.environments[s.environment]; !named {
		list = append([]envDoc{{Name: s.environment, Target: s.environment, Default: true}}, list...)
	}
	if a.json {
		return a.printJSON(list)
	}

	return a.table("NAME\tTARGET\tDEFAULT", func(w io.Writer) {
		for _, e := range list {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", e.Name, e.Target, map[bool]string{true: "yes", false: "no"}[e.Default])
		}
	})
}

// named are the environments of the configuration, sorted.
func (s *settings) named() []envDoc {
	list := []envDoc{}
	for _, name := range slices.Sorted(maps.Keys(s.environments)) {
		list = append(list, envDoc{Name: name, Target: s.environments[name].Target, Default: name == s.environment})
	}

	return list
}

// checkDoc is what a check found.
type checkDoc struct {
	Environment string       `json:"environment,omitempty"`
	OK          bool         `json:"ok"`
	Checks      []core.Check `json:"checks"`
}

func (a *app) envCheck(ctx context.Context, name string) error {
	s, err := a.settings()
	if err != nil {
		return err
	}
	env, err := s.environmentFor(name)
	if err != nil {
		return err
	}

	return a.withEngine(ctx, s, func(ctx context.Context, engine *core.Engine) error {
		checks, err := engine.CheckEnvironment(ctx, env)
		if err != nil {
			return stoppedOr(ctx, err)
		}
		return a.printChecks(env, checks)
	})
}

// printChecks prints a line for each check, and a second one for what to do about it.
func (a *app) printChecks(env string, checks []core.Check) error {
	bad := slices.ContainsFunc(checks, func(c core.Check) bool { return !c.OK && !c.Warn })
	if err := a.writeChecks(checkDoc{Environment: env, OK: !bad, Checks: notNil(checks)}); err != nil {
		return err
	}
	if bad {
		return exit(statusFailed)
	}

	return nil
}

func (a *app) writeChecks(doc checkDoc) error {
	if a.json {
		return a.printJSON(doc)
	}
	width := 0
	for _, c := range doc.Checks {
		width = max(width, len(c.Name))
	}
	for _, c := range doc.Checks {
		if err := a.printf("%-4s  %-*s  %s\n", checkWord(c), width, c.Name, c.Detail); err != nil {
			return err
		}
		if c.Hint == "" {
			continue
		}
		if err := a.printf("%-4s  %-*s  → %s\n", "", width, "", c.Hint); err != nil {
			return err
		}
	}

	return nil
}

func checkWord(c core.Check) string {
	switch {
	case c.Warn:
		return "warn"
	case c.OK:
		return "ok"
	}

	return "FAIL"
}
