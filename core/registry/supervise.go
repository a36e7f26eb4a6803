package registry

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/hermes-framework/hermes/internal/launch"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// supervised is a backend whose plugin may crash and be started again. It implements sdk.Backend.
type supervised struct {
	r    *Registry
	name string

	mu       sync.Mutex
	current  *instance // nil, or the last one that started
	starting *start    // nil, or the start under way
	record   crashRecord
	started  int
}

var _ sdk.Backend = (*supervised)(nil)

// start is one attempt, shared by everybody who waits for it.
type start struct {
	done     chan struct{}
	instance *instance
	err      error
}

// acquire returns a running instance and starts one if there is none. However many callers there are, one process starts.
func (b *supervised) acquire(ctx context.Context) (*instance, error) {
	b.mu.Lock()
	if inst := b.current; inst != nil && inst.hasExited() {
		// What is sent to a dead process cannot be told from what it has read; so nothing is sent, even if watch is not here yet.
		b.mu.Unlock()
		<-inst.gone
		b.mu.Lock()
	}
	if b.current != nil && !b.current.isGone() {
		defer b.mu.Unlock()
		return b.current, nil
	}
	s := b.starting
	if s == nil {
		var err error
		if s, err = b.begin(); err != nil {
			b.mu.Unlock()
			return nil, err
		}
	}
	b.mu.Unlock()

	select {
	case <-s.done:
		return s.instance, s.err
	case <-ctx.Done():
		return nil, gaveUp(ctx, b.name)
	}
}

// begin begins a start, in a goroutine that belongs to the registry: it goes on if the caller gives up. b.mu is held.
func (b *supervised) begin() (*start, error) {
	now := time.Now()
	if b.record.last != nil && b.record.binary != b.r.fingerprint(b.name) {
		b.record = crashRecord{} // another build deserves a fresh start
	}
	if err := b.record.quarantine(b.name, b.r.tune, now); err != nil {
		return nil, err
	}
	// Under this lock either close sees the start and waits for it, or no start begins.
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	if b.r.closed {
		return nil, errClosed
	}
	s := &start{done: make(chan struct{})}
	b.starting = s
	wait := b.record.notBefore.Sub(now)
	b.r.work.Go(func() { b.run(s, wait) }) // ends with the start or r.ctx; Close waits for it
	return s, nil
}

// run starts an instance and tells everybody who waits.
func (b *supervised) run(s *start, wait time.Duration) {
	err := pause(b.r.ctx, wait)
	var inst *instance
	if err == nil {
		inst, err = b.launch()
	}
	if b.r.ctx.Err() != nil && err != nil {
		err = errClosed
	}

	b.mu.Lock()
	if blames(err) {
		b.record.crashed(err, 0, b.r.tune, b.r.fingerprint(b.name))
	}
	if inst != nil {
		b.current = inst
	}
	b.starting = nil
	b.mu.Unlock()

	s.instance = inst
	if err != nil {
		s.err = startError(err)
	}
	close(s.done)
}

// pause waits for d, or less if ctx is done first; then it returns the cause.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *supervised) launch() (*instance, error) {
	b.r.sweep.Do(b.r.sweepLeftovers)
	spec, err := b.r.spec(b.name)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	process, err := launch.Start(b.r.ctx, spec)
	if err != nil {
		return nil, err
	}
	b.r.cfg.Log.Debug("plugin started", "plugin", b.name, "pid", process.PID(), "ms", time.Since(began).Milliseconds())

	b.started++
	inst := &instance{
		b: b, process: process, client: sdk.NewClient(process.Conn()), number: b.started, began: time.Now(),
		gone: make(chan struct{}),
	}
	b.r.work.Go(inst.watch) // ends with the process, which Close ends before it waits
	return inst, nil
}

// stop ends the plugin, and waits for a start under way: that ends by itself, as the registry's ctx is done.
func (b *supervised) stop(ctx context.Context) error {
	b.mu.Lock()
	s := b.starting
	b.mu.Unlock()
	if s != nil {
		<-s.done
	}
	b.mu.Lock()
	inst := b.current
	b.mu.Unlock()
	if inst == nil {
		return nil
	}
	return inst.stop(ctx)
}

// runs reports whether there is a living instance.
func (b *supervised) runs() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.current != nil && !b.current.isGone()
}

func (b *supervised) state() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	switch {
	case b.current != nil && !b.current.isGone():
		return stateRunning
	case b.record.quarantine(b.name, b.r.tune, now) != nil:
		return stateQuarantined
	case now.Before(b.record.notBefore):
		return stateBackoff
	}
	return stateStopped
}

