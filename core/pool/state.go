package pool

import (
	"container/list"
	"context"
	"errors"
	"time"

	"github.com/hermes-framework/hermes/core/kernel"
)

// errTakenOut is the error of a start that did not begin. Nobody waits for it: who did was told to try again.
var errTakenOut = errors.New("the kernel was taken out before it was started")

// held is a kernel of the pool from the moment somebody wants it until it has ended:
//
//	starting → up → ended       taken out while it is up
//	starting → up → ended       taken out while it starts: it is ended when it is up
//	starting → ended            its start failed, or never began
//
// What is fixed stands first; the rest belongs to the pool's mutex.
type held struct {
	key    Key
	pinned bool
	before <-chan struct{} // closed when the kernel that had the key has ended; nil: there was none
	ready  chan struct{}   // closed when start has returned; kernel and err do not change after that
	taken  chan struct{}   // closed when it is taken out
	gone   chan struct{}   // closed when it has ended, and those before it
	cancel context.CancelFunc

	kernel kernel.Kernel
	err    error
	up     bool
	out    bool   // taken out: it is lent to nobody from now on
	why    string // reason that was given for that; empty if there was none, or nobody is to be told
	noted  bool   // why is, or was, among the losses
	users  int    // cells attached to it, queued ones too, and those that wait for its start
	maker  bool   // the caller whose Lend started it is waiting, and is the one to tell what was lost
	left   bool   // that caller gave up while it was starting
	cells  int

	lastUsed time.Time
	place    *list.Element // in the shelf's idle list
}

// unwantedStart is how long a start goes on that nobody waits for any more.
const unwantedStart = 10 * time.Second

// shelf holds the kernels of an environment that may be ended when they are too many or idle: all but the pinned ones.
type shelf struct {
	live int        // those that are up and not taken out
	idle *list.List // of those, the ones without a cell, least recently used first
}

// poolState is what the callers of a Pool share. Its methods do not block; what they want done outside the lock they leave in starts and ends.
type poolState struct {
	idle    time.Duration
	most    int
	errDone error // what Lend fails with after close

	closed  bool
	newest  map[Key]*held     // the latest kernel of each key until it has ended; it may be taken out already
	shelves map[string]*shelf // by environment
	lost    losses
	timer   *time.Timer // calls reap; nil: not set

	starts []func()
	ends   []*held
}

func newState(opt Options) poolState {
	return poolState{
		idle: opt.Idle, most: opt.Most, errDone: opt.Closed,
		newest: map[Key]*held{}, shelves: map[string]*shelf{}, lost: newLosses(),
	}
}

// attach counts one more user of the kernel of key. made says that it is a new one, which the caller must start.
func (s *poolState) attach(ctx context.Context, key Key, opt LendOptions) (k *held, made bool, err error) {
	switch {
	case s.closed:
		return nil, false, s.errDone
	case opt.Owner != nil && opt.Owner.closed:
		return nil, false, opt.Owner.Closed
	}
	last := s.newest[key]
	if last != nil && !last.out && !opt.Fresh {
		last.users++
		s.unshelve(last)
		return last, false, nil
	}
	if ctx.Err() != nil { // for a caller who is gone already nothing is ended and nothing started
		return nil, false, context.Cause(ctx)
	}
	if opt.Fresh {
		s.reset(key)
	}
	k = &held{
		key: key, pinned: opt.Owner != nil && opt.Owner.Pinned, users: 1, maker: true,
		ready: make(chan struct{}), taken: make(chan struct{}), gone: make(chan struct{}),
	}
	if last != nil {
		k.before = last.gone
	}
	s.newest[key] = k
	return k, true, nil
}

// reset takes out the kernel of key for the owner's sake. There is something to tell if there was state, or was before.
func (s *poolState) reset(key Key) {
	had := s.lost.get(key) != ""
	if k := s.newest[key]; k != nil && !k.out {
		had = had || k.cells > 0 || k.up && k.users > 0 // a cell under way has state, too
		s.remove(k, "")
	}
	if had {
		s.lost.note(key, Reset)
	}
}

