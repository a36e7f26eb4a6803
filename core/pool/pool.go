// Package pool lends kernels to cells.
package pool

import (
	"context"
	"sync"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
)

// Key says which kernel serves a cell: equal keys, the same kernel.
type Key struct {
	Owner       string
	Environment string
	Language    cell.Language
	Interpreter string
	Dir         string
}

// Lent is a kernel of the pool. Kernel and Lost do not change after Lend has returned it; the other fields belong to the pool's mutex.
type Lent struct {
	Kernel kernel.Kernel
	Lost   string // why the state that its owner had before it is gone; empty if nothing was lost

	key       Key
	err       error
	ready     chan struct{} // closed when start has returned
	abandoned bool          // err came because the caller who started it was cancelled
	users     int           // cells attached to it, queued ones too
	cells     int
	lastUsed  time.Time
}

// Pool lends kernels to cells: one for each key, started once, ended when they have been idle too long or are too many. Its methods may be called
// concurrently.
type Pool struct {
	opt Options

	mu      sync.Mutex
	kernels map[Key]*Lent
	lost    map[Key]string // told with the next kernel of that key
	timer   *time.Timer
	closed  bool
	wg      sync.WaitGroup // of the goroutines that end kernels
}

// Options say how a Pool works.
type Options struct {
	Idle   time.Duration       // ends a kernel that ran nothing for so long; <= 0: never
	Most   int                 // kernels for each environment; the least recently used idle one ends first; <= 0: no bound
	End    func(kernel.Kernel) // ends a kernel that the pool has given up; bounded, called without the pool's lock
	Closed error               // what Lend fails with after Close
}

// New makes a Pool without kernels. The caller must close it.
func New(opt Options) *Pool {
	return &Pool{opt: opt, kernels: map[Key]*Lent{}, lost: map[Key]string{}}
}

// Lend returns the kernel of key, attached: idle reaping and eviction leave it alone until GiveBack. If there is none, start makes it; callers
// that come meanwhile wait for that one. A failed start is every waiter's error and leaves nothing.
func (p *Pool) Lend(ctx context.Context, key Key, start func(context.Context) (kernel.Kernel, error)) (k *Lent, reused bool, err error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, false, p.opt.Closed
	}
	k = p.kernels[key]
	if k == nil {
		k = &Lent{key: key, ready: make(chan struct{}), users: 1, Lost: p.lost[key]}
		p.kernels[key] = k
		p.mu.Unlock()
		return k, false, p.start(ctx, k, start)
	}
	k.users++
	p.mu.Unlock()

	select {
	case <-k.ready:
	case <-ctx.Done():
		p.GiveBack(k)
		return nil, false, context.Cause(ctx)
	}
	if k.err != nil {
		p.GiveBack(k)
		if k.abandoned && ctx.Err() == nil {
			return p.Lend(ctx, key, start) // whoever started it was cancelled: that is no reason for this caller
		}
		return nil, false, k.err
	}
	return k, true, nil
}

func (p *Pool) start(ctx context.Context, k *Lent, start func(context.Context) (kernel.Kernel, error)) error {
	ref, err := start(ctx)
	p.mu.Lock()
	k.Kernel, k.err, k.lastUsed = ref, err, time.Now()
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
		k.err = p.opt.Closed
	}
	p.mu.Unlock()
	close(k.ready)
	for _, old := range extra {
		p.opt.End(old.Kernel)
	}
	if closed {
		p.opt.End(ref)
		return p.opt.Closed
	}
	return err
}

// surplus takes out idle kernels, the least recently used first, until the environment of k is within bounds.
func (p *Pool) surplus(k *Lent) []*Lent {
	var out []*Lent
	for p.opt.Most > 0 && p.count(k.key.Environment) > p.opt.Most {
		var oldest *Lent
		for _, o := range p.kernels {
			if o != k && o.key.Environment == k.key.Environment && o.users == 0 && (oldest == nil || o.lastUsed.Before(oldest.lastUsed)) {
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

func (p *Pool) count(environment string) int {
	n := 0
	for key := range p.kernels {
		if key.Environment == environment {
			n++
		}
	}
	return n
}

// remove takes k out. A reason is told with the next kernel of its key. The caller holds mu.
func (p *Pool) remove(k *Lent, reason string) {
	if p.kernels[k.key] != k {
		return
	}
	delete(p.kernels, k.key)
	if reason != "" && k.cells > 0 {
		p.lost[k.key] = reason
	}
}

// GiveBack ends one cell's hold on k.
func (p *Pool) GiveBack(k *Lent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k.users--
	k.lastUsed = time.Now()
	p.schedule()
}

// Ran counts a cell that k was given: from then on there is state that can be lost.
func (p *Pool) Ran(k *Lent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k.cells++
}

// Forget takes out a kernel that is gone for the given reason.
func (p *Pool) Forget(k *Lent, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(k, reason)
}

// Discard takes the kernel of key out and ends it, because its owner asked for a fresh one. It reports whether there was one.
func (p *Pool) Discard(key Key) bool {
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
			p.opt.End(k.Kernel)
		}
	}
	return had
}

// schedule sets the timer to the moment when the next kernel will have been idle for too long. The caller holds mu.
func (p *Pool) schedule() {
	if p.opt.Idle <= 0 || p.closed {
		return
	}
	next := time.Duration(-1)
	for _, k := range p.kernels {
		if k.users > 0 {
			continue
		}
		if left := max(0, time.Until(k.lastUsed.Add(p.opt.Idle))); next < 0 || left < next {
			next = left
		}
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	if next >= 0 {
		p.timer = time.AfterFunc(next, p.reap) // Close stops it; it does nothing after that
	}
}

// reap ends the kernels that are idle for too long.
func (p *Pool) reap() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	for _, k := range p.kernels {
		if k.users == 0 && time.Since(k.lastUsed) >= p.opt.Idle {
			p.remove(k, "idle")
			p.wg.Go(func() { p.opt.End(k.Kernel) }) // Close waits for it
		}
	}
	p.schedule()
	p.mu.Unlock()
}

// Find returns the kernel with that id, or nil.
func (p *Pool) Find(id string) *Lent {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kernels {
		if k.Kernel.ID == id {
			return k
		}
	}
	return nil
}

// Close stops lending. Kernels end with their hosts, which are the caller's.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
