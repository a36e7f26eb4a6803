package core

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hermes-framework/hermes/internal/launch"
	"github.com/hermes-framework/hermes/plugin"
)

const (
	defaultKernels = 4
	defaultIdle    = 30 * time.Minute
	defaultPython  = "python3"
	closeTimeout   = 20 * time.Second // for the environments; plugins have their own bound
	// DefaultEnvironment is the target of a Request that names none.
	DefaultEnvironment = "local:"
)

// Engine runs cells and commands in environments. Its methods may be called concurrently. Close it: it owns processes.
type Engine struct {
	cfg        Config
	base       context.Context // Open's values without its cancellation, for what timers do
	log        *slog.Logger
	backends   *registry
	pool       *pool
	store      store
	nonce      string // of this engine's cell ids
	cells      atomic.Int64
	runtime    string
	runtimeDir *launch.Dir
	spills     func() (string, error)

	mu       sync.Mutex
	envs     map[string]*environment
	sessions map[sessionKey]*sessionHandle
	closed   bool
}

// Open makes an Engine. It starts nothing but reads the plugin directories and makes the directories of cfg; plugins and kernels start when they are needed.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	e := &Engine{
		cfg: withDefaults(cfg), base: context.WithoutCancel(ctx), store: store{cfg.StateDir}, nonce: newID(),
		envs: map[string]*environment{}, sessions: map[sessionKey]*sessionHandle{},
	}
	e.log = e.cfg.Logger
	if err := e.makeRuntime(); err != nil {
		return nil, fmt.Errorf("open the engine: %w", err)
	}
	e.spills = sync.OnceValues(e.makeSpillDir)
	e.backends = newRegistry(registryConfig{
		dirs: cfg.PluginDirs, lockFile: cfg.LockFile, builtin: e.cfg.Builtin, runtimeDir: e.runtime, log: e.log,
	})
	e.pool = newPool(e.cfg.KernelIdleTimeout, e.cfg.MaxSessionKernels, e.endKernel)
	return e, nil
}

func withDefaults(cfg Config) Config {
	if cfg.Interpreter == "" {
		cfg.Interpreter = defaultPython
	}
	if cfg.MaxSessionKernels == 0 {
		cfg.MaxSessionKernels = defaultKernels
	}
	if cfg.KernelIdleTimeout == 0 {
		cfg.KernelIdleTimeout = defaultIdle
	}
	cfg.Builtin = slices.Clone(cfg.Builtin)
	for i, b := range cfg.Builtin {
		if b.Args == nil {
			cfg.Builtin[i].Args = plugin.BuiltinArgs(b.Name)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// detachedIdle is how long a kernel of a named session may be idle. "Never" is for kernels that end with their engine.
func (e *Engine) detachedIdle() time.Duration {
	if e.cfg.KernelIdleTimeout < 0 {
		return idleDetached
	}
	return e.cfg.KernelIdleTimeout
}

// newID is 128 random bits in hex.
func newID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// NewCellID returns a fresh id for Request.ID: for callers who want to know it before the cell runs.
func (e *Engine) NewCellID() string { return fmt.Sprintf("%s-%d", e.nonce, e.cells.Add(1)) }

// lastTemp is the temporary directory where the environment names none that works.
const lastTemp = "/tmp"

// makeRuntime makes a directory of this engine's own.
func (e *Engine) makeRuntime() error {
	base := e.cfg.RuntimeDir
	if base != "" {
		if err := privateDir(base); err != nil {
			return fmt.Errorf("runtime directory: %w", err)
		}
	}
	if base == "" {
		base = os.TempDir()
	}
	// Locked while this program lives, so that the next one can tell it from what a dead one has left.
	dir, err := launch.MakeDir(base, launch.OwnerPrefix)
	if err != nil && e.cfg.RuntimeDir == "" && base != lastTemp {
		dir, err = launch.MakeDir(lastTemp, launch.OwnerPrefix) // TMPDIR is of no use
	}
	if err != nil {
		return fmt.Errorf("runtime directory: %w", fileError(err))
	}
	e.runtimeDir, e.runtime = dir, dir.Path()
	return nil
}

func (e *Engine) makeSpillDir() (string, error) {
	dir := e.cfg.SpillDir
	if dir == "" {
		dir = filepath.Join(e.runtime, "spill")
	}
	return dir, privateDir(dir)
}

// Close ends the engine's kernels, environments and plugins and returns when they are gone. Kernels of named sessions go on.
// It is idempotent and bounded, also when ctx has no deadline. New calls fail with plugin.CodeClosed; a cell under way ends as lost, or as unknown where
// it goes on in a named session.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	envs := maps.Clone(e.envs)
	e.mu.Unlock()

	e.pool.close()
	envCtx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	var wg sync.WaitGroup
	errs := make(chan error, len(envs))
	for _, env := range envs {
		wg.Go(func() { errs <- env.close(envCtx) })
	}
	wg.Wait()
	close(errs)
	err := e.backends.close(ctx)
	for envErr := range errs {
		err = errors.Join(err, envErr)
	}
	return errors.Join(err, e.runtimeDir.Remove())
}

// endKernel ends a kernel that the pool has given up. If it cannot be told, it ends with its host.
func (e *Engine) endKernel(ref kernelRef) {
	ctx, cancel := context.WithTimeout(e.base, giveUpAfter)
	defer cancel()
	if _, err := ref.host.request(ctx, fields{"t": "kill", "kernel": ref.id}); err != nil {
		e.log.Debug("end a kernel", "kernel", ref.id, "error", err)
	}
}

// Plugins lists the backends that are built in or found in the plugin directories, usable or not. Nothing is executed for it.
func (e *Engine) Plugins(ctx context.Context) ([]PluginStatus, error) { return e.backends.list(ctx) }

// Backend returns the named backend, started and supervised by this engine.
func (e *Engine) Backend(ctx context.Context, name string) (plugin.Backend, error) {
	if err := e.alive(); err != nil {
		return nil, err
	}
	return e.backends.backend(ctx, name)
}

func (e *Engine) alive() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errEngineClosed
	}
	return nil
}
