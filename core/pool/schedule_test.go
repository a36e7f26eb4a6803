package pool

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/hermes-framework/hermes/core/kernel"
)

// step is one thing that happens to a pool, some time after the step before.
type step struct {
	After  time.Duration
	Do     string // run, reset, kill, lose, close
	Key    int
	Start  time.Duration // how long a kernel takes to start, should one be started for this step
	Fails  bool          // that start fails
	Takes  time.Duration // of the cell
	Cancel time.Duration // of the caller; 0: never
	Mute   bool          // nobody gets the cell's result
	Dies   bool          // the cell takes its kernel with it
	Starts bool          // the cell starts: it is not refused
}

func drawSteps(t *rapid.T) []step {
	seconds := func(label string, most int) time.Duration {
		return time.Duration(rapid.IntRange(0, most*10).Draw(t, label)) * time.Second / 10
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			After: seconds("after", 8), Key: rapid.IntRange(0, 4).Draw(t, "key"),
			Do:    rapid.SampledFrom([]string{"run", "run", "run", "run", "run", "reset", "kill", "lose", "close"}).Draw(t, "do"),
			Start: seconds("start", 3), Fails: rapid.IntRange(0, 9).Draw(t, "fails") == 9,
			Takes: seconds("takes", 15), Cancel: seconds("cancel", 5) * time.Duration(rapid.IntRange(0, 1).Draw(t, "cancels")),
			Mute: rapid.Bool().Draw(t, "mute"), Dies: rapid.IntRange(0, 9).Draw(t, "dies") == 9, Starts: rapid.Bool().Draw(t, "starts"),
		}
	}), 1, 40).Draw(t, "steps")
}

// world is where the kernels of a schedule live: it knows which there are, and what must not happen to them.
type world struct {
	pool *Pool
	keys []Key
	own  []*Owner

	mu       sync.Mutex
	faults   []string
	made     int
	kernels  map[string]*fake
	taken    map[Key]time.Time // the last time that somebody asked for the end of a key's kernel
	losses   map[Key]int       // that there may have been, and were told
	told     map[Key]int
	starting int
}

type fake struct {
	key      Key
	since    time.Time
	attached int
	used     bool
	dead     bool // killed, or ended
}

const (
	worldIdle = 10 * time.Second
	worldMost = 2
)

func newWorld() *world {
	w := &world{kernels: map[string]*fake{}, taken: map[Key]time.Time{}, losses: map[Key]int{}, told: map[Key]int{}}
	w.pool = New(Options{Idle: worldIdle, Most: worldMost, End: w.end, Closed: errClosed})
	for i := range 5 { // three in one environment, one that is pinned there, one elsewhere
		key := Key{Owner: strconv.Itoa(i), Environment: "here"}
		switch i {
		case 3:
			key.Child = 1
		case 4:
			key.Environment = "there"
		}
		w.keys = append(w.keys, key)
		w.own = append(w.own, w.life(key))
	}
	return w
}

func (w *world) life(key Key) *Owner {
	return &Owner{Name: key.Owner, Child: key.Child, Pinned: key.Child > 0, Closed: errOwnerClosed}
}

func (w *world) fault(format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf("%s: ", time.Now().Format("05.0"))+fmt.Sprintf(format, args...))
}

func (w *world) start(ctx context.Context, key Key, s step) (kernel.Kernel, error) {
	w.mu.Lock()
	for id, f := range w.kernels {
		if f.key == key && !f.dead {
			w.fault("another kernel for %v is started beside %s", key, id)
		}
	}
	w.starting++
	w.mu.Unlock()
	select {
	case <-time.After(s.Start):
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starting--
	if s.Fails || ctx.Err() != nil {
		return kernel.Kernel{}, errors.New("no kernel")
	}
	w.made++
	id := "k" + strconv.Itoa(w.made)
	w.kernels[id] = &fake{key: key, since: time.Now()}
	return kernel.Kernel{ID: id}, nil
}

func (w *world) end(ref kernel.Kernel) {
	w.mu.Lock()
	f := w.kernels[ref.ID]
	if f.attached > 0 && !f.dead && w.taken[f.key].Before(f.since) {
		w.fault("%s of %v is ended with %d cells attached", ref.ID, f.key, f.attached)
	}
	w.mu.Unlock()
	time.Sleep(time.Second / 2)
	w.die(ref)
}

// die is the end of a kernel, whether somebody asked for it or not.
func (w *world) die(ref kernel.Kernel) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.kernels[ref.ID]
	if f.used && !f.dead {
		w.losses[f.key]++
	}
	f.dead = true
}

// asks notes that somebody asks for the end of the key's kernel, those included that are not up when the pool hears of it.
func (w *world) asks(key Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken[key] = time.Now()
}

func (w *world) do(ctx context.Context, s step) {
	key := w.keys[s.Key]
	switch s.Do {
	case "kill":
		w.kill(key)
	case "lose":
		w.asks(key)
		w.mu.Lock()
		w.losses[key]++
		w.mu.Unlock()
		_, _ = w.pool.Lose(ctx, key, "fallback")
	case "close":
		w.mu.Lock()
		o := w.own[s.Key]
		w.own[s.Key] = w.life(key) // which the next steps are for
		w.mu.Unlock()
		w.asks(key)
		if err := w.pool.CloseOwner(ctx, o); err != nil {
			return
		}
		if _, err := w.pool.Lend(ctx, key, LendOptions{Owner: o}, nil); !errors.Is(err, errOwnerClosed) && !errors.Is(err, errClosed) {
			w.mu.Lock()
			w.fault("a closed owner is lent a kernel: %v", err)
			w.mu.Unlock()
		}
	case "reset":
		w.asks(key)
		w.run(ctx, s)
	default:
		w.run(ctx, s)
	}
}

