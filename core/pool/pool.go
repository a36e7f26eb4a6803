// Package pool lends kernels to cells.
package pool

import (
	"context"
	"sync"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
)

// Why the state of an owner is gone, as far as the pool itself takes it away. Callers of Forget and Lose have reasons of their own.
const (
	Evicted = "evicted" // its kernel was one too many
	Idle    = "idle"    // its kernel ran nothing for too long
	Died    = "died"
	Reset   = "reset" // its owner asked for a fresh kernel
	// Fallback is for Lose: its last cell ran without a kernel, which could not be had.
	Fallback = "fallback"
)

// Key says which kernel serves a cell: equal keys, the same kernel.
type Key struct {
	Owner       string
	Child       int64 // tells a delegated child from every owner and from every other child, whatever they are called; 0: no child
	Environment string
	Language    cell.Language
	Interpreter string
	Dir         string
}

// Owner is one life of an owner, from its first Lend to CloseOwner. It owns the kernels whose keys have its Owner and Child.
// Its fields do not change once it was lent a kernel.
type Owner struct {
	Name   string
	Child  int64
	Pinned bool  // its kernels are not counted, not evicted and not idled out: they are there until CloseOwner
	Closed error // what Lend fails with after CloseOwner

	closed bool              // these belong to the pool's mutex
	ending []<-chan struct{} // closed when what CloseOwner took out has ended
}

// Lease is the hold of one cell on a kernel. Its exported fields do not change.
type Lease struct {
	Kernel kernel.Kernel
	Reused bool   // the kernel was not started for this Lend
	Lost   string // why state that the owner had is gone, and nobody has told yet; Reset if the owner asked for that; empty if nothing was lost

	held  *held
	owner *Owner
}

// Pool lends kernels to cells: one for each key, started once, ended when they have been idle too long or are too many. A kernel that was taken out
// is never lent again, and the next one of its key is not started before it has ended. Its methods may be called concurrently.
type Pool struct {
	opt Options
	wg  sync.WaitGroup // of the goroutines that start and end kernels; Close waits for them

	mu    sync.Mutex // only update takes it
	state poolState
}

// Options say how a Pool works.
type Options struct {
	Idle   time.Duration       // ends a kernel that ran nothing for so long; <= 0: never
	Most   int                 // kernels for each environment that are not pinned; the least recently used idle one ends first; <= 0: no bound
	End    func(kernel.Kernel) // ends a kernel that was taken out; bounded, called in a goroutine of the pool
	Closed error               // what Lend fails with after Close
}

// LendOptions say more about a cell than which kernel it wants.
type LendOptions struct {
	Owner *Owner // nil: nobody's whose life the pool knows; such a kernel is not pinned
	Fresh bool   // end the kernel that is there, whatever it runs, and start another one
}

// New makes a Pool without kernels. The caller must close it.
func New(opt Options) *Pool {
	return &Pool{opt: opt, state: newState(opt)}
}

// update changes or reads the state, and does what the state wants done. It is the only place that does; f must not block.
func (p *Pool) update(f func(*poolState)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.state
	f(s)
	for _, start := range s.starts {
		p.wg.Go(start) // here, not after the lock is free: Close may wait from then on
	}
	for _, k := range s.ends {
		p.wg.Go(func() { p.end(k) })
	}
	s.starts, s.ends = nil, nil
	if at, ok := s.nextReap(); ok {
		s.timer = time.AfterFunc(time.Until(at), p.reap) // close stops it; it does nothing after that
	}
}

// Lend returns a lease on the kernel of key: until GiveBack, idle reaping and eviction leave it alone. If there is none, start makes it; callers that
// come meanwhile wait for that one. start runs in a goroutine of the pool, with the values of ctx: whoever waits for it may be cancelled, and
// the kernel is there for the next one. It must be bounded; Close cancels it, and that nobody has waited for it for ten
// seconds. A failed start is every waiter's error and leaves nothing; if its caller had been cancelled, who waits starts
// another one.
func (p *Pool) Lend(ctx context.Context, key Key, opt LendOptions, start func(context.Context) (kernel.Kernel, error)) (*Lease, error) {
	for {
		var k *held
		var made bool
		var err error
		p.update(func(s *poolState) {
			k, made, err = s.attach(ctx, key, opt)
			if made {
				startCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
				k.cancel = cancel
				s.starts = append(s.starts, func() { p.start(startCtx, k, start) })
			}
		})
		if err != nil {
			return nil, err
		}
		opt.Fresh = false // once is enough, should the fresh one be taken away too

		err = k.wait(ctx)
		var lease *Lease
		p.update(func(s *poolState) {
			if err == nil {
				lease, err = s.lease(k, made, opt.Owner)
			}
			if lease == nil {
				s.detach(k, made)
			}
		})
		if lease != nil || err != nil {
			return lease, err
		}
	}
}

