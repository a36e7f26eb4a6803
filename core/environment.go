package core

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/hermes-framework/hermes/core/kernelhost"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// environment is one opened target and the kernel hosts in it.
type environment struct {
	name   string // as it was asked for
	target string
	scheme string
	place  kernelhost.Place // but for the interpreter
	ready  chan struct{}
	err    error

	abandoned bool // err came because the caller who opened it was cancelled

	mu    sync.Mutex
	hosts map[hostKey]*hostSlot
}

// environment returns the opened environment of a name or target, opening it if need be; callers that come meanwhile wait for that.
func (e *Engine) environment(ctx context.Context, name string) (*environment, error) {
	if name == "" {
		name = DefaultEnvironment
	}
	conf, err := e.resolve(name)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, errEngineClosed
	}
	env := e.envs[name]
	if env == nil {
		env = &environment{name: name, target: conf.Target, ready: make(chan struct{}), hosts: map[hostKey]*hostSlot{}}
		e.envs[name] = env
		e.mu.Unlock()
		env.err = env.open(ctx, e, conf)
		env.abandoned = env.err != nil && ctx.Err() != nil
		if env.err != nil { // the next caller tries again
			e.mu.Lock()
			delete(e.envs, name)
			e.mu.Unlock()
		}
		close(env.ready)
		return env, env.err
	}
	e.mu.Unlock()
	select {
	case <-env.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if env.abandoned && ctx.Err() == nil {
		return e.environment(ctx, name) // whoever opened it was cancelled: that is no reason for this caller
	}
	return env, env.err
}

// resolve finds the target of a name.
func (e *Engine) resolve(name string) (EnvironmentConfig, error) {
	if conf, ok := e.cfg.Environments[name]; ok {
		return conf, nil
	}
	if scheme, _, ok := strings.Cut(name, ":"); ok && scheme != "" {
		return EnvironmentConfig{Target: name}, nil
	}
	known := slices.Sorted(maps.Keys(e.cfg.Environments))
	hint := "use a target URL such as local: or the name of an environment from the configuration"
	if len(known) > 0 {
		hint += " (" + strings.Join(known, ", ") + ")"
	}
	return EnvironmentConfig{}, invalid(hint, "environment %q: not a target URL, and not in the configuration", name)
}

func (env *environment) open(ctx context.Context, e *Engine, conf EnvironmentConfig) error {
	scheme, _, ok := strings.Cut(conf.Target, ":")
	if !ok {
		return invalid("a target is a URL such as local: or ssh://host", "environment %q: target %q has no scheme", env.name, conf.Target)
	}
	backend, err := e.backends.Backend(ctx, scheme)
	if missing, ok := errors.AsType[*sdk.Error](err); ok && missing.Code == sdk.CodeNotFound {
		return invalid(missing.Hint, "environment %s: %s", label(env.name), missing.Message) // to name what is not there is the caller's mistake
	}
	if err != nil {
		return fmt.Errorf("environment %s: %w", label(env.name), err)
	}
	info, err := backend.Info(ctx)
	if err != nil {
		return fmt.Errorf("environment %s: %w", label(env.name), err)
	}
	var config []byte
	if len(conf.Config) > 0 {
		if config, err = json.Marshal(conf.Config); err != nil {
			return fmt.Errorf("environment %s: its configuration: %w", label(env.name), err)
		}
	}
	opened, err := backend.Open(ctx, sdk.OpenRequest{ID: newID(), Target: conf.Target, Config: config})
	if err != nil {
		return fmt.Errorf("environment %s: %w", label(env.name), err)
	}
	env.scheme = scheme
	env.place = kernelhost.Place{
		Name: env.name, Env: opened, Caps: info.Capabilities, Remote: !env.local(),
		ThroughPlugin: e.cfg.ThroughPlugin, ClientID: e.nonce, Idle: e.detachedIdle(),
	}
	if env.local() {
		env.place.EngineDir = e.runtime
	}
	return nil
}

