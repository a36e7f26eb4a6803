package core

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hermes-framework/hermes/internal/launch"
	"github.com/hermes-framework/hermes/plugin"
)

// registryConfig says where backends are.
type registryConfig struct {
	dirs       []string     // searched in order
	lockFile   string       // empty: nothing in dirs is trusted
	builtin    []Builtin    // come before dirs
	runtimeDir string       // for run directories; must be there, 0700
	log        *slog.Logger // nil: none
}

// registry finds backends, checks that they may run, starts them when they are first needed, watches over them and shares
// them between callers.
type registry struct {
	cfg   registryConfig
	tune  tuning
	ctx   context.Context // ends with close
	end   context.CancelFunc
	sweep sync.Once
	work  sync.WaitGroup // starts, supervisors and probes

	mu       sync.Mutex
	closed   bool
	backends map[string]*supervised
}

// tuning is when what happens. Tests change it.
type tuning struct {
	startTimeout time.Duration
	healthWait   time.Duration // for one answer
	healthMisses int           // until a plugin counts as hung
	probeFirst   time.Duration // from the begin of the first call under way
	probeEvery   time.Duration // while calls are under way

	backoffMin  time.Duration
	backoffMax  time.Duration
	healthy     time.Duration // after so long a crash is the first again
	crashLimit  int           // so many crashes
	crashWindow time.Duration // in this time mean quarantine
	jitter      func() float64
	goneWait    time.Duration // for the end of a process whose connection broke
}

var defaultTuning = tuning{
	startTimeout: 15 * time.Second,
	healthWait:   time.Second,
	healthMisses: 3,
	probeFirst:   2 * time.Second,
	probeEvery:   10 * time.Second,
	backoffMin:   250 * time.Millisecond,
	backoffMax:   30 * time.Second,
	healthy:      time.Minute,
	crashLimit:   5,
	crashWindow:  10 * time.Minute,
	jitter:       rand.Float64,
	goneWait:     250 * time.Millisecond,
}

func newRegistry(cfg registryConfig) *registry {
	if cfg.log == nil {
		cfg.log = slog.New(slog.DiscardHandler)
	}
	// The registry's plugins outlive the call that starts them, and end with close.
	ctx, end := context.WithCancel(context.Background()) //nolint:forbidigo // the root of what close ends
	return &registry{cfg: cfg, tune: defaultTuning, ctx: ctx, end: end, backends: make(map[string]*supervised)}
}

// backend returns the backend with this name, or the one that serves targets with this scheme. It is running when backend returns; the
// Backend survives crashes of its plugin, and is shared.
func (r *registry) backend(ctx context.Context, name string) (plugin.Backend, error) {
	found, err := r.find(name)
	if err != nil {
		return nil, err
	}
	b, err := r.supervised(found.name)
	if err != nil {
		return nil, err
	}
	if _, err := b.acquire(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

func (r *registry) supervised(name string) (*supervised, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errRegistryClosed
	}
	b, ok := r.backends[name]
	if !ok {
		b = &supervised{r: r, name: name}
		r.backends[name] = b
	}
	return b, nil
}

var errRegistryClosed = &plugin.Error{Code: plugin.CodeClosed, Message: "the engine is closed"}

// close ends all plugins, side by side, and returns when nothing that the registry began is left. It is idempotent, and bounded also if
// ctx has no end.
func (r *registry) close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.end()

	// Nothing is added to backends any more, and no start begins; those under way end at once.
	errs := make(chan error, len(r.backends))
	var stops sync.WaitGroup
	for _, b := range r.backends {
		stops.Go(func() { errs <- b.stop(ctx) })
	}
	stops.Wait()
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	if all == nil { // else there is a process that nobody can end, and waiting for it would take for ever
		r.work.Wait()
	}
	return all
}

// sweepLeftovers removes what dead programs have left in the runtime directory, and beside it if it is one program's own.
func (r *registry) sweepLeftovers() {
	base := r.cfg.runtimeDir
	swept := launch.Sweep(base)
	if strings.HasPrefix(filepath.Base(base), launch.OwnerPrefix) {
		swept = append(swept, launch.Sweep(filepath.Dir(base))...)
	}
	for _, dir := range swept {
		r.cfg.log.Debug("removed what a dead program had left", "directory", dir)
	}
}

// spec says how to launch the backend called name. It is asked anew for each start: the binary and the lock may have changed.
func (r *registry) spec(name string) (launch.Spec, error) {
	found, err := r.find(name)
	if err != nil {
		return launch.Spec{}, err
	}
	spec := launch.Spec{
		Name:       found.name,
		Path:       found.path,
		RuntimeDir: r.cfg.runtimeDir,
		Handshake: launch.Handshake{
			CookieKey: plugin.CookieKey, CookieValue: plugin.CookieValue, Versions: []int{plugin.ProtocolVersion},
		},
		StartTimeout: r.tune.startTimeout,
		DialOptions:  plugin.DialOptions(),
		Shutdown:     shutdown,
		Logger:       r.cfg.log,
	}
	if found.builtin != nil {
		spec.Trusted, spec.Args, spec.Env = true, found.builtin.Args, found.builtin.Env
		return spec, nil
	}
	trusted, err := readTrust(r.cfg.lockFile)
	if err != nil {
		return launch.Spec{}, err
	}
	spec.Check = func(sum string) error { return trusted.check(found.name, found.path, sum) }
	return spec, nil
}