// kill ends a kernel behind the pool's back, as Engine.Kill does.
func (w *world) kill(key Key) {
	w.mu.Lock()
	var ref kernel.Kernel
	for id, f := range w.kernels {
		if f.key == key && !f.dead {
			ref.ID = id
		}
	}
	w.mu.Unlock()
	if ref.ID != "" {
		w.die(ref)
		w.pool.Dead(ref)
	}
}

func (w *world) run(ctx context.Context, s step) {
	key := w.keys[s.Key]
	if s.Cancel > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.Cancel)
		defer cancel()
	}
	w.mu.Lock()
	o := w.own[s.Key]
	w.mu.Unlock()
	l, err := w.pool.Lend(ctx, key, LendOptions{Owner: o, Fresh: s.Do == "reset"}, func(ctx context.Context) (kernel.Kernel, error) { return w.start(ctx, key, s) })
	if err != nil {
		return
	}
	f := w.attach(l, s)
	select {
	case <-time.After(s.Takes):
	case <-ctx.Done():
	}
	w.mu.Lock()
	f.attached--
	dead := f.dead
	w.mu.Unlock()

	if s.Starts {
		w.pool.Ran(l)
	}
	if s.Dies && !dead {
		w.die(l.Kernel)
		dead = true
	}
	if dead {
		w.pool.Forget(l, Died)
	}
	w.pool.GiveBack(l, !s.Mute)
}

func (w *world) attach(l *Lease, s step) *fake {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.kernels[l.Kernel.ID]
	f.attached++
	f.used = true
	if l.Lost != "" && !s.Mute {
		if w.told[f.key]++; w.told[f.key] > w.losses[f.key]+1 { // a kernel's loss may be told while it is being ended
			w.fault("%v was told of %d losses, and had %d", f.key, w.told[f.key], w.losses[f.key])
		}
	}
	return f
}

// check compares the state with what must hold whenever nothing is about to move.
func (w *world) check() {
	w.pool.update(func(s *poolState) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for name, sh := range s.shelves {
			if sh.live > worldMost && sh.idle.Len() > 1 {
				w.fault("%s: %d kernels, %d of them idle; at most %d may be there", name, sh.live, sh.idle.Len(), worldMost)
			}
			last := time.Time{}
			for e := sh.idle.Front(); e != nil; e = e.Next() {
				k := e.Value.(*held)
				if k.out || k.pinned || k.users > 0 || k.lastUsed.Before(last) || time.Since(k.lastUsed) > worldIdle {
					w.fault("%s: on the idle list is %+v", name, k)
				}
				last = k.lastUsed
			}
			if sh.idle.Len() > 0 && s.timer == nil {
				w.fault("%s: kernels are idle, and no timer is set", name)
			}
		}
	})
}

// settle lets everything end that can, and looks at what is left.
func (w *world) settle(ctx context.Context) {
	time.Sleep(time.Hour)
	synctest.Wait()
	w.check()
	w.mu.Lock()
	for id, f := range w.kernels {
		if !f.dead && f.key.Child == 0 {
			w.fault("%s of %v is left after an hour", id, f.key)
		}
		if !f.dead && f.attached > 0 {
			w.fault("%s of %v has %d cells in the end", id, f.key, f.attached)
		}
	}
	w.mu.Unlock()
	for i, key := range w.keys {
		w.run(ctx, step{Do: "run", Key: i, Starts: true}) // tells what there is to tell
		l, err := w.pool.Lend(ctx, key, LendOptions{Owner: w.own[i]}, nil)
		if err != nil || l.Lost != "" || !l.Reused {
			w.fault("%v: in the end its second cell gets %+v, %v", key, l, err)
			continue
		}
		w.pool.GiveBack(l, true)
		if err := w.pool.CloseOwner(ctx, w.own[i]); err != nil {
			w.fault("%v: %v", key, err)
		}
	}
	for id, f := range w.kernels {
		if !f.dead {
			w.fault("%s of %v is left after its owner was closed", id, f.key)
		}
	}
	w.pool.update(func(s *poolState) {
		if len(s.newest)+len(s.shelves)+len(s.lost.byKey)+s.lost.order.Len() > 0 {
			w.fault("the pool still has %v, %v, %v", s.newest, s.shelves, s.lost.byKey)
		}
	})
}

// Random schedules of five keys.
func TestSchedules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := drawSteps(t)
		closeEarly := rapid.IntRange(0, 4).Draw(t, "close early") == 4
		rapid.SyncTest(t, func(t *rapid.T) {
			w := newWorld()
			ctx := context.Background()
			var wg sync.WaitGroup
			for _, s := range steps {
				time.Sleep(s.After)
				synctest.Wait() // what is due at this moment has happened
				w.check()
				wg.Go(func() { w.do(ctx, s) })
			}
			if closeEarly {
				w.pool.Close()
			}
			wg.Wait()
			if !closeEarly {
				w.settle(ctx)
				w.pool.Close()
			}
			for _, f := range w.faults {
				t.Error(f)
			}
			if w.starting > 0 {
				t.Errorf("%d kernels are starting after Close", w.starting)
			}
		})
	})
}