// local reports whether the environment is this machine, so that the engine's own directory means something there.
func (env *environment) local() bool { return env.scheme == "local" }

// dir is the working directory to use where the caller named none.
func (env *environment) dir(asked string) string {
	if asked != "" || !env.local() {
		return asked
	}
	here, err := os.Getwd()
	if err != nil {
		return ""
	}
	return here
}

func (env *environment) close(ctx context.Context) error {
	select {
	case <-env.ready:
	case <-ctx.Done(): // its plugin hangs, and is ended next
		return fmt.Errorf("environment %s: close: %w", label(env.name), context.Cause(ctx))
	}
	if env.err != nil {
		return nil
	}
	var wg sync.WaitGroup
	for _, h := range env.live() {
		wg.Go(func() { h.Close(ctx) }) // bounded
	}
	wg.Wait()
	if err := env.place.Env.Close(ctx); err != nil && !errors.Is(err, sdk.ErrClosed) {
		return fmt.Errorf("environment %s: close: %w", label(env.name), err)
	}
	return nil
}

// label makes "local: …" of the target "local:".
func label(environment string) string { return strings.TrimSuffix(environment, ":") }

// Environment is an opened environment for commands and files, without any kernel. Its methods may be called concurrently; it is closed with its Engine.
type Environment struct {
	env  *environment
	info sdk.Info
}

// Environment opens the environment of a target URL or a name of the configuration.
func (e *Engine) Environment(ctx context.Context, target string) (*Environment, error) {
	env, err := e.environment(ctx, target)
	if err != nil {
		return nil, err
	}
	backend, err := e.backends.Backend(ctx, env.scheme)
	if err != nil {
		return nil, err
	}
	info, err := backend.Info(ctx)
	return &Environment{env: env, info: info}, err
}

// Info describes the environment's backend.
func (v *Environment) Info() sdk.Info { return v.info }

// Exec runs a command there, see sdk.Environment.
func (v *Environment) Exec(ctx context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	return v.env.place.Env.Exec(ctx, cmd, stdio)
}

// Files returns the environment's files, or an error with sdk.CodeUnsupported.
func (v *Environment) Files() (sdk.Files, error) {
	files, ok := v.env.place.Env.(sdk.Files)
	if !ok || !slices.Contains(v.info.Capabilities, sdk.CapFiles) {
		return nil, v.lacks(sdk.CapFiles)
	}
	return files, nil
}

// Dialer returns what connects to the environment's Unix sockets, or an error with sdk.CodeUnsupported.
func (v *Environment) Dialer() (sdk.Dialer, error) {
	dialer, ok := v.env.place.Env.(sdk.Dialer)
	if !ok || !slices.Contains(v.info.Capabilities, sdk.CapSocket) {
		return nil, v.lacks(sdk.CapSocket)
	}
	return dialer, nil
}

func (v *Environment) lacks(c sdk.Capability) error {
	return &sdk.Error{
		Code: sdk.CodeUnsupported, Delivery: sdk.NotStarted,
		Message: fmt.Sprintf("environment %s: its backend %s has no capability %s", label(v.env.name), v.info.Name, c),
	}
}

// EnvironmentStatus is a named environment of the configuration.
type EnvironmentStatus struct {
	Name   string `json:"name"`
	Target string `json:"target"`
	Open   bool   `json:"open"`
}

// Environments lists the environments of the configuration and those that are open.
func (e *Engine) Environments() []EnvironmentStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	names := map[string]string{DefaultEnvironment: DefaultEnvironment}
	for name, conf := range e.cfg.Environments {
		names[name] = conf.Target
	}
	for name, env := range e.envs {
		names[name] = env.target
	}
	var out []EnvironmentStatus
	for _, name := range slices.Sorted(maps.Keys(names)) {
		out = append(out, EnvironmentStatus{Name: name, Target: names[name], Open: e.envs[name] != nil})
	}
	return out
}