// call makes a call to the plugin. If the plugin is lost under it the call is made once more, on a new instance, provided that
// again says that this does no harm; else the error says what may have happened.
func (b *supervised) call(ctx context.Context, again func(error) bool, f func(*instance) error) error {
	for first := true; ; first = false {
		inst, err := b.acquire(ctx)
		if err != nil {
			return err
		}
		inst.begin()
		err = f(inst)
		inst.end()
		if err == nil || !inst.lostBy(ctx, err) {
			return err
		}
		if !first || ctx.Err() != nil || !again(err) {
			return inst.why.failed(sdk.AsError(err, sdk.MayHaveRun).Delivery)
		}
		b.r.cfg.Log.Warn("call made again on a new instance of the plugin", "plugin", b.name, "error", inst.why)
	}
}

// always is the again of calls that may be made twice.
func always(error) bool { return true }

// Info implements sdk.Backend. The plugin is asked once in its life.
func (b *supervised) Info(ctx context.Context) (sdk.Info, error) {
	var info sdk.Info
	err := b.call(ctx, always, func(inst *instance) error {
		var err error
		info, err = inst.describe(ctx)
		return err
	})
	return info, err
}

// Open implements sdk.Backend. The Environment survives crashes of the plugin: it is opened again, by its ID, when it is next used.
func (b *supervised) Open(ctx context.Context, req sdk.OpenRequest) (sdk.Environment, error) {
	env := newSupervisedEnvironment(b, req)
	err := b.call(ctx, always, func(inst *instance) error {
		_, err := env.on(ctx, inst)
		return err
	})
	if err != nil {
		return nil, err
	}
	return env, nil
}

// instance is one life of a plugin.
type instance struct {
	b       *supervised
	process *launch.Process
	client  *sdk.Client
	number  int // counts the lives
	began   time.Time
	gone    chan struct{} // closed when the process has ended and why is set
	why     *crash

	mu       sync.Mutex
	info     *sdk.Info
	calls    int // under way
	probe    *time.Timer
	hung     bool
	stopping bool
}

func (i *instance) isGone() bool {
	select {
	case <-i.gone:
		return true
	default:
		return false
	}
}

// hasExited says whether the process has ended, which watch may not have noted yet.
func (i *instance) hasExited() bool {
	select {
	case <-i.process.Done():
		return true
	default:
		return false
	}
}

// watch waits for the end of the process, whatever brings it about, and clears up after it.
func (i *instance) watch() {
	<-i.process.Done()
	exit := i.process.Exit()
	i.mu.Lock()
	why := &crash{name: i.b.name, exit: exit, hung: i.hung, when: time.Now()}
	expected := i.stopping
	i.mu.Unlock()

	if !expected {
		i.b.mu.Lock()
		i.b.record.crashed(why, time.Since(i.began), i.b.r.tune, i.b.r.fingerprint(i.b.name))
		i.b.mu.Unlock()
		i.b.r.cfg.Log.Error("plugin ended", "plugin", i.b.name, "pid", i.process.PID(), "how", exit.String(), "hung", why.hung,
			"out_of_memory", exit.OutOfMemory, "stderr", lastPart(exit.Stderr, 2000))
	}
	i.why = why
	close(i.gone)
	if err := i.process.Kill(); err != nil { // it is dead: this removes its directory
		i.b.r.cfg.Log.Warn("clear up after a plugin", "plugin", i.b.name, "error", err)
	}
}

