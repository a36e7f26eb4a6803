package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/hermes-framework/hermes/plugin"
	"github.com/hermes-framework/hermes/shellquote"
)

// config is what a user may set for an environment.
type config struct {
	Base  string     `json:"base"`  // where scratch directories are made; empty means the temporary directory
	Setup [][]string `json:"setup"` // commands to run there first
}

const configSchema = `{"type": "object", "additionalProperties": false, "properties": {
	"base": {"type": "string"},
	"setup": {"type": "array", "items": {"type": "array", "items": {"type": "string"}, "minItems": 1}}}}`

type backend struct {
	environments plugin.Environments[*environment]
	describe     func(argv []string) string // a command as messages show it
}

var _ plugin.Backend = (*backend)(nil)

func newBackend() *backend { return &backend{describe: shellquote.Join} }

// Info implements plugin.Backend. There is no CapDetach: what outlives an environment has lost its directory.
func (b *backend) Info(context.Context) (plugin.Info, error) {
	return plugin.Info{
		Name:         "scratch",
		Version:      "1.0.0",
		Description:  "commands on this machine, in a directory that goes away (no sandbox)",
		Capabilities: []plugin.Capability{plugin.CapStdin, plugin.CapStream, plugin.CapSignal},
		ConfigSchema: configSchema,
	}, nil
}

// Open implements plugin.Backend.
func (b *backend) Open(ctx context.Context, req plugin.OpenRequest) (plugin.Environment, error) {
	return b.environments.Open(ctx, req.ID, func(ctx context.Context) (*environment, error) {
		u, err := url.Parse(req.Target)
		if err != nil || u.Scheme != "scratch" || strings.ContainsAny(u.Opaque, "/?") || u.Host+u.Path != "" {
			return nil, plugin.Errorf(plugin.CodeInvalid, plugin.NotStarted, "target %q is not of the form scratch: or scratch:NAME", req.Target)
		}
		cfg, err := plugin.Decode[config](req.Config)
		if err != nil {
			return nil, err
		}
		dir, err := os.MkdirTemp(cfg.Base, "scratch-"+u.Opaque+"-")
		if err != nil {
			return nil, plugin.AsError(err, plugin.NotStarted).WithHint("the directory comes from base in the environment's config, else from TMPDIR")
		}
		plugin.Logger().Debug("opened", "look", "cd "+shellquote.Quote(dir))
		e := &environment{backend: b, id: req.ID, dir: dir}
		e.ctx, e.stop = context.WithCancelCause(context.WithoutCancel(ctx))
		if err := e.setUp(ctx, cfg.Setup); err != nil {
			_ = os.RemoveAll(dir)
			return nil, err
		}
		return e, nil
	})
}

// environment is one scratch directory.
type environment struct {
	plugin.UnimplementedEnvironment // no sockets, no files
	backend                         *backend
	id, dir                         string

	ctx  context.Context // ends at Close
	stop context.CancelCauseFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

var _ plugin.Environment = (*environment)(nil)

// setUp runs the commands of the config. The first that fails fails the Open, and others may have had their effect elsewhere by then.
func (e *environment) setUp(ctx context.Context, commands [][]string) error {
	for _, argv := range commands {
		var out strings.Builder
		status, err := e.Exec(ctx, plugin.Command{Argv: argv, InheritEnv: true}, plugin.IO{Stdout: &out, Stderr: &out})
		if err != nil {
			return plugin.AsError(fmt.Errorf("setup: %s: %w", e.backend.describe(argv), err), plugin.MayHaveRun)
		}
		if status != (plugin.ExitStatus{}) {
			return plugin.Errorf(plugin.CodeInvalid, plugin.MayHaveRun, "setup: %s: exit status %d: %s", e.backend.describe(argv), status.Code, strings.TrimSpace(out.String()))
		}
	}
	return nil
}

// Close implements plugin.Environment.
func (e *environment) Close(ctx context.Context) error {
	return e.backend.environments.Close(ctx, e.id, func(ctx context.Context, e *environment) error {
		e.mu.Lock()
		e.closed = true
		e.mu.Unlock()
		e.stop(plugin.ErrClosed)
		e.running.Wait() // bounded: every command is being stopped
		return os.RemoveAll(e.dir)
	})
}

// begin counts a command in; the caller calls e.running.Done.
func (e *environment) begin() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("environment %s: %w", e.id, plugin.ErrClosed)
	}
	e.running.Add(1)
	return nil
}

// inherited are the plugin's variables that commands get too.
var inherited = []string{"PATH", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TERM", "TMPDIR", "XDG_RUNTIME_DIR"}

// variables is the environment of cmd: never nil, which would mean the plugin's own.
func (e *environment) variables(cmd plugin.Command) []string {
	env := []string{}
	if cmd.InheritEnv {
		for _, kv := range os.Environ() {
			if key, _, _ := strings.Cut(kv, "="); slices.Contains(inherited, key) {
				env = append(env, kv)
			}
		}
		env = append(env, "HOME="+e.dir)
	}
	return append(env, cmd.Env...)
}