// wait returns when k is up, has failed or was taken out. A kernel that is up is better than a ctx that is done: its cell gets a result that way.
func (k *held) wait(ctx context.Context) error {
	select {
	case <-k.ready:
		return nil
	default:
	}
	select {
	case <-k.ready:
	case <-k.taken:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// start starts k once the kernel that had its key has ended, unless k was taken out meanwhile.
func (p *Pool) start(ctx context.Context, k *held, start func(context.Context) (kernel.Kernel, error)) {
	defer k.cancel()
	if k.before != nil {
		<-k.before // ends are bounded
	}
	wanted := false
	p.update(func(*poolState) { wanted = !k.out })
	err := errTakenOut
	var ref kernel.Kernel
	if wanted {
		ref, err = start(ctx)
	}
	p.update(func(s *poolState) { s.started(k, ref, err) })
}

func (p *Pool) end(k *held) {
	p.opt.End(k.kernel)
	p.update(func(s *poolState) { s.ended(k) })
}

// reap ends the kernels that are idle for too long.
func (p *Pool) reap() {
	p.update(func(s *poolState) { s.reap(time.Now()) })
}

// GiveBack ends a lease, once. What it says is lost counts as told if told is set; else the next lease of its key says it.
func (p *Pool) GiveBack(l *Lease, told bool) {
	p.update(func(s *poolState) {
		if !told {
			s.untold(l)
		}
		s.detach(l.held, false)
	})
}

// Ran counts a cell that ran, or may have run, in the kernel: from then on there is state that can be lost.
func (p *Pool) Ran(l *Lease) {
	p.update(func(s *poolState) { s.ran(l) })
}

// Forget takes out a kernel that is gone already, for the given reason. Nothing is ended, and the next kernel of its key need not wait.
// Of the cells of one kernel one may know better than Died why it is gone: its reason counts, if none was told yet.
func (p *Pool) Forget(l *Lease, reason string) {
	p.update(func(s *poolState) { s.forget(l.held, reason) })
}

// Discard takes out a kernel that takes no cells any more, and has it ended, whether it is gone already or not.
func (p *Pool) Discard(l *Lease) {
	p.update(func(s *poolState) { s.remove(l.held, Died) })
}

// Dead is Forget, reason Died, for whoever has no lease. A kernel that is not the pool's is ignored.
func (p *Pool) Dead(ref kernel.Kernel) {
	p.update(func(s *poolState) {
		if k := s.find(ref); k != nil {
			s.forget(k, Died)
		}
	})
}

// Lose takes out the kernel of key, if there is one, and returns when it has ended or ctx is done; then it ends all the same. In any case the
// next lease of key says reason: what ran beside the kernel has changed the owner's state where no kernel can see it.
// before is the reason that nobody has told until now; it is the caller's to tell.
func (p *Pool) Lose(ctx context.Context, key Key, reason string) (before string, err error) {
	var gone []<-chan struct{}
	p.update(func(s *poolState) { gone, before = s.lose(key, reason) })
	return before, waitAll(ctx, gone)
}

// CloseOwner ends the kernels of an owner, whatever they run, and no others, forgets what it has lost, and lends it none from then on. It returns
// when they have ended, those too that were starting; or when ctx is done, then they end all the same. It is idempotent.
func (p *Pool) CloseOwner(ctx context.Context, o *Owner) error {
	var gone []<-chan struct{}
	p.update(func(s *poolState) { gone = s.closeOwner(o) })
	return waitAll(ctx, gone)
}

// waitAll waits until all channels are closed.
func waitAll(ctx context.Context, all []<-chan struct{}) error {
	for _, c := range all {
		select {
		case <-c:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Close stops lending, and returns when what is being started or ended is done with. Other kernels end with their hosts, which are the caller's.
func (p *Pool) Close() {
	p.update((*poolState).close)
	p.wg.Wait()
}