// lease makes the lease of a user of k. Without one and without an error k was taken out, and another one must be had.
func (s *poolState) lease(k *held, made bool, o *Owner) (*Lease, error) {
	switch {
	case k.out && k.err == nil, errors.Is(k.err, errTakenOut):
		return nil, nil
	case k.err != nil && s.closed:
		return nil, s.errDone // its start was cancelled for that
	case k.err != nil && k.left && !made:
		return nil, nil // it failed for one who is not there any more: who came meanwhile has not had a start of his own
	case k.err != nil:
		return nil, k.err
	}
	l := &Lease{Kernel: k.kernel, Reused: !made, held: k, owner: o}
	if made || !k.maker { // else its maker tells it
		l.Lost = s.lost.take(k.key)
	}
	if made {
		k.maker = false
	}
	return l, nil
}

// moot reports whether nobody can be told any more what the owner of a lease has lost.
func (s *poolState) moot(l *Lease) bool { return s.closed || l.owner != nil && l.owner.closed }

// untold puts back what a lease was to tell, unless there is a later loss.
func (s *poolState) untold(l *Lease) {
	if l.Lost != "" && !s.moot(l) && s.lost.get(l.held.key) == "" {
		s.lost.note(l.held.key, l.Lost)
	}
}

// detach counts one user less. The kernel that was used last stays, even if it is one too many: see evict.
func (s *poolState) detach(k *held, made bool) {
	k.users--
	if made {
		k.maker = false
		k.left = k.starting()
	}
	if k.users == 0 && k.starting() {
		time.AfterFunc(unwantedStart, k.cancel) // who comes meanwhile, and is still there, starts another one
	}
	s.rest(k)
	if k.up && !k.out {
		s.evict(k)
	}
}

func (k *held) starting() bool { return !k.up && k.err == nil }

// started notes what has become of a start.
func (s *poolState) started(k *held, ref kernel.Kernel, err error) {
	k.kernel, k.err, k.up = ref, err, err == nil
	close(k.ready)
	switch {
	case err != nil:
		s.takeOut(k, "")
		s.ended(k)
	case k.out:
		s.ends = append(s.ends, k)
	default:
		if !k.pinned {
			s.shelf(k.key).live++
		}
		s.rest(k) // should nobody have waited
		s.evict(k)
	}
}

// rest puts k on the shelf if it has nothing to do.
func (s *poolState) rest(k *held) {
	if !k.up || k.out || k.users > 0 {
		return
	}
	k.lastUsed = time.Now()
	if !k.pinned {
		k.place = s.shelf(k.key).idle.PushBack(k) // times only grow: the list stays in order
	}
}

func (s *poolState) unshelve(k *held) {
	if k.place != nil {
		s.shelf(k.key).idle.Remove(k.place)
		k.place = nil
	}
}

func (s *poolState) shelf(key Key) *shelf {
	sh := s.shelves[key.Environment]
	if sh == nil {
		sh = &shelf{idle: list.New()}
		s.shelves[key.Environment] = sh
	}
	return sh
}

// evict takes out idle kernels of an environment, least recently used first, until they are not too many. newest, which was just started or used,
// stays: with all others busy it is the only one there is to choose, and its owner would find that a cell always takes its kernel with it.
func (s *poolState) evict(newest *held) {
	sh := s.shelves[newest.key.Environment]
	for s.most > 0 && sh != nil && sh.live > s.most {
		oldest := sh.idle.Front()
		if oldest != nil && oldest.Value == newest {
			oldest = oldest.Next()
		}
		if oldest == nil {
			return
		}
		s.remove(oldest.Value.(*held), Evicted)
	}
}

