package main

import (
	"os"

	"github.com/spf13/cobra"
)

func (a *app) configCommand() *cobra.Command {
	path := &cobra.Command{
		Use:   "path",
		Short: "Print where the configuration file is looked for",
		Args:  args(0, 0, "argument"),
		RunE: func(*cobra.Command, []string) error {
			p := a.paths().config
			if p == "" {
				return homeless("have a configuration file")
			}
			return a.printf("%s\n", p)
		},
	}
	show := &cobra.Command{
		Use:   "show",
		Short: "Print the values in effect and where each comes from",
		Args:  args(0, 0, "argument"),
		RunE:  func(*cobra.Command, []string) error { return a.configShow() },
	}
	a.addJSON(show)

	cmd := group("config", "Show the configuration", path, show)
	cmd.Long = configHelp

	return cmd
}

const configHelp = `The configuration is a YAML file. Every key is optional; these are the defaults, and the variables that go before the file:

  environment: "local:"     # HERMES_ENVIRONMENT: where run, exec and repl work without -E
  language: python          # HERMES_LANGUAGE: python or bash
  interpreter: python3      # HERMES_INTERPRETER: the Python that runs kernels, a name on PATH or a path
  max_session_kernels: 4    # HERMES_MAX_SESSION_KERNELS: how many kernels a program keeps beside those of sessions, -1 for no bound
  kernel_idle_timeout: 30m  # HERMES_KERNEL_IDLE_TIMEOUT: when one that is not used ends
  through_plugin: false     # HERMES_THROUGH_PLUGIN: send every byte through the backend, also where there is a shorter way
  log_level: error          # HERMES_LOG_LEVEL: off, error, warn, info or debug, on stderr
  plugin_dirs: []           # HERMES_PLUGIN_DIRS: where else to look for backends
  environments:             # names for -E
    build:
      target: ssh://build.example
      config: {}            # what the backend's config schema describes`

// configDoc is the configuration in effect. The environments' own options are left out: they may hold secrets.
type configDoc struct {
	Path         string         `json:"path"`
	Exists       bool           `json:"exists"`
	Settings     []shownSetting `json:"settings"`
	Environments []envDoc       `json:"environments"`
}

func (a *app) configShow() error {
	s, err := a.settings()
	if err != nil {
		return err
	}
	doc := configDoc{Path: a.paths().config, Settings: s.shown, Environments: s.named()}
	_, err = os.Stat(doc.Path)
	doc.Exists = err == nil
	if a.json {
		return a.printJSON(doc)
	}

	width := 0
	for _, v := range doc.Settings {
		width = max(width, len(v.Key+v.Value)+2)
	}
	for _, v := range doc.Settings {
		if err := a.printf("%-*s  # %s\n", width, v.Key+": "+v.Value, v.Source); err != nil {
			return err
		}
	}
	for i, e := range doc.Environments {
		if i == 0 {
			if err := a.printf("environments:\n"); err != nil {
				return err
			}
		}
		if err := a.printf("  %s: {target: %q}\n", e.Name, e.Target); err != nil {
			return err
		}
	}

	return nil
}
