package core

import (
	"context"
	"sync"
	"time"
)

// kernelKey says which kernel serves a cell.
type kernelKey struct {
	owner       string
	environment string
	language    Language
	interpreter string
	dir         string
}

// kernelRef is a kernel of a kernel host.
type kernelRef struct {
	id   string
	pid  int
	host *hostConn
}

// pooled is a kernel of the pool. Its fields belong to the pool's mutex; ready is closed when start has returned.
type pooled struct {
	key       kernelKey
	ref       kernelRef
	err       error
	ready     chan struct{}
	abandoned bool // err came because the caller who started it was cancelled
	users     int  // cells attached to it, queued ones too
	cells     int
	started   time.Time
	lastUsed  time.Time
	gone      bool   // taken out: whoever still holds it must not use it again
	lost      string // why the state that its owner had before it is gone
}

// pool lends kernels to cells: one for each key, started once, ended when they have been idle too long or are too many.
type pool struct {
	idle time.Duration // <= 0: never
	most int           // <= 0: no bound; for each environment
	end  func(kernelRef)

	mu      sync.Mutex
	kernels map[kernelKey]*pooled
	lost    map[kernelKey]string // told with the next kernel of that key
	timer   *time.Timer
	closed  bool
	wg      sync.WaitGroup // of the goroutines that end kernels
}

func newPool(idle time.Duration, most int, end func(kernelRef)) *pool {
	return &pool{idle: idle, most: most, end: end, kernels: map[kernelKey]*pooled{}, lost: map[kernelKey]string{}}
}

// lend returns the kernel of key, attached: idle reaping and eviction leave it alone until giveBack. If there is none, start makes it; callers
// that come meanwhile wait for that one. A failed start is every waiter's error and leaves nothing.
func (p *pool) lend(ctx context.Context, key kernelKey, start func(context.Context) (kernelRef, error)) (k *pooled, reused bool, err error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, false, errEngineClosed
	}
	k = p.kernels[key]
	if k == nil {
		k = &pooled{key: key, ready: make(chan struct{}), users: 1, lost: p.lost[key]}
		p.kernels[key] = k
		p.mu.Unlock()
		return k, false, p.start(ctx, k, start)
	}
	k.users++
	p.mu.Unlock()

	select {
	case <-k.ready:
	case <-ctx.Done():
		p.giveBack(k)
		return nil, false, context.Cause(ctx)
	}
	if k.err != nil {
		p.giveBack(k)
		if k.abandoned && ctx.Err() == nil {
			return p.lend(ctx, key, start) // whoever started it was cancelled: that is no reason for this caller
		}
		return nil, false, k.err
	}
	return k, true, nil
}

func (p *pool) start(ctx context.Context, k *pooled, start func(context.Context) (kernelRef, error)) error {
	ref, err := start(ctx)
	p.mu.Lock()
	k.ref, k.err, k.started, k.lastUsed = ref, err, time.Now(), time.Now()
	k.abandoned = err != nil && ctx.Err() != nil
	if err != nil {
		p.remove(k, "")
		k.users--
	} else {
		delete(p.lost, k.key)
	}
	extra := p.surplus(k)
	closed := p.closed && err == nil
	if closed {
		p.remove(k, "")
		k.err = errEngineClosed
	}
	p.mu.Unlock()
	close(k.ready)
	for _, old := range extra {
		p.end(old.ref)
	}
	if closed {
		p.end(ref)
		return errEngineClosed
	}
	return err
}

// surplus takes out idle kernels, the least recently used first, until the environment of k is within bounds.
func (p *pool) surplus(k *pooled) []*pooled {
	var out []*pooled
	for p.most > 0 && p.count(k.key.environment) > p.most {
		var oldest *pooled
		for _, o := range p.kernels {
			if o != k && o.key.environment == k.key.environment && o.users == 0 && (oldest == nil || o.lastUsed.Before(oldest.lastUsed)) {
				oldest = o
			}
		}
		if oldest == nil {
			break
		}
		p.remove(oldest, "evicted")
		out = append(out, oldest)
	}
	return out
}

func (p *pool) count(environment string) int {
	n := 0
	for key := range p.kernels {
		if key.environment == environment {
			n++
		}
	}
	return n
}

// remove takes k out. A reason is told with the next kernel of its key. The caller holds mu.
func (p *pool) remove(k *pooled, reason string) {
	if p.kernels[k.key] != k {
		return
	}
	delete(p.kernels, k.key)
	k.gone = true
	if reason != "" && k.cells > 0 {
		p.lost[k.key] = reason
	}
}

// giveBack ends one cell's hold on k.
func (p *pool) giveBack(k *pooled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k.users--
	k.lastUsed = time.Now()
	p.schedule()
}

// ran counts a cell that k was given, and returns how many that makes.
func (p *pool) ran(k *pooled) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	k.cells++
	return k.cells
}

// forget takes out a kernel that is gone for the given reason.
func (p *pool) forget(k *pooled, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(k, reason)
}

// discard takes the kernel of key out and ends it, because its owner asked for a fresh one. It reports whether there was one.
func (p *pool) discard(key kernelKey) bool {
	p.mu.Lock()
	k := p.kernels[key]
	if k != nil {
		p.remove(k, "")
	}
	had := k != nil || p.lost[key] != ""
	delete(p.lost, key)
	p.mu.Unlock()
	if k != nil {
		<-k.ready // its starter is bounded
		if k.err == nil {
			p.end(k.ref)
		}
	}
	return had
}

// schedule sets the timer to the moment when the next kernel will have been idle for too long. The caller holds mu.
func (p *pool) schedule() {
	if p.idle <= 0 || p.closed {
		return
	}
	next := time.Duration(-1)
	for _, k := range p.kernels {
		if k.users > 0 {
			continue
		}
		if left := max(0, time.Until(k.lastUsed.Add(p.idle))); next < 0 || left < next {
			next = left
		}
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	if next >= 0 {
		p.timer = time.AfterFunc(next, p.reap)
	}
}

// reap ends the kernels that are idle for too long.
func (p *pool) reap() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	for _, k := range p.kernels {
		if k.users == 0 && time.Since(k.lastUsed) >= p.idle {
			p.remove(k, "idle")
			p.wg.Go(func() { p.end(k.ref) })
		}
	}
	p.schedule()
	p.mu.Unlock()
}

// find returns the kernel with that id.
func (p *pool) find(id string) *pooled {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kernels {
		if k.ref.id == id {
			return k
		}
	}
	return nil
}

// close stops lending. Kernels end with their hosts, which are the caller's.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
