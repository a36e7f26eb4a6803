package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/hermes-framework/hermes/core"
)

// app is one run of the program.
type app struct {
	args   []string
	stdin  *os.File
	stdout *os.File
	stderr io.Writer
	getenv func(string) string

	json   bool // --json of the command that runs
	events bool // --events of `run`

	last atomic.Bool // the last word on stdout has been said, or given up: nothing may follow it
}

func (a *app) main(ctx context.Context) int {
	release := catchBrokenPipe()
	defer release()

	root := a.rootCommand()
	root.SetArgs(a.args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)

	return a.report(root.ExecuteContextC(ctx))
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "hermes",
		Short: "Run code in persistent kernels",
		Long: `Hermes runs cells of Python and shell in kernels whose variables, imports and working directory survive from one cell
to the next. Code runs on this machine with your own rights: the local backend is no sandbox.`,
		Example: `  hermes run -c 'print(6*7)'
  hermes run -s work -c 'x = 41'
  hermes run -s work -c 'x + 1'
  hermes exec -- ls -l`,
		Version:       core.Version,
		Args:          noSubcommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetVersionTemplate("hermes {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(a.helpCommand())
	root.AddCommand(
		a.runCommand(), a.execCommand(), a.replCommand(),
		a.cellsCommand(), a.kernelsCommand(), a.pluginCommand(), a.envCommand(), a.configCommand(),
		a.doctorCommand(), a.versionCommand(), a.completionCommand(), exitCodesTopic(),
	)

	return root
}

// group makes a command that only holds other commands.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  noSubcommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(subs...)

	return cmd
}

// noSubcommand refuses what the user took for a command, and says what is near.
func noSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := fmt.Sprintf("%q lists the commands", cmd.CommandPath()+" --help")
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf("did you mean %q?", cmd.CommandPath()+" "+near[0])
	}

	return &usageError{msg: fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+args[0]), hint: hint}
}

// flagError gives pflag's errors, which say which flag and what is wrong with it, the form of all usage errors.
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, errHelp) {
		return err
	}

	return &usageError{msg: err.Error(), hint: fmt.Sprintf("%q lists the flags", cmd.CommandPath()+" --help")}
}

// args limits the number of positional arguments and says what they are.
func args(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return &usageError{msg: "no " + what + " given", hint: "usage: " + cmd.UseLine()}
		case most >= 0 && len(args) > most && most == 0:
			return &usageError{msg: fmt.Sprintf("unexpected argument %q", args[0]), hint: "usage: " + cmd.UseLine()}
		case most >= 0 && len(args) > most:
			return &usageError{msg: fmt.Sprintf("one %s is expected, %q is too much", what, args[most]), hint: "usage: " + cmd.UseLine()}
		}
		return nil
	}
}

// addJSON adds the flag --json.
func (a *app) addJSON(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON")
}

// asked says whether cmd has a flag of the output that was parsed, or that stands behind the flag that was wrong.
func (a *app) asked(cmd *cobra.Command, flag string) bool {
	f := cmd.Flags().Lookup(flag)
	if f == nil {
		return false
	}
	before := a.args
	if i := slices.Index(before, "--"); i >= 0 {
		before = before[:i]
	}

	return f.Changed && f.Value.String() == "true" || slices.Contains(before, "--"+flag)
}

// printJSON writes v as one line.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)

	return a.wrote(enc.Encode(v))
}

// printf writes to stdout.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.stdout, format, args...)

	return a.wrote(err)
}

// warnf writes one line to stderr.
func (a *app) warnf(format string, args ...any) {
	_, _ = fmt.Fprintf(a.stderr, "hermes: "+format+"\n", args...) // there is nowhere left to say that stderr is gone
}

// report tells the user about err and returns the exit status of the program.
func (a *app) report(cmd *cobra.Command, err error) int {
	if err == nil {
		return 0
	}
	if told := (*exitError)(nil); errors.As(err, &told) {
		return told.status
	}

	status := statusOf(err)
	doc := failureDoc{Failure: failureOf(err)}
	if a.asked(cmd, "events") {
		doc.Event = "failure"
	} else if !a.asked(cmd, "json") {
		a.warnf("%s", sentence(doc.Failure))
		return status
	}
	if a.printJSON(doc) != nil {
		a.warnf("%s", sentence(doc.Failure))
	}

	return status
}

// sentence is a failure in one line (more only if the far side printed more).
func sentence(f failure) string {
	msg := strings.TrimRight(f.Message, "\n")
	if f.Hint == "" {
		return msg
	}
	if strings.Contains(msg, "\n") {
		return msg + "\nhermes: " + f.Hint
	}

	return strings.TrimSuffix(msg, ".") + "; " + f.Hint
}