func lastPart(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// stop ends the plugin on purpose.
func (i *instance) stop(ctx context.Context) error {
	i.mu.Lock()
	i.stopping = true
	i.mu.Unlock()
	return i.process.Stop(ctx)
}

func shutdown(ctx context.Context, conn *grpc.ClientConn) error {
	return sdk.NewClient(conn).Shutdown(ctx)
}

func (i *instance) describe(ctx context.Context) (sdk.Info, error) {
	i.mu.Lock()
	known := i.info
	i.mu.Unlock()
	if known != nil {
		return cloneInfo(*known), nil
	}
	info, err := i.client.Info(ctx)
	if err != nil {
		return sdk.Info{}, err
	}
	i.mu.Lock()
	i.info = &info
	i.mu.Unlock()
	return cloneInfo(info), nil
}

func cloneInfo(info sdk.Info) sdk.Info {
	info.Schemes, info.Capabilities = slices.Clone(info.Schemes), slices.Clone(info.Capabilities)
	return info
}

// lostBy says whether err comes from the loss of the instance, not from the backend. When it does, the instance is gone.
func (i *instance) lostBy(ctx context.Context, err error) bool {
	if ctx.Err() != nil && !errors.Is(err, sdk.ErrCrashed) {
		return false // that is why it failed
	}
	if i.isGone() {
		return isLoss(err) || errors.Is(err, sdk.ErrInternal) || errors.Is(err, sdk.ErrCanceled)
	}
	if !isLoss(err) {
		return false
	}
	// The connection breaks a moment before the process is known to be dead.
	timer := time.NewTimer(i.b.r.tune.goneWait)
	defer timer.Stop()
	select {
	case <-i.gone:
		return true
	case <-timer.C:
	}
	if i.process.Conn().GetState() == connectivity.Ready {
		return false // the backend itself says that something cannot be reached
	}
	if i.process.Kill() != nil { // alive, and cannot be talked to
		return false // not even killed; watch reports it
	}
	<-i.gone
	return true
}

// isLoss says whether an error is one that a lost connection causes.
func isLoss(err error) bool {
	return errors.Is(err, sdk.ErrCrashed) || errors.Is(err, sdk.ErrUnavailable)
}

// begin notes that a call is under way. Only then is the plugin asked for signs of life: an idle program does not wake up.
func (i *instance) begin() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls++
	if i.calls == 1 {
		i.arm(i.b.r.tune.probeFirst)
	}
}

func (i *instance) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls--
	if i.calls == 0 {
		i.disarm()
	}
}

// arm sets the timer of the next probe, unless the plugin is being stopped. i.mu is held.
func (i *instance) arm(d time.Duration) {
	i.disarm()
	if i.stopping {
		return // close may wait for the work already
	}
	i.b.r.work.Add(1)                    // until the probe has run, or was disarmed
	i.probe = time.AfterFunc(d, func() { // counted in work, for which Close waits
		defer i.b.r.work.Done()
		i.check()
	})
}

// disarm stops the timer. i.mu is held.
func (i *instance) disarm() {
	if i.probe != nil && i.probe.Stop() {
		i.b.r.work.Done()
	}
	i.probe = nil
}

// check asks for a sign of life, and ends a plugin that gives none.
func (i *instance) check() {
	if i.answers() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.calls > 0 {
			i.arm(i.b.r.tune.probeEvery)
		}
		return
	}
	i.mu.Lock()
	i.hung = !i.isGone() && !i.stopping
	hung := i.hung
	i.mu.Unlock()
	if hung {
		i.b.r.cfg.Log.Error("plugin does not answer and is replaced", "plugin", i.b.name, "pid", i.process.PID())
		_ = i.process.Kill() // watch reports what cannot be ended
	}
}

// answers makes the health call until it is answered or the misses are enough.
func (i *instance) answers() bool {
	for range i.b.r.tune.healthMisses {
		ctx, cancel := context.WithTimeout(i.b.r.ctx, i.b.r.tune.healthWait)
		err := i.client.Health(ctx)
		cancel()
		if err == nil || i.b.r.ctx.Err() != nil {
			return true
		}
	}
	return false
}

// crashRecord decides when a plugin that crashed may be started again.
type crashRecord struct {
	inRow     int // crashes without a time of health in between
	recent    []time.Time
	last      error
	binary    string // fingerprint of the one that crashed
	notBefore time.Time
}

// crashed adds a crash of an instance of this binary that had lived for so long.
func (c *crashRecord) crashed(why error, lived time.Duration, tune tuning, binary string) {
	now := time.Now()
	if lived >= tune.healthy {
		c.inRow = 0
	}
	wait := min(tune.backoffMin<<min(c.inRow, 20), tune.backoffMax)
	wait += time.Duration(float64(wait) * 0.2 * tune.jitter())
	c.inRow++
	c.notBefore = now.Add(min(wait, tune.backoffMax))
	c.recent = append(slices.DeleteFunc(c.recent, func(t time.Time) bool { return now.Sub(t) > tune.crashWindow }), now)
	c.last, c.binary = why, binary
}

// quarantine is the error of a start that must not be made; nil if it may.
func (c *crashRecord) quarantine(name string, tune tuning, now time.Time) error {
	if len(c.recent) < tune.crashLimit {
		return nil
	}
	until := c.recent[len(c.recent)-tune.crashLimit].Add(tune.crashWindow)
	if !now.Before(until) {
		return nil
	}
	return quarantined(name, tune.crashLimit, tune.crashWindow, c.last, until)
}