// reap takes out the kernels that are idle for too long.
func (s *poolState) reap(now time.Time) {
	s.timer = nil
	if s.closed {
		return
	}
	for _, sh := range s.shelves {
		for sh.live > 0 {
			oldest := sh.idle.Front()
			if oldest == nil || now.Sub(oldest.Value.(*held).lastUsed) < s.idle {
				break
			}
			s.remove(oldest.Value.(*held), Idle)
		}
	}
}

// nextReap returns when the timer must be set to, if it must be set: a kernel that comes to rest later is due later, so that one that is set is never late.
func (s *poolState) nextReap() (at time.Time, ok bool) {
	if s.idle <= 0 || s.closed || s.timer != nil {
		return at, false
	}
	for _, sh := range s.shelves {
		if oldest := sh.idle.Front(); oldest != nil {
			due := oldest.Value.(*held).lastUsed.Add(s.idle)
			if !ok || due.Before(at) {
				at, ok = due, true
			}
		}
	}
	return at, ok
}

// remove takes k out and has it ended. One that is starting is ended when it is up.
func (s *poolState) remove(k *held, reason string) {
	if s.takeOut(k, reason) && k.up {
		s.ends = append(s.ends, k)
	}
}

// forget takes k out without ending it.
func (s *poolState) forget(k *held, reason string) {
	switch {
	case s.takeOut(k, reason):
		s.ended(k)
	case k.why == Died:
		k.why = reason
		if k.noted && s.lost.get(k.key) == Died {
			s.lost.note(k.key, reason)
		}
	}
}

// takeOut takes k out, and reports whether it was still in.
func (s *poolState) takeOut(k *held, reason string) bool {
	if k.out {
		return false
	}
	k.out = true
	close(k.taken)
	if k.up && !k.pinned {
		s.unshelve(k)
		sh := s.shelf(k.key)
		if sh.live--; sh.live == 0 {
			delete(s.shelves, k.key.Environment)
		}
	}
	k.why = reason
	if k.cells > 0 {
		s.noteLoss(k)
	}
	return true
}

// noteLoss notes, once, why the state in k is lost.
func (s *poolState) noteLoss(k *held) {
	if k.why != "" && !k.noted {
		k.noted = true
		s.lost.note(k.key, k.why)
	}
}

// ran counts a cell. The news of a first cell may come when k is out already: its state is lost all the same.
func (s *poolState) ran(l *Lease) {
	l.held.cells++
	if l.held.out && !s.moot(l) {
		s.noteLoss(l.held)
	}
}

// ended lets the next kernel of the key start.
func (s *poolState) ended(k *held) {
	close(k.gone)
	if s.newest[k.key] == k {
		delete(s.newest, k.key)
	}
}

// find returns the kernel that is up and ref, or nil.
func (s *poolState) find(ref kernel.Kernel) *held {
	for _, k := range s.newest {
		if k.up && !k.out && k.kernel == ref {
			return k
		}
	}
	return nil
}

func (s *poolState) lose(key Key, reason string) (gone []<-chan struct{}, before string) {
	if s.closed {
		return nil, ""
	}
	before = s.lost.take(key)
	s.lost.note(key, reason)
	if k := s.newest[key]; k != nil {
		s.remove(k, "")
		gone = append(gone, k.gone)
	}
	return gone, before
}

func (s *poolState) closeOwner(o *Owner) (gone []<-chan struct{}) {
	if o.closed {
		return o.ending // others may be called like it by now
	}
	o.closed = true
	for key, k := range s.newest {
		if o.owns(key) {
			s.remove(k, "")
			o.ending = append(o.ending, k.gone)
		}
	}
	s.lost.drop(o.owns)
	return o.ending
}

func (o *Owner) owns(key Key) bool { return key.Owner == o.Name && key.Child == o.Child }

// close takes everything out. What is up ends with its host; what is starting is cancelled, and ended if it comes up nevertheless.
func (s *poolState) close() {
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	for _, k := range s.newest {
		switch {
		case k.out:
		case k.up:
			s.forget(k, "")
		default:
			s.takeOut(k, "")
			k.cancel()
		}
	}
}
