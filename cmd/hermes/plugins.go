package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

func (a *app) pluginCommand() *cobra.Command {
	ls := &cobra.Command{
		Use:   "ls",
		Short: "List the backends that are found; none of them is executed for it",
		Args:  args(0, 0, "argument"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.pluginList(cmd.Context()) },
	}
	info := &cobra.Command{
		Use:     "info NAME",
		Short:   "Start a backend and show what it says about itself",
		Example: "  hermes plugin info local",
		Args:    args(1, 1, "name"),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.pluginInfo(cmd.Context(), args[0]) },
	}
	install := &cobra.Command{
		Use:     "install PATH",
		Short:   "Copy a backend into the plugin directory and trust it",
		Example: "  hermes plugin install ./hermes-backend-scratch",
		Args:    args(1, 1, "path"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.pluginInstall(args[0]) },
	}
	trust := &cobra.Command{
		Use:   "trust PATH",
		Short: "Allow a backend to be run, as it is now",
		Long: `Note a backend's SHA-256 in plugins.lock. Only binaries that are noted there, and still the same, are ever run; run this
again after you replaced one.`,
		Example: "  hermes plugin trust ~/bin/hermes-backend-scratch",
		Args:    args(1, 1, "path"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.pluginTrust(args[0]) },
	}
	for _, cmd := range []*cobra.Command{ls, info, install, trust} {
		a.addJSON(cmd)
	}

	return group("plugin", "Manage backends", ls, info, install, trust)
}

func (a *app) pluginList(ctx context.Context) error {
	s, err := a.settings()
	if err != nil {
		return err
	}

	return a.withEngine(ctx, s, func(ctx context.Context, engine *core.Engine) error {
		all, err := engine.Plugins(ctx)
		if err != nil {
			return stoppedOr(ctx, err)
		}
		if a.json {
			return a.printJSON(notNil(all))
		}
		return a.table("NAME\tTRUST\tSTATE\tPATH\tPROBLEM", func(w io.Writer) {
			for _, p := range all {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Name, trustWord(p), p.State, dash(p.Path), p.Problem)
			}
		})
	})
}

func trustWord(p core.PluginStatus) string {
	switch {
	case p.Builtin:
		return "built in"
	case p.Trusted:
		return "trusted"
	}

	return "not trusted"
}

// pluginDoc is a backend's place and what it says about itself.
type pluginDoc struct {
	core.PluginStatus
	Version      string           `json:"version"`
	Description  string           `json:"description"`
	Schemes      []string         `json:"schemes"`
	Capabilities []sdk.Capability `json:"capabilities"`
	ConfigSchema string           `json:"config_schema"`
}

func (a *app) pluginInfo(ctx context.Context, name string) error {
	s, err := a.settings()
	if err != nil {
		return err
	}

	return a.withEngine(ctx, s, func(ctx context.Context, engine *core.Engine) error {
		status, err := findPlugin(ctx, engine, name)
		if err != nil {
			return stoppedOr(ctx, err)
		}
		backend, err := engine.Backend(ctx, name)
		if err != nil {
			return stoppedOr(ctx, err)
		}
		info, err := backend.Info(ctx)
		if err != nil {
			return stoppedOr(ctx, err)
		}
		if again, err := findPlugin(ctx, engine, name); err == nil {
			status = again // it runs now
		}
		return a.printPlugin(pluginDoc{
			PluginStatus: status, Version: info.Version, Description: info.Description, Schemes: notNil(info.Schemes),
			Capabilities: notNil(info.Capabilities), ConfigSchema: info.ConfigSchema,
		})
	})
}

func findPlugin(ctx context.Context, engine *core.Engine, name string) (core.PluginStatus, error) {
	all, err := engine.Plugins(ctx)
	if err != nil {
		return core.PluginStatus{}, err
	}
	for _, p := range all {
		if p.Name == name {
			return p, nil
		}
	}

	return core.PluginStatus{}, &notFoundError{msg: fmt.Sprintf("no backend %q", name), hint: "hermes plugin ls shows those that are there"}
}

func (a *app) printPlugin(p pluginDoc) error {
	if a.json {
		return a.printJSON(p)
	}
	caps := make([]string, len(p.Capabilities))
	for i, c := range p.Capabilities {
		caps[i] = string(c)
	}
	lines := [][2]string{
		{"name", p.Name},
		{"version", p.Version},
		{"description", p.Description},
		{"schemes", strings.Join(p.Schemes, " ")},
		{"capabilities", strings.Join(caps, " ")},
		{"config schema", p.ConfigSchema},
		{"trust", trustWord(p.PluginStatus)},
		{"path", p.Path},
		{"sha256", p.SHA256},
	}

	return a.printPairs(lines)
}

// printPairs prints what is not empty, one line each.
func (a *app) printPairs(lines [][2]string) error {
	width := 0
	for _, l := range lines {
		width = max(width, len(l[0]))
	}
	for _, l := range lines {
		if l[1] == "" {
			continue
		}
		if err := a.printf("%-*s  %s\n", width, l[0], l[1]); err != nil {
			return err
		}
	}

	return nil
}

func (a *app) pluginInstall(path string) error {
	p := a.paths()
	if p.data == "" || p.lock == "" {
		return homeless("install a backend")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	status, err := core.InstallPlugin(p.lock, p.data, path)
	if err != nil {
		return err
	}

	return a.printTrusted(status)
}

func (a *app) pluginTrust(path string) error {
	p := a.paths()
	if p.lock == "" {
		return homeless("trust a backend")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	status, err := core.TrustPlugin(p.lock, path)
	if err != nil {
		return err
	}

	return a.printTrusted(status)
}

func (a *app) printTrusted(p core.PluginStatus) error {
	if a.json {
		return a.printJSON(p)
	}

	return a.printPairs([][2]string{{"name", p.Name}, {"path", p.Path}, {"sha256", p.SHA256}})
}

func homeless(what string) error {
	return usagef("set HOME", "cannot %s: there is no directory for it, because neither HOME nor the XDG variables are set", what)
}
