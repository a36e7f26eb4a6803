package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core/kernel"
)

// testPool is a pool whose kernels are names; it records which ones it ended.
type testPool struct {
	*Pool
	mu    sync.Mutex
	ended []string
	made  atomic.Int32
	hold  chan struct{} // if not nil, ends wait until it is closed
}

var (
	errClosed      = errors.New("closed")
	errOwnerClosed = errors.New("owner closed")
)

func newTestPool(idle time.Duration, most int) *testPool {
	p := &testPool{}
	p.Pool = New(Options{Idle: idle, Most: most, Closed: errClosed, End: func(ref kernel.Kernel) {
		if p.hold != nil {
			<-p.hold
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ended = append(p.ended, ref.ID)
	}})
	return p
}

func (p *testPool) start(context.Context) (kernel.Kernel, error) {
	return kernel.Kernel{ID: "k" + strconv.Itoa(int(p.made.Add(1)))}, nil
}

func (p *testPool) gone() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.ended)
}

func (p *testPool) lend(t *testing.T, owner string) *Lease {
	t.Helper()
	l, err := p.Lend(t.Context(), Key{Owner: owner}, LendOptions{}, p.start)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// use lends the kernel of an owner and gives it back after one cell.
func (p *testPool) use(t *testing.T, owner string) *Lease {
	t.Helper()
	l := p.lend(t, owner)
	p.Ran(l)
	p.GiveBack(l, true)
	return l
}

// wantEnded waits until nothing moves any more. It must be called in a bubble.
func (p *testPool) wantEnded(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, p.gone()); diff != "" {
		t.Errorf("ended (-want +got):\n%s", diff)
	}
}

func wantLost(t *testing.T, l *Lease, want string) {
	t.Helper()
	if l.Lost != want {
		t.Errorf("%s: told %q, want %q", l.Kernel.ID, l.Lost, want)
	}
}

// bubble runs f with a fake clock and a pool that it closes.
func bubble(t *testing.T, idle time.Duration, most int, f func(*testing.T, *testPool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(idle, most)
		defer p.Close()
		f(t, p)
	})
}

// lending is a Lend under way.
type lending struct {
	lease *Lease
	err   error
}

// lendLater calls Lend in a goroutine. It must be called in a bubble, which waits for it.
func (p *testPool) lendLater(ctx context.Context, key Key, opt LendOptions, start func(context.Context) (kernel.Kernel, error)) <-chan lending {
	done := make(chan lending, 1)
	go func() {
		l, err := p.Lend(ctx, key, opt, start)
		done <- lending{l, err}
	}()
	synctest.Wait()
	return done
}

func TestManyCallersOfAColdKernelStartOne(t *testing.T) {
	bubble(t, 0, 0, func(t *testing.T, p *testPool) {
		hold := make(chan struct{})
		var all []<-chan lending
		for range 64 {
			all = append(all, p.lendLater(t.Context(), Key{}, LendOptions{}, func(ctx context.Context) (kernel.Kernel, error) {
				<-hold
				return p.start(ctx)
			}))
		}
		close(hold)
		fresh := 0
		for _, done := range all {
			got := <-done
			if got.err != nil || got.lease.Kernel.ID != "k1" {
				t.Fatalf("a caller got %+v", got)
			}
			if !got.lease.Reused {
				fresh++
			}
			p.GiveBack(got.lease, true)
		}
		if n := p.made.Load(); n != 1 || fresh != 1 {
			t.Errorf("%d kernels were started, %d callers have the fresh one; want one of each", n, fresh)
		}
		p.wantEnded(t)
	})
}

func TestAFailedStartLeavesNothing(t *testing.T) {
	bubble(t, time.Hour, 0, func(t *testing.T, p *testPool) {
		boom := errors.New("boom")
		_, err := p.Lend(t.Context(), Key{}, LendOptions{}, func(context.Context) (kernel.Kernel, error) { return kernel.Kernel{}, boom })
		if !errors.Is(err, boom) {
			t.Errorf("got %v, want %v", err, boom)
		}
		p.update(func(s *poolState) {
			if len(s.newest)+len(s.shelves) > 0 {
				t.Errorf("left: %v, %v", s.newest, s.shelves)
			}
		})
		if l := p.use(t, ""); l.Kernel.ID != "k1" {
			t.Errorf("the next caller got %s, want a fresh kernel", l.Kernel.ID)
		}
	})
}

