package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hermes-framework/hermes/core"
)

// closeTime bounds the end of an engine; forcedCloseTime does when the user pressed Ctrl-C twice.
const (
	closeTime       = 15 * time.Second
	forcedCloseTime = 2 * time.Second
)

// withEngine opens an engine, uses it and closes it. A first signal cancels use's context, with an *interruptError as its cause.
// A second one leaves use alone and returns errForced: the program is about to end, and nothing may hold it up any more.
func (a *app) withEngine(ctx context.Context, s *settings, use func(context.Context, *core.Engine) error) error {
	ctx, forced, stop := interruptible(ctx)
	defer stop()

	return a.engineFor(ctx, s, forced, use)
}

// engineFor is withEngine for a caller who handles signals himself: forced is closed when the program is to end at once.
func (a *app) engineFor(ctx context.Context, s *settings, forced <-chan struct{}, use func(context.Context, *core.Engine) error) error {
	cfg := a.coreConfig(s)
	engine, err := core.Open(ctx, cfg)
	if err != nil {
		return err
	}
	err = leaveWhen(forced, func() error { return use(ctx, engine) })
	closeEngine(ctx, engine, cfg.Logger, forced)

	return err
}

// interruptible returns a context that the first signal cancels and a channel that the second one closes.
func interruptible(parent context.Context) (ctx context.Context, forced <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	second := make(chan struct{})
	release := onSignals(func(n int, s os.Signal) {
		switch n {
		case 1:
			cancel(&interruptError{signal: asSyscall(s)})
		case 2:
			close(second)
		}
	})

	return ctx, second, func() {
		release()
		cancel(nil)
	}
}

// leaveWhen returns f's error, or errForced when forced is closed first. Then f goes on, and nobody waits for it: the process ends.
func leaveWhen(forced <-chan struct{}, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }() // waited for here, or ended with the process
	select {
	case err := <-done:
		return err
	case <-forced:
		return errForced
	}
}

// closeEngine ends the engine within a bounded time. That it could not tidy up changes nothing about a result that is there.
func closeEngine(ctx context.Context, engine *core.Engine, log *slog.Logger, forced <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	closed := make(chan struct{})
	go func() { // waited for here, or ended with the process
		defer close(closed)
		if err := engine.Close(ctx); err != nil {
			log.Debug("close the engine", "err", err)
		}
	}()
	select {
	case <-closed:
		return
	case <-forced:
	}
	select {
	case <-closed:
	case <-time.After(forcedCloseTime):
	}
}

func (a *app) coreConfig(s *settings) core.Config {
	p := a.paths()

	return core.Config{
		PluginDirs:        p.pluginDirs(s.pluginDirs),
		LockFile:          p.lock,
		Builtin:           []core.Builtin{{Name: "local"}},
		StateDir:          p.state,
		RuntimeDir:        p.runtime,
		Environments:      s.environments,
		Interpreter:       s.interpreter,
		MaxSessionKernels: s.maxSessionKernels,
		KernelIdleTimeout: s.kernelIdleTimeout,
		ThroughPlugin:     s.throughPlugin,
		SpillDir:          s.spillDir,
		Logger:            a.logger(s.logLevel),
	}
}

func (a *app) logger(level string) *slog.Logger {
	var l slog.Level
	if level == "off" || l.UnmarshalText([]byte(level)) != nil {
		return slog.New(slog.DiscardHandler)
	}

	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: l}))
}

// environmentFor is the target or the name that -E, or else the configuration, gives.
func (s *settings) environmentFor(flag string) (string, error) {
	name := s.environment
	if flag != "" {
		name = flag
	}
	if strings.Contains(name, ":") {
		return name, nil
	}
	if _, ok := s.environments[name]; ok {
		return name, nil
	}
	hint := "give a target URL such as local:, or name it in the configuration (see: hermes config path)"
	if known := slices.Sorted(maps.Keys(s.environments)); len(known) > 0 {
		hint = "the configuration names " + strings.Join(known, ", ") + "; a target URL such as local: works too"
	}

	return "", usagef(hint, "there is no environment %q", name)
}

// isLocal says whether an environment is this machine itself, where paths mean what they mean here.
func (s *settings) isLocal(environment string) bool {
	target := environment
	if env, ok := s.environments[environment]; ok {
		target = env.Target
	}

	return strings.HasPrefix(target, "local:")
}

// dir makes a relative -w absolute where this machine's working directory has a meaning.
func (s *settings) dir(environment, dir string) (string, error) {
	if dir == "" || filepath.IsAbs(dir) {
		return dir, nil
	}
	if !s.isLocal(environment) {
		return "", usagef("give an absolute path", "-w %s: a relative directory has no meaning in environment %s", dir, environment)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("-w %s: %w", dir, err)
	}

	return abs, nil
}
