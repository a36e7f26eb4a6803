package main

import (
	"slices"

	"github.com/spf13/cobra"
)

// exitCodes is the text of `hermes help exit-codes`; docs/exit-codes.md tells the same at length.
const exitCodes = `The exit statuses that scripts can rely on.

hermes run:
  0    the cell ended well
  1    an error in the cell (a shell cell: its own status)
  n    the cell called sys.exit(n) or os._exit(n)
  2    wrong usage or configuration; nothing ran
  121  the outcome is unknown, or the cell was lost when its kernel ended
  124  the cell's time limit passed
  125  Hermes, the backend or the environment failed, and nothing ran
  130  interrupted

hermes exec:
  n    the command's own status
  126  the command cannot be executed
  127  the command was not found
  128+n  signal n ended the command
  2, 121, 124, 125, 130 as above

Other commands:
  0    done
  2    wrong usage or configuration
  125  it failed, or what was named is not there
  130  interrupted

A cell or a command may itself end with one of these numbers; the outcome that --json prints tells them apart.`

// exitCodesTopic is a page of help and no command.
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit statuses mean", Long: exitCodes}
}

func (a *app) helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND | exit-codes]",
		Short:   "Explain a command, or the exit statuses",
		Example: "  hermes help run\n  hermes help exit-codes",
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return noSubcommand(found, rest)
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// completionShells are those that completion scripts exist for.
var completionShells = []string{"bash", "zsh", "fish", "powershell"}

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:       "completion SHELL",
		Short:     "Print a completion script for bash, zsh, fish or powershell",
		Example:   "  source <(hermes completion bash)",
		ValidArgs: completionShells,
		Args:      args(1, 1, "shell"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return a.wrote(root.GenBashCompletionV2(a.stdout, true))
			case "zsh":
				return a.wrote(root.GenZshCompletion(a.stdout))
			case "fish":
				return a.wrote(root.GenFishCompletion(a.stdout, true))
			case "powershell":
				return a.wrote(root.GenPowerShellCompletionWithDesc(a.stdout))
			}
			return usagef("use one of bash, zsh, fish and powershell", "no completion script for %q", args[0])
		},
	}
}

// completeValues lets the shell complete a flag from a fixed list.
func completeValues(cmd *cobra.Command, flag string, values ...string) {
	fixed := cobra.FixedCompletions(slices.Clone(values), cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, fixed); err != nil {
		panic(err) // the flag is not there: a mistake in this program
	}
}