// A caller that is cancelled is no reason for those who wait with it, and the kernel is not lost with it.
func TestACancelledCallerLeavesTheStartToOthers(t *testing.T) {
	bubble(t, time.Hour, 0, func(t *testing.T, p *testPool) {
		p.use(t, "")
		time.Sleep(2 * time.Hour)
		p.wantEnded(t, "k1")

		hold := make(chan struct{})
		slow := func(ctx context.Context) (kernel.Kernel, error) {
			select {
			case <-hold:
				return p.start(ctx)
			case <-ctx.Done():
				return kernel.Kernel{}, ctx.Err()
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		first := p.lendLater(ctx, Key{}, LendOptions{}, slow)
		second := p.lendLater(t.Context(), Key{}, LendOptions{}, slow)
		cancel()
		if got := <-first; !errors.Is(got.err, context.Canceled) {
			t.Errorf("the cancelled caller got %+v", got)
		}
		close(hold)
		got := <-second
		if got.err != nil || got.lease.Kernel.ID != "k2" {
			t.Fatalf("the other caller got %+v, want k2", got)
		}
		wantLost(t, got.lease, Idle) // nobody else has told
		p.GiveBack(got.lease, true)

		if _, err := p.Lend(ctx, Key{Owner: "new"}, LendOptions{}, p.start); !errors.Is(err, context.Canceled) || p.made.Load() != 2 {
			t.Errorf("a caller who is gone already: %v, %d kernels started, want 2", err, p.made.Load())
		}
		l, err := p.Lend(ctx, Key{}, LendOptions{}, p.start)
		if err != nil {
			t.Fatalf("a kernel that is up: %v; its cell is refused by the kernel, not by the pool", err)
		}
		p.GiveBack(l, true)
	})
}

// Who waits for the start of one that has given up gets no error of a start that was never his.
func TestAFailedStartOfACancelledCallerIsMadeAgain(t *testing.T) {
	bubble(t, 0, 0, func(t *testing.T, p *testPool) {
		hold, boom := make(chan struct{}), errors.New("boom")
		ctx, cancel := context.WithCancel(t.Context())
		first := p.lendLater(ctx, Key{}, LendOptions{}, func(context.Context) (kernel.Kernel, error) {
			<-hold
			return kernel.Kernel{}, boom
		})
		second := p.lendLater(t.Context(), Key{}, LendOptions{}, p.start)
		cancel()
		<-first
		close(hold)
		got := <-second
		if got.err != nil || got.lease.Kernel.ID != "k1" {
			t.Fatalf("the other caller got %+v, want k1", got)
		}
		p.GiveBack(got.lease, true)
	})
}

// A start that hangs, and that nobody waits for, does not hold up the next caller for as long as it may take.
func TestAnUnwantedStartIsCancelled(t *testing.T) {
	bubble(t, 0, 0, func(t *testing.T, p *testPool) {
		ctx, cancel := context.WithCancel(t.Context())
		first := p.lendLater(ctx, Key{}, LendOptions{}, func(ctx context.Context) (kernel.Kernel, error) {
			<-ctx.Done()
			return kernel.Kernel{}, ctx.Err()
		})
		cancel()
		<-first
		begun := time.Now()
		p.GiveBack(p.lend(t, ""), true)
		if waited := time.Since(begun); waited != unwantedStart || p.made.Load() != 1 {
			t.Errorf("the next caller waited %s for kernel %d, want %s and the first", waited, p.made.Load(), unwantedStart)
		}
	})
}

func TestIdleKernelsEndByTimer(t *testing.T) {
	bubble(t, time.Hour, 0, func(t *testing.T, p *testPool) {
		p.use(t, "a")
		time.Sleep(59 * time.Minute)
		p.use(t, "b")
		p.wantEnded(t)
		time.Sleep(2 * time.Minute)
		p.wantEnded(t, "k1")
		time.Sleep(57 * time.Minute)
		p.wantEnded(t, "k1")
		time.Sleep(time.Minute)
		p.wantEnded(t, "k1", "k2")
		wantLost(t, p.use(t, "a"), Idle)
		wantLost(t, p.use(t, "a"), "")
	})
}

func TestAKernelWithACellIsNotIdle(t *testing.T) {
	bubble(t, time.Hour, 1, func(t *testing.T, p *testPool) {
		l := p.lend(t, "a")
		time.Sleep(3 * time.Hour)
		p.use(t, "b") // one too many, and the other one is busy
		p.wantEnded(t)
		p.GiveBack(l, true)
		p.wantEnded(t, "k2") // the one whose cell has just ended is the newest
	})
}

func TestTheLeastRecentlyUsedIsEvicted(t *testing.T) {
	bubble(t, 0, 2, func(t *testing.T, p *testPool) {
		for _, owner := range []string{"a", "b", "a", "c"} {
			p.use(t, owner)
			time.Sleep(time.Second)
		}
		p.wantEnded(t, "k2")
		l := p.use(t, "b")
		wantLost(t, l, Evicted)
		if again := p.use(t, "b"); again.Kernel != l.Kernel || again.Lost != "" || !again.Reused {
			t.Errorf("b has %+v, want its new one, and nothing to tell", again)
		}
	})
}

// With all others busy a fresh kernel stays, though there is none but it that could go.
func TestAFreshKernelIsNotTheVictimOfItsStart(t *testing.T) {
	bubble(t, 0, 1, func(t *testing.T, p *testPool) {
		busy := p.lend(t, "busy")
		l := p.use(t, "a")
		if again := p.use(t, "a"); again.Kernel != l.Kernel {
			t.Errorf("a has %s, want its %s still", again.Kernel.ID, l.Kernel.ID)
		}
		p.use(t, "b")
		p.wantEnded(t, "k2")
		p.GiveBack(busy, true)
		p.wantEnded(t, "k2", "k3")
	})
}

func TestAFailedStartEvictsNobody(t *testing.T) {
	bubble(t, 0, 1, func(t *testing.T, p *testPool) {
		p.use(t, "a")
		_, err := p.Lend(t.Context(), Key{Owner: "b"}, LendOptions{}, func(context.Context) (kernel.Kernel, error) { return kernel.Kernel{}, errors.New("boom") })
		if err == nil {
			t.Error("no error")
		}
		p.wantEnded(t)
	})
}

// The next kernel of a key is not started before the last one has ended, whatever ended it, unless it was dead already.
func TestOneKernelOfAKeyAfterTheOther(t *testing.T) {
	for name, takeOut := range map[string]func(*testing.T, *testPool){
		"evicted":   func(t *testing.T, p *testPool) { p.use(t, "b") },
		"idle":      func(_ *testing.T, _ *testPool) { time.Sleep(time.Hour + time.Second) },
		"discarded": func(t *testing.T, p *testPool) { l := p.lend(t, "a"); p.Discard(l); p.GiveBack(l, true) },
		"lost": func(t *testing.T, p *testPool) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := p.Lose(ctx, Key{Owner: "a"}, "fallback"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Lose did not wait: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, time.Hour, 1, func(t *testing.T, p *testPool) {
				p.hold = make(chan struct{})
				p.use(t, "a")
				takeOut(t, p)
				made := p.made.Load()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := p.Lend(ctx, Key{Owner: "a"}, LendOptions{}, p.start); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want to wait for the end of the last one", err)
				}
				next := p.lendLater(t.Context(), Key{Owner: "a"}, LendOptions{}, p.start)
				if p.made.Load() != made {
					t.Error("another one was started before")
				}
				close(p.hold)
				got := <-next
				if got.err != nil || got.lease.Lost == "" || p.made.Load() != made+1 {
					t.Errorf("got %+v after %d starts, want a kernel that tells, and %d", got, p.made.Load(), made+1)
				}
				p.GiveBack(got.lease, true)
			})
		})
	}
	t.Run("dead", func(t *testing.T) {
		bubble(t, 0, 0, func(t *testing.T, p *testPool) {
			a, b := p.lend(t, "a"), p.lend(t, "a")
			p.Ran(a)
			p.Forget(a, "timeout")
			l := p.use(t, "a") // while b is attached to the dead one still
			wantLost(t, l, "timeout")
			p.Forget(b, Died)
			p.GiveBack(a, true)
			p.GiveBack(b, true)
			if again := p.use(t, "a"); again.Kernel != l.Kernel || again.Lost != "" {
				t.Errorf("got %+v, want the same and no further loss", again)
			}
			p.Dead(l.Kernel)
			p.Dead(l.Kernel)
			wantLost(t, p.use(t, "a"), Died)
			p.wantEnded(t)
		})
	})
}

