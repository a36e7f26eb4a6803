package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/hermes-framework/hermes/core"
)

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at everything Hermes needs on this machine",
		Long: `Look at the directories, the configuration, the backends and Python, and run a cell on this machine. The status is 0, or 125
when something fails.`,
		Args: args(0, 0, "argument"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context()) },
	}
	a.addJSON(cmd)

	return cmd
}

func (a *app) doctor(ctx context.Context) error {
	v := thisVersion()
	checks := []core.Check{{Name: "version", OK: true, Detail: fmt.Sprintf("hermes %s, %s, %s", v.Version, v.Go, v.Platform)}}
	s, configured := a.checkConfig()
	checks = append(checks, configured)
	checks = append(checks, a.checkPaths()...)
	if s == nil {
		return a.printChecks("", checks)
	}

	err := a.withEngine(ctx, s, func(ctx context.Context, engine *core.Engine) error {
		checks = append(checks, checkPlugins(ctx, engine)...)
		local, err := engine.CheckEnvironment(ctx, "local:")
		if stopped := stoppedOr(ctx, nil); stopped != nil {
			return stopped
		}
		if err != nil {
			checks = append(checks, failedCheck("local", err))
		}
		for _, c := range local {
			c.Name = "local " + c.Name
			checks = append(checks, c)
		}
		return nil
	})
	if stopped := (*interruptError)(nil); errors.As(err, &stopped) || errors.Is(err, errForced) {
		return err
	}
	if err != nil {
		checks = append(checks, failedCheck("engine", err))
	}

	return a.printChecks("", checks)
}

// checkConfig returns the settings that the other checks work with: the defaults when the file is of no use, none when not even they can be had.
func (a *app) checkConfig() (*settings, core.Check) {
	path := a.paths().config
	s, err := a.settings()
	if err != nil {
		defaults, _ := a.resolve(path, fileConfig{})
		return defaults, failedCheck("config", err)
	}
	switch _, err := os.Stat(path); {
	case path == "":
		return s, core.Check{Name: "config", Warn: true, Detail: "neither HOME nor XDG_CONFIG_HOME is set", Hint: "set HOME to have a configuration"}
	case err != nil:
		return s, core.Check{Name: "config", OK: true, Detail: path + ", not there: the defaults hold"}
	}

	return s, core.Check{Name: "config", OK: true, Detail: path}
}

func failedCheck(name string, err error) core.Check {
	f := failureOf(err)

	return core.Check{Name: name, Detail: f.Message, Hint: f.Hint}
}

func (a *app) checkPaths() []core.Check {
	p := a.paths()
	checks := []core.Check{
		checkDir("state", p.state, "named sessions need it: set HOME or XDG_STATE_HOME"),
		checkDir("plugins", p.data, "plugin install needs it: set HOME or XDG_DATA_HOME"),
	}
	runtime := core.Check{Name: "runtime", OK: true, Detail: p.runtime}
	if p.runtime == "" {
		runtime.Detail = "XDG_RUNTIME_DIR is not set: plugins use a fresh private directory in " + os.TempDir() + ", kernel hosts ~/.cache/hermes"
		if dir := a.xdg("XDG_RUNTIME_DIR", "", "hermes"); dir != "" {
			runtime.Detail = fmt.Sprintf("%s is not used (%s): plugins use a fresh private directory in %s, kernel hosts ~/.cache/hermes", dir, runtimeProblem(dir), os.TempDir())
			runtime.Warn = true
		}
	}

	return append(checks, runtime)
}

// checkDir looks at a directory that Hermes makes itself when it needs it.
func checkDir(name, dir, without string) core.Check {
	if dir == "" {
		return core.Check{Name: name, Warn: true, Detail: "no directory", Hint: without}
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return core.Check{Name: name, OK: true, Detail: dir + ", made when it is needed"}
	case err != nil:
		return core.Check{Name: name, Detail: err.Error(), Hint: "make it readable"}
	case !info.IsDir():
		return core.Check{Name: name, Detail: dir + " is no directory", Hint: "move it away"}
	case name == "state" && info.Mode().Perm()&0o077 != 0:
		return core.Check{Name: name, Detail: fmt.Sprintf("%s is open to others (%v)", dir, info.Mode().Perm()), Hint: "run: chmod 700 " + dir}
	case info.Mode().Perm()&0o022 != 0:
		return core.Check{Name: name, Detail: fmt.Sprintf("%s can be written by others (%v)", dir, info.Mode().Perm()), Hint: "run: chmod go-w " + dir}
	}

	return core.Check{Name: name, OK: true, Detail: fmt.Sprintf("%s, %v", dir, info.Mode().Perm())}
}

// checkPlugins has a line for each backend; one that cannot be used is worth a warning, since nothing may want it.
func checkPlugins(ctx context.Context, engine *core.Engine) []core.Check {
	all, err := engine.Plugins(ctx)
	if err != nil {
		return []core.Check{failedCheck("backends", err)}
	}
	var checks []core.Check
	for _, p := range all {
		c := core.Check{Name: "backend " + p.Name, OK: p.Problem == "", Warn: p.Problem != "", Detail: trustWord(p)}
		if p.Path != "" {
			c.Detail += ", " + p.Path
		}
		if p.Problem != "" {
			c.Detail += ": " + p.Problem
		}
		checks = append(checks, c)
	}

	return checks
}
