// Package registry finds, supervises and shares the plugins of backends.
package registry

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
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Builtin is a backend that lives in the embedding program itself, which is started once more to serve it, see sdk.ServeBuiltin.
type Builtin struct {
	Name string
	Path string   // the program; empty: the running one
	Args []string // nil: sdk.BuiltinArgs(Name)
	Env  []string // "K=V" entries, added to the allow-listed environment of every plugin
}

// PluginStatus is a backend that the engine knows of.
type PluginStatus struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	Builtin bool   `json:"builtin"`
	Trusted bool   `json:"trusted"`
	SHA256  string `json:"sha256,omitempty"`
	Problem string `json:"problem,omitempty"` // why it cannot be used, in a sentence
	State   string `json:"state"`             // stopped, running, backoff, quarantined
}

// Config says where backends are.
type Config struct {
	Dirs       []string     // searched in order; absolute
	LockFile   string       // empty: nothing in Dirs is trusted
	Builtin    []Builtin    // come before Dirs
	RuntimeDir string       // for run directories; must be there, 0700
	Log        *slog.Logger // nil: none
}

// Registry finds backends, checks that they may run, starts them when they are first needed, watches over them and shares
// them between callers. Its methods may be called concurrently.
type Registry struct {
	cfg   Config
	tune  tuning
	ctx   context.Context // ends with Close
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

// New makes a Registry. It starts nothing. The caller must close it.
func New(cfg Config) *Registry {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	// The registry's plugins outlive the call that starts them, and end with Close.
	ctx, end := context.WithCancel(context.Background()) //nolint:forbidigo // the root of what Close ends
	return &Registry{cfg: cfg, tune: defaultTuning, ctx: ctx, end: end, backends: make(map[string]*supervised)}
}

// Backend returns the backend with this name, or the one that serves targets with this scheme. It is running when this returns; the
// Backend survives crashes of its plugin, and is shared.
func (r *Registry) Backend(ctx context.Context, name string) (sdk.Backend, error) {
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

func (r *Registry) supervised(name string) (*supervised, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosed
	}
	b, ok := r.backends[name]
	if !ok {
		b = &supervised{r: r, name: name}
		r.backends[name] = b
	}
	return b, nil
}

var errClosed = &sdk.Error{Code: sdk.CodeClosed, Message: "the engine is closed"}

// Close ends all plugins, side by side, and returns when nothing that the registry began is left. It is idempotent, and bounded also if
// ctx has no end.
func (r *Registry) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.end()

	// Nothing is added to backends any more, and no start begins; those under way end at once.
	errs := make(chan error, len(r.backends))
	var stops sync.WaitGroup
	for _, b := range r.backends {
		stops.Go(func() { errs <- b.stop(ctx) }) // bounded
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
func (r *Registry) sweepLeftovers() {
	base := r.cfg.RuntimeDir
	swept := launch.Sweep(base)
	if strings.HasPrefix(filepath.Base(base), launch.OwnerPrefix) {
		swept = append(swept, launch.Sweep(filepath.Dir(base))...)
	}
	for _, dir := range swept {
		r.cfg.Log.Debug("removed what a dead program had left", "directory", dir)
	}
}

// spec says how to launch the backend called name. It is asked anew for each start: the binary and the lock may have changed.
func (r *Registry) spec(name string) (launch.Spec, error) {
	found, err := r.find(name)
	if err != nil {
		return launch.Spec{}, err
	}
	spec := launch.Spec{
		Name:       found.name,
		Path:       found.path,
		RuntimeDir: r.cfg.RuntimeDir,
		Handshake: launch.Handshake{
			CookieKey: sdk.CookieKey, CookieValue: sdk.CookieValue, Versions: []int{sdk.ProtocolVersion},
		},
		StartTimeout: r.tune.startTimeout,
		DialOptions:  sdk.DialOptions(),
		Shutdown:     shutdown,
		Logger:       r.cfg.Log,
	}
	if found.builtin != nil {
		spec.Trusted, spec.Args, spec.Env = true, found.builtin.Args, found.builtin.Env
		return spec, nil
	}
	trusted, err := readTrust(r.cfg.LockFile)
	if err != nil {
		return launch.Spec{}, err
	}
	spec.Check = func(sum string) error { return trusted.check(found.name, found.path, sum) }
	return spec, nil
}