func TestResetEndsTheKernelOfAnOwner(t *testing.T) {
	bubble(t, 0, 0, func(t *testing.T, p *testPool) {
		reset := func(owner string) *Lease {
			l, err := p.Lend(t.Context(), Key{Owner: owner}, LendOptions{Fresh: true}, p.start)
			if err != nil {
				t.Fatal(err)
			}
			p.GiveBack(l, true)
			return l
		}
		wantLost(t, reset("a"), "") // there was nothing before the first
		p.use(t, "a")
		p.use(t, "b")
		wantLost(t, reset("a"), Reset)
		wantLost(t, reset("a"), "") // no cell has run since
		p.wantEnded(t, "k1", "k3")
		wantLost(t, p.use(t, "a"), "")

		busy := p.lend(t, "a") // its first cell runs
		wantLost(t, reset("a"), Reset)
		p.Ran(busy)
		p.GiveBack(busy, true)
		wantLost(t, p.use(t, "a"), "") // that was told
	})
}

// A kernel that is taken away while it starts is ended when it is up, and its starter gets the next one.
func TestResetDuringAStart(t *testing.T) {
	bubble(t, 0, 0, func(t *testing.T, p *testPool) {
		hold := make(chan struct{})
		first := p.lendLater(t.Context(), Key{}, LendOptions{}, func(ctx context.Context) (kernel.Kernel, error) {
			<-hold
			return p.start(ctx)
		})
		second := p.lendLater(t.Context(), Key{}, LendOptions{Fresh: true}, p.start)
		if p.made.Load() > 0 {
			t.Error("two at once")
		}
		close(hold)
		for _, got := range []lending{<-first, <-second} {
			if got.err != nil || got.lease.Kernel.ID != "k2" || got.lease.Lost != "" {
				t.Errorf("got %+v, want k2", got)
			}
			p.GiveBack(got.lease, true)
		}
		p.wantEnded(t, "k1")
	})
}

