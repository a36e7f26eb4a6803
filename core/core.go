// Package core is what a program that embeds Hermes imports: an Engine runs cells of code in persistent kernels.
package core

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/core/kernelhost"
	"github.com/hermes-framework/hermes/core/pool"
	"github.com/hermes-framework/hermes/core/registry"
	"github.com/hermes-framework/hermes/core/secfile"
)

// Version is the version of this module.
const Version = "0.2.0"

const (
	defaultKernels = 4
	defaultIdle    = kernelhost.IdleDetached
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
	backends   *registry.Registry
	pool       *pool.Pool
	store      store
	nonce      string // of this engine's cell ids
	cells      atomic.Int64
	children   atomic.Int64 // numbers the children of owners
	runtime    string
	runtimeDir *registry.Dir
	spills     func() (string, error)

	mu       sync.Mutex
	envs     map[string]*environment
	sessions map[sessionKey]*sessionHandle
	owners   map[string]*Owner // the open ones that are no children
	chosen   chosenIDs
	closed   bool
}

// Open makes an Engine. It starts nothing but reads the plugin directories and makes the directories of cfg; plugins and kernels start when they are needed.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	e := &Engine{
		cfg: withDefaults(cfg), base: context.WithoutCancel(ctx), store: store{cfg.StateDir}, nonce: newID(),
		envs: map[string]*environment{}, sessions: map[sessionKey]*sessionHandle{}, owners: map[string]*Owner{},
	}
	e.chosen.engine = e
	e.log = e.cfg.Logger
	if err := e.makeRuntime(); err != nil {
		return nil, fmt.Errorf("open the engine: %w", err)
	}
	e.spills = sync.OnceValues(e.makeSpillDir)
	e.backends = registry.New(registry.Config{
		Dirs: cfg.PluginDirs, LockFile: cfg.LockFile, Builtin: e.cfg.Builtin, RuntimeDir: e.runtime, Log: e.log,
	})
	e.pool = pool.New(pool.Options{
		Idle: e.cfg.KernelIdleTimeout, Most: e.cfg.MaxSessionKernels, End: e.endKernel, Closed: errEngineClosed,
	})
	return e, nil
}

// detachedIdle is how long a kernel of a named session may be idle. "Never" is for kernels that end with their engine.
func (e *Engine) detachedIdle() time.Duration {
	if e.cfg.KernelIdleTimeout < 0 {
		return kernelhost.IdleDetached
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

// makeRuntime makes a directory of this engine's own.
func (e *Engine) makeRuntime() error {
	dir, err := registry.MakeDir(e.cfg.RuntimeDir)
	if err != nil {
		return fmt.Errorf("runtime directory: %w", err)
	}
	e.runtimeDir, e.runtime = dir, dir.Path()
	return nil
}

func (e *Engine) makeSpillDir() (string, error) {
	dir := e.cfg.SpillDir
	if dir == "" {
		dir = filepath.Join(e.runtime, "spill")
	}
	return dir, secfile.MakeDir(dir)
}

// Close ends the engine's kernels, environments and plugins and returns when they are gone. Kernels of named sessions go on.
// It is idempotent and bounded, also when ctx has no deadline. New calls fail with sdk.CodeClosed; a cell under way ends as lost, or as unknown where
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

	e.pool.Close()
	envCtx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	var wg sync.WaitGroup
	errs := make(chan error, len(envs))
	for _, env := range envs {
		wg.Go(func() { errs <- env.close(envCtx) }) // bounded by envCtx
	}
	wg.Wait()
	close(errs)
	err := e.backends.Close(ctx)
	for envErr := range errs {
		err = errors.Join(err, envErr)
	}
	return errors.Join(err, e.runtimeDir.Remove())
}

// endKernel ends a kernel that the pool has given up. If it cannot be told, it ends with its host.
func (e *Engine) endKernel(ref kernel.Kernel) {
	ctx, cancel := context.WithTimeout(e.base, kernel.GiveUpAfter)
	defer cancel()
	if err := ref.End(ctx); err != nil {
		e.log.Debug("end a kernel", "kernel", ref.ID, "error", err)
	}
}

func (e *Engine) alive() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errEngineClosed
	}
	return nil
}
