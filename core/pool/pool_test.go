package core

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// testPool is a pool whose kernels are names; it records which ones it ended.
type testPool struct {
	*pool
	mu    sync.Mutex
	ended []string
	made  atomic.Int32
}

func newTestPool(idle time.Duration, most int) *testPool {
	p := &testPool{}
	p.pool = newPool(idle, most, func(ref kernelRef) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ended = append(p.ended, ref.id)
	})
	return p
}

func (p *testPool) start(context.Context) (kernelRef, error) {
	return kernelRef{id: "k" + strconv.Itoa(int(p.made.Add(1)))}, nil
}

func (p *testPool) gone() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.ended)
}

// use lends the kernel of an owner and gives it back after one cell.
func (p *testPool) use(t *testing.T, owner string) *pooled {
	t.Helper()
	k, _, err := p.lend(t.Context(), kernelKey{owner: owner}, p.start)
	if err != nil {
		t.Fatal(err)
	}
	p.ran(k)
	p.giveBack(k)
	return k
}

func TestManyCallersOfAColdKernelStartOne(t *testing.T) {
	p := newTestPool(0, 0)
	defer p.close()
	hold := make(chan struct{})
	var wg sync.WaitGroup
	ids := make(chan string, 64)
	for range 64 {
		wg.Go(func() {
			k, _, err := p.lend(t.Context(), kernelKey{}, func(ctx context.Context) (kernelRef, error) {
				<-hold
				return p.start(ctx)
			})
			if err != nil {
				t.Error(err)
				return
			}
			ids <- k.ref.id
			p.giveBack(k)
		})
	}
	close(hold)
	wg.Wait()
	close(ids)
	for id := range ids {
		if id != "k1" {
			t.Errorf("a caller got %s, want k1", id)
		}
	}
	if n := p.made.Load(); n != 1 || len(p.gone()) > 0 {
		t.Errorf("%d kernels were started, %v ended", n, p.gone())
	}
}

func TestAFailedStartLeavesNothing(t *testing.T) {
	p := newTestPool(0, 0)
	defer p.close()
	boom := errors.New("boom")
	_, _, err := p.lend(t.Context(), kernelKey{}, func(context.Context) (kernelRef, error) { return kernelRef{}, boom })
	if !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}
	if k := p.use(t, ""); k.ref.id != "k1" {
		t.Errorf("the next caller got %s, want a fresh kernel", k.ref.id)
	}
}

// A starter that is cancelled is no reason for those who wait with it.
func TestACancelledStartIsTakenOver(t *testing.T) {
	p := newTestPool(0, 0)
	defer p.close()
	ctx, cancel := context.WithCancel(t.Context())
	starting := make(chan struct{})
	first := make(chan error, 1)
	go func() { // received from below
		_, _, err := p.lend(ctx, kernelKey{}, func(ctx context.Context) (kernelRef, error) {
			close(starting)
			<-ctx.Done()
			return kernelRef{}, ctx.Err()
		})
		first <- err
	}()
	<-starting
	second := make(chan error, 1)
	go func() { // received from below
		k, _, err := p.lend(t.Context(), kernelKey{}, p.start)
		if err == nil {
			p.giveBack(k)
		}
		second <- err
	}()
	for p.users(kernelKey{}) < 2 {
		runtime.Gosched()
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled caller got %v", err)
	}
	if err := <-second; err != nil {
		t.Errorf("the other caller got %v, want a kernel", err)
	}
}

func (p *testPool) users(key kernelKey) int {
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	return p.kernels[key].users
}

func TestIdleKernelsEndByTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(time.Hour, 0)
		defer p.close()
		p.use(t, "a")
		time.Sleep(59 * time.Minute)
		p.use(t, "b")
		if len(p.gone()) != 0 {
			t.Fatalf("ended too early: %v", p.gone())
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := p.gone(); !slices.Equal(got, []string{"k1"}) {
			t.Errorf("after an hour without a cell %v ended, want k1 alone", got)
		}
		if k := p.use(t, "a"); k.lost != "idle" {
			t.Errorf("the owner is told %q, want idle", k.lost)
		}
	})
}

func TestAKernelWithACellIsNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(time.Hour, 1)
		defer p.close()
		k, _, err := p.lend(t.Context(), kernelKey{owner: "a"}, p.start)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour)
		p.use(t, "b") // one too many, and the other one is busy
		synctest.Wait()
		if len(p.gone()) != 0 {
			t.Fatalf("ended under a cell: %v", p.gone())
		}
		p.giveBack(k)
		synctest.Wait()
		if slices.Contains(p.gone(), "k1") {
			t.Error("ended at the moment its cell ended")
		}
	})
}

func TestTheLeastRecentlyUsedIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(0, 2)
		defer p.close()
		for _, owner := range []string{"a", "b", "a", "c"} {
			p.use(t, owner)
			time.Sleep(time.Second)
		}
		if got := p.gone(); !slices.Equal(got, []string{"k2"}) {
			t.Errorf("%v ended, want k2, the one of b", got)
		}
		if k := p.use(t, "b"); k.lost != "evicted" {
			t.Errorf("b is told %q, want evicted", k.lost)
		}
		if k := p.use(t, "b"); k.lost != "evicted" || k.ref.id != "k4" {
			t.Errorf("b has %s, want its new one", k.ref.id)
		}
	})
}

func TestDiscardEndsTheKernelOfAnOwner(t *testing.T) {
	p := newTestPool(0, 0)
	defer p.close()
	if p.discard(kernelKey{owner: "a"}) {
		t.Error("discard says that there was a kernel before the first")
	}
	p.use(t, "a")
	p.use(t, "b")
	if !p.discard(kernelKey{owner: "a"}) || !slices.Equal(p.gone(), []string{"k1"}) {
		t.Errorf("ended: %v, want k1", p.gone())
	}
	if k := p.use(t, "a"); k.lost != "" {
		t.Errorf("after a reset the owner is told %q", k.lost)
	}
}

func TestAClosedPoolLendsNothing(t *testing.T) {
	p := newTestPool(time.Hour, 0)
	p.close()
	if _, _, err := p.lend(t.Context(), kernelKey{}, p.start); !errors.Is(err, errEngineClosed) {
		t.Errorf("got %v, want %v", err, errEngineClosed)
	}
}