// What is lost is told once, by a result that its caller gets.
func TestALossIsToldOnce(t *testing.T) {
	bubble(t, time.Hour, 0, func(t *testing.T, p *testPool) {
		p.use(t, "a")
		time.Sleep(time.Hour)
		p.wantEnded(t, "k1")

		boom := errors.New("boom")
		if _, err := p.Lend(t.Context(), Key{Owner: "a"}, LendOptions{}, func(context.Context) (kernel.Kernel, error) { return kernel.Kernel{}, boom }); !errors.Is(err, boom) {
			t.Errorf("got %v", err)
		}
		dropped := p.lend(t, "a")
		other := p.lend(t, "a")
		wantLost(t, dropped, Idle)
		wantLost(t, other, "")
		p.GiveBack(dropped, false) // its caller got an error
		next := p.lend(t, "a")
		wantLost(t, next, Idle)
		p.Ran(other)
		p.Forget(other, Died)
		p.GiveBack(next, false)
		p.GiveBack(other, true)
		wantLost(t, p.use(t, "a"), Died) // the later loss
		wantLost(t, p.use(t, "a"), "")
	})
}

func TestAKernelWithoutACellHasNoStateToLose(t *testing.T) {
	bubble(t, time.Hour, 0, func(t *testing.T, p *testPool) {
		p.GiveBack(p.lend(t, "a"), true)
		time.Sleep(2 * time.Hour)
		wantLost(t, p.use(t, "a"), "")
	})
}

// The cell that knows why the kernel is gone need not be the first to say that it is.
func TestTheReasonOfTheCellThatKnows(t *testing.T) {
	for _, ranFirst := range []bool{false, true} {
		bubble(t, 0, 0, func(t *testing.T, p *testPool) {
			running, queued := p.lend(t, "a"), p.lend(t, "a")
			if ranFirst {
				p.use(t, "a")
			}
			p.Discard(queued)
			p.GiveBack(queued, true)
			p.Ran(running)
			p.Forget(running, "timeout")
			p.GiveBack(running, true)
			wantLost(t, p.use(t, "a"), "timeout")
			wantLost(t, p.use(t, "a"), "")
		})
	}
}

func TestLoseIsToldWithoutAKernel(t *testing.T) {
	bubble(t, 0, 0, func(t *testing.T, p *testPool) {
		for range 2 {
			if _, err := p.Lose(t.Context(), Key{Owner: "a"}, "fallback"); err != nil {
				t.Error(err)
			}
		}
		wantLost(t, p.use(t, "a"), "fallback")
		wantLost(t, p.use(t, "a"), "")
		if _, err := p.Lose(t.Context(), Key{Owner: "a"}, "fallback"); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"k1"}, p.gone()); diff != "" { // when Lose returns, not some time later
			t.Errorf("ended (-want +got):\n%s", diff)
		}
	})
}

