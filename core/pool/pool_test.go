package pool

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

	"github.com/hermes-framework/hermes/core/kernel"
)

// testPool is a pool whose kernels are names; it records which ones it ended.
type testPool struct {
	*Pool
	mu    sync.Mutex
	ended []string
	made  atomic.Int32
}

var errClosed = errors.New("closed")

func newTestPool(idle time.Duration, most int) *testPool {
	p := &testPool{}
	p.Pool = New(Options{Idle: idle, Most: most, Closed: errClosed, End: func(ref kernel.Kernel) {
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

// use lends the kernel of an owner and gives it back after one cell.
func (p *testPool) use(t *testing.T, owner string) *Lent {
	t.Helper()
	k, _, err := p.Lend(t.Context(), Key{Owner: owner}, p.start)
	if err != nil {
		t.Fatal(err)
	}
	p.Ran(k)
	p.GiveBack(k)
	return k
}

func TestManyCallersOfAColdKernelStartOne(t *testing.T) {
	p := newTestPool(0, 0)
	defer p.Close()
	hold := make(chan struct{})
	var wg sync.WaitGroup
	ids := make(chan string, 64)
	for range 64 {
		wg.Go(func() {
			k, _, err := p.Lend(t.Context(), Key{}, func(ctx context.Context) (kernel.Kernel, error) {
				<-hold
				return p.start(ctx)
			})
			if err != nil {
				t.Error(err)
				return
			}
			ids <- k.Kernel.ID
			p.GiveBack(k)
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
	defer p.Close()
	boom := errors.New("boom")
	_, _, err := p.Lend(t.Context(), Key{}, func(context.Context) (kernel.Kernel, error) { return kernel.Kernel{}, boom })
	if !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}
	if k := p.use(t, ""); k.Kernel.ID != "k1" {
		t.Errorf("the next caller got %s, want a fresh kernel", k.Kernel.ID)
	}
}

// A starter that is cancelled is no reason for those who wait with it.
func TestACancelledStartIsTakenOver(t *testing.T) {
	p := newTestPool(0, 0)
	defer p.Close()
	ctx, cancel := context.WithCancel(t.Context())
	starting := make(chan struct{})
	first := make(chan error, 1)
	go func() { // received from below
		_, _, err := p.Lend(ctx, Key{}, func(ctx context.Context) (kernel.Kernel, error) {
			close(starting)
			<-ctx.Done()
			return kernel.Kernel{}, ctx.Err()
		})
		first <- err
	}()
	<-starting
	second := make(chan error, 1)
	go func() { // received from below
		k, _, err := p.Lend(t.Context(), Key{}, p.start)
		if err == nil {
			p.GiveBack(k)
		}
		second <- err
	}()
	for p.users(Key{}) < 2 {
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

func (p *testPool) users(key Key) int {
	p.Pool.mu.Lock()
	defer p.Pool.mu.Unlock()
	return p.kernels[key].users
}

func TestIdleKernelsEndByTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(time.Hour, 0)
		defer p.Close()
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
		if k := p.use(t, "a"); k.Lost != "idle" {
			t.Errorf("the owner is told %q, want idle", k.Lost)
		}
	})
}

func TestAKernelWithACellIsNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(time.Hour, 1)
		defer p.Close()
		k, _, err := p.Lend(t.Context(), Key{Owner: "a"}, p.start)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour)
		p.use(t, "b") // one too many, and the other one is busy
		synctest.Wait()
		if len(p.gone()) != 0 {
			t.Fatalf("ended under a cell: %v", p.gone())
		}
		p.GiveBack(k)
		synctest.Wait()
		if slices.Contains(p.gone(), "k1") {
			t.Error("ended at the moment its cell ended")
		}
	})
}

func TestTheLeastRecentlyUsedIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(0, 2)
		defer p.Close()
		for _, owner := range []string{"a", "b", "a", "c"} {
			p.use(t, owner)
			time.Sleep(time.Second)
		}
		if got := p.gone(); !slices.Equal(got, []string{"k2"}) {
			t.Errorf("%v ended, want k2, the one of b", got)
		}
		if k := p.use(t, "b"); k.Lost != "evicted" {
			t.Errorf("b is told %q, want evicted", k.Lost)
		}
		if k := p.use(t, "b"); k.Lost != "evicted" || k.Kernel.ID != "k4" {
			t.Errorf("b has %s, want its new one", k.Kernel.ID)
		}
	})
}

func TestDiscardEndsTheKernelOfAnOwner(t *testing.T) {
	p := newTestPool(0, 0)
	defer p.Close()
	if p.Discard(Key{Owner: "a"}) {
		t.Error("discard says that there was a kernel before the first")
	}
	p.use(t, "a")
	p.use(t, "b")
	if !p.Discard(Key{Owner: "a"}) || !slices.Equal(p.gone(), []string{"k1"}) {
		t.Errorf("ended: %v, want k1", p.gone())
	}
	if k := p.use(t, "a"); k.Lost != "" {
		t.Errorf("after a reset the owner is told %q", k.Lost)
	}
}

func TestAClosedPoolLendsNothing(t *testing.T) {
	p := newTestPool(time.Hour, 0)
	p.Close()
	if _, _, err := p.Lend(t.Context(), Key{}, p.start); !errors.Is(err, errClosed) {
		t.Errorf("got %v, want %v", err, errClosed)
	}
}
