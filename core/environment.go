package core

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/hermes-framework/hermes/plugin"
)

// environment is one opened target and the kernel hosts in it.
type environment struct {
	name   string // as it was asked for
	target string
	scheme string
	place  place // but for the interpreter
	ready  chan struct{}
	err    error

	abandoned bool // err came because the caller who opened it was cancelled

	mu    sync.Mutex
	hosts map[hostKey]*hostSlot
}

type hostKey struct {
	interpreter string
	named       bool
}

// hostSlot holds the kernel host of one key. gate holds one token: who has it may start or replace it.
type hostSlot struct {
	gate chan struct{}
	host *hostConn
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
	known := sortedKeys(e.cfg.Environments)
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
	backend, err := e.backends.backend(ctx, scheme)
	if missing, ok := errors.AsType[*plugin.Error](err); ok && missing.Code == plugin.CodeNotFound {
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
	opened, err := backend.Open(ctx, plugin.OpenRequest{ID: newID(), Target: conf.Target, Config: config})
	if err != nil {
		return fmt.Errorf("environment %s: %w", label(env.name), err)
	}
	env.scheme = scheme
	env.place = place{
		name: env.name, env: opened, caps: info.Capabilities, remote: !env.local(),
		throughPlugin: e.cfg.ThroughPlugin, clientID: e.nonce, idle: e.detachedIdle(),
	}
	if env.local() {
		env.place.runtime = e.runtime
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

func (env *environment) slot(key hostKey) *hostSlot {
	env.mu.Lock()
	defer env.mu.Unlock()
	s := env.hosts[key]
	if s == nil {
		s = &hostSlot{gate: make(chan struct{}, 1)}
		s.gate <- struct{}{}
		env.hosts[key] = s
	}
	return s
}

// host returns the kernel host of key; make starts or finds one when there is none. Callers that come meanwhile wait.
func (env *environment) host(ctx context.Context, key hostKey, make func(context.Context, *place) (*hostConn, error)) (*hostConn, error) {
	s := env.slot(key)
	select {
	case <-s.gate:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { s.gate <- struct{}{} }()
	if s.host != nil {
		return s.host, nil
	}
	p := env.place
	p.interpreter = key.interpreter
	h, err := make(ctx, &p)
	if err == nil {
		s.host = h
	}
	return h, err
}

// forgetHost takes out a kernel host that is gone, so that the next cell gets a new one.
func (env *environment) forgetHost(ctx context.Context, h *hostConn) {
	for _, s := range env.slots() {
		<-s.gate
		if s.host == h {
			s.host = nil
		}
		s.gate <- struct{}{}
	}
	h.close(ctx)
}

func (env *environment) slots() []*hostSlot {
	env.mu.Lock()
	defer env.mu.Unlock()
	var out []*hostSlot
	for _, s := range env.hosts {
		out = append(out, s)
	}
	return out
}

// live returns the kernel hosts that are up.
func (env *environment) live() []*hostConn {
	var out []*hostConn
	for _, s := range env.slots() {
		<-s.gate // held by starts only, and they are bounded
		if s.host != nil {
			out = append(out, s.host)
		}
		s.gate <- struct{}{}
	}
	return out
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
		wg.Go(func() { h.close(ctx) })
	}
	wg.Wait()
	if err := env.place.env.Close(ctx); err != nil && !errors.Is(err, plugin.ErrClosed) {
		return fmt.Errorf("environment %s: close: %w", label(env.name), err)
	}
	return nil
}

// newHost starts an unnamed kernel host.
func newHost(ctx context.Context, p *place) (*hostConn, error) {
	token := newToken()
	info, err := startHost(ctx, p, token, false)
	if err != nil {
		return nil, err
	}
	h := newHostConn(p, info, token, false)
	if _, err := h.connect(ctx); err != nil {
		h.close(ctx)
		return nil, err
	}
	return h, nil
}

// namedHost finds the named kernel host of p's environment, or starts it. The record under its lock decides between programs that come at once.
func (e *Engine) namedHost(ctx context.Context, p *place) (*hostConn, error) {
	path, err := e.store.host(p.name, p.interpreter)
	if err != nil {
		return nil, err
	}
	if !p.can(plugin.CapDetach) {
		return nil, plugin.Errorf(plugin.CodeUnsupported, plugin.NotStarted, "%s: its backend cannot keep a session's kernel (it has no capability detach)", p.label()).
			WithHint("leave the session out: a kernel of this program ends with it")
	}
	unlock, err := lockFile(ctx, path+".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()

	var rec hostRecord
	known, err := load(path, &rec)
	if errors.Is(err, errDamaged) {
		return nil, withHint(err, "remove that file and end the kernel host that it named: `pgrep -f hermes-kernel-host` finds those that run")
	}
	if err != nil {
		return nil, err
	}
	if known && rec.Host.Socket != "" {
		h := newHostConn(p, rec.Host, rec.Token, true)
		if _, err := h.connect(ctx); err == nil || !nobodyListens(err) && !errors.Is(err, errHostGone) {
			return h, err
		}
	}
	fresh := hostRecord{Environment: p.name, Interpreter: p.interpreter, Token: newToken()}
	if !known {
		rec = fresh
	}
	if err := save(path, rec); err != nil { // before there is a host, which nobody could reach without its record
		return nil, err
	}
	h, err := e.startNamed(ctx, p, fresh.Token, rec.Token)
	if h != nil && errors.Is(err, errWrongToken) {
		return nil, &plugin.Error{
			Code: plugin.CodeConflict, Delivery: plugin.NotStarted, Cause: err,
			Message: fmt.Sprintf("%s: a kernel host of yours (process %d) runs there already, and its token is not in %s", p.label(), h.info.PID, path),
			Hint:    "use the state directory that it was started with, or end that process",
		}
	}
	if err != nil {
		return nil, err
	}
	fresh.Host, fresh.Token = h.info, h.token
	return h, save(path, fresh)
}

// startNamed starts a named host with token, or attaches to the one that is there, whose token another record may hold: an interpreter and an
// environment have more than one name. A host that was there and has just left is followed by another one.
func (e *Engine) startNamed(ctx context.Context, p *place, token, recorded []byte) (*hostConn, error) {
	for attempt := 0; ; attempt++ {
		info, err := startHost(ctx, p, token, true)
		if err != nil {
			return nil, err
		}
		h := newHostConn(p, info, token, true)
		if info.Existing {
			h.token = e.store.tokenOf(info.Incarnation, recorded)
		}
		_, err = h.connect(ctx)
		if attempt > 0 || !info.Existing || !nobodyListens(err) && !errors.Is(err, errHostGone) {
			return h, err
		}
	}
}

// Environment is an opened environment for commands and files, without any kernel. Its methods may be called concurrently; it is closed with its Engine.
type Environment struct {
	env  *environment
	info plugin.Info
}

// Environment opens the environment of a target URL or a name of the configuration.
func (e *Engine) Environment(ctx context.Context, target string) (*Environment, error) {
	env, err := e.environment(ctx, target)
	if err != nil {
		return nil, err
	}
	backend, err := e.backends.backend(ctx, env.scheme)
	if err != nil {
		return nil, err
	}
	info, err := backend.Info(ctx)
	return &Environment{env: env, info: info}, err
}

// Info describes the environment's backend.
func (v *Environment) Info() plugin.Info { return v.info }

// Exec runs a command there, see plugin.Environment.
func (v *Environment) Exec(ctx context.Context, cmd plugin.Command, stdio plugin.IO) (plugin.ExitStatus, error) {
	return v.env.place.env.Exec(ctx, cmd, stdio)
}

// Files returns the environment's files, or an error with plugin.CodeUnsupported.
func (v *Environment) Files() (plugin.Files, error) {
	files, ok := v.env.place.env.(plugin.Files)
	if !ok || !slices.Contains(v.info.Capabilities, plugin.CapFiles) {
		return nil, v.lacks(plugin.CapFiles)
	}
	return files, nil
}

// Dialer returns what connects to the environment's Unix sockets, or an error with plugin.CodeUnsupported.
func (v *Environment) Dialer() (plugin.Dialer, error) {
	dialer, ok := v.env.place.env.(plugin.Dialer)
	if !ok || !slices.Contains(v.info.Capabilities, plugin.CapSocket) {
		return nil, v.lacks(plugin.CapSocket)
	}
	return dialer, nil
}

func (v *Environment) lacks(c plugin.Capability) error {
	return &plugin.Error{
		Code: plugin.CodeUnsupported, Delivery: plugin.NotStarted,
		Message: fmt.Sprintf("environment %s: its backend %s has no capability %s", label(v.env.name), v.info.Name, c),
	}
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
	for _, name := range sortedKeys(names) {
		out = append(out, EnvironmentStatus{Name: name, Target: names[name], Open: e.envs[name] != nil})
	}
	return out
}