func TestPinnedKernelsStay(t *testing.T) {
	bubble(t, time.Hour, 1, func(t *testing.T, p *testPool) {
		var children []*Owner
		use := func(o *Owner) (*Lease, error) {
			l, err := p.Lend(t.Context(), Key{Owner: o.Name, Child: o.Child}, LendOptions{Owner: o}, p.start)
			if err == nil {
				p.Ran(l)
				p.GiveBack(l, true)
			}
			return l, err
		}
		for i := range 5 {
			o := &Owner{Name: "a/child", Child: int64(i + 1), Pinned: true, Closed: errOwnerClosed}
			children = append(children, o)
			if _, err := use(o); err != nil {
				t.Fatal(err)
			}
		}
		p.use(t, "a/child") // an owner that is called like it: k6
		time.Sleep(2 * time.Hour)
		p.wantEnded(t, "k6")
		for i, o := range children {
			if l, err := use(o); err != nil || l.Kernel.ID != fmt.Sprint("k", i+1) || !l.Reused {
				t.Errorf("child %d has %+v, error %v", i, l, err)
			}
		}
		for range 2 {
			if err := p.CloseOwner(t.Context(), children[1]); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]string{"k6", "k2"}, p.gone()); diff != "" {
				t.Errorf("ended (-want +got):\n%s", diff)
			}
		}
		if _, err := use(children[1]); !errors.Is(err, errOwnerClosed) {
			t.Errorf("lent after CloseOwner: %v", err)
		}
		wantLost(t, p.use(t, "a/child"), Idle)
	})
}

func TestCloseOwnerEndsWhatStartsAndWhatRuns(t *testing.T) {
	bubble(t, 0, 0, func(t *testing.T, p *testPool) {
		o := &Owner{Name: "a", Closed: errOwnerClosed}
		opt := LendOptions{Owner: o}
		running, err := p.Lend(t.Context(), Key{Owner: "a"}, opt, p.start)
		if err != nil {
			t.Fatal(err)
		}
		hold := make(chan struct{})
		starting := p.lendLater(t.Context(), Key{Owner: "a", Dir: "/"}, opt, func(ctx context.Context) (kernel.Kernel, error) {
			<-hold
			return p.start(ctx)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.CloseOwner(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want it to wait for the start", err)
		}
		if got := <-starting; !errors.Is(got.err, errOwnerClosed) {
			t.Errorf("who waits for the start got %+v", got)
		}
		p.wantEnded(t, "k1")
		close(hold)
		if err := p.CloseOwner(t.Context(), o); err != nil {
			t.Error(err)
		}
		p.wantEnded(t, "k1", "k2")
		p.Ran(running)
		p.GiveBack(running, false)
		wantLost(t, p.use(t, "a"), "") // a new life
		if err := p.CloseOwner(t.Context(), o); err != nil {
			t.Error(err)
		}
		p.wantEnded(t, "k1", "k2") // of which the old one is no part
	})
}

func TestLossesAreBounded(t *testing.T) {
	l := newLosses()
	for i := range mostLosses + 2 {
		l.note(Key{Child: int64(i)}, Idle)
	}
	l.note(Key{Child: 2}, Died) // again: it is the latest now
	if n := len(l.byKey); n != mostLosses || l.order.Len() != n {
		t.Errorf("%d reasons in a list of %d, want %d", n, l.order.Len(), mostLosses)
	}
	for child, want := range map[int64]string{0: "", 1: "", 2: Died, 3: Idle} {
		if got := l.take(Key{Child: child}); got != want {
			t.Errorf("%d: got %q, want %q", child, got, want)
		}
	}
}

func TestAClosedPoolLendsNothing(t *testing.T) {
	bubble(t, time.Hour, 0, func(t *testing.T, p *testPool) {
		l := p.lend(t, "busy")
		p.use(t, "idle")
		starting := p.lendLater(t.Context(), Key{Owner: "starting"}, LendOptions{}, func(ctx context.Context) (kernel.Kernel, error) {
			<-ctx.Done()
			return p.start(ctx) // it comes up nevertheless
		})
		p.Close()
		if got := <-starting; !errors.Is(got.err, errClosed) {
			t.Errorf("who waits for a start got %+v", got)
		}
		if _, err := p.Lend(t.Context(), Key{}, LendOptions{}, p.start); !errors.Is(err, errClosed) {
			t.Errorf("got %v, want %v", err, errClosed)
		}
		p.Ran(l)
		p.Forget(l, Died)
		p.GiveBack(l, false)
		if _, err := p.Lose(t.Context(), Key{}, "fallback"); err != nil {
			t.Error(err)
		}
		p.wantEnded(t, "k3") // the others end with their hosts
	})
}

func TestAClosedOwnerHasLostNothing(t *testing.T) {
	bubble(t, time.Hour, 0, func(t *testing.T, p *testPool) {
		p.use(t, "a")
		p.use(t, "b")
		time.Sleep(2 * time.Hour)
		if err := p.CloseOwner(t.Context(), &Owner{Name: "a"}); err != nil {
			t.Error(err)
		}
		wantLost(t, p.use(t, "a"), "")
		wantLost(t, p.use(t, "b"), Idle)
	})
}
