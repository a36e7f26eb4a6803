package sdk

import (
	"context"
	"sync"
)

// Environments is a table of open environments by ID. It makes Open idempotent: callers that open the same ID at once share one
// environment, and so does one that opens it again. And it makes Close idempotent. The zero value is empty and ready for use.
type Environments[E Environment] struct {
	mu    sync.Mutex
	slots map[string]*slot[E]
}

// slot is one ID: being opened until ready is closed, then open.
type slot[E Environment] struct {
	ready chan struct{}
	env   E
	err   error
}

// Open returns the environment with this ID. If there is none it calls open, once however many callers wait; a failure is given to
// all of them and not remembered. Open stops waiting when ctx ends; open itself gets the ctx of the caller that was first.
func (t *Environments[E]) Open(ctx context.Context, id string, open func(context.Context) (E, error)) (E, error) {
	t.mu.Lock()
	s, ok := t.slots[id]
	if !ok {
		s = &slot[E]{ready: make(chan struct{})}
		if t.slots == nil {
			t.slots = make(map[string]*slot[E])
		}
		t.slots[id] = s
	}
	t.mu.Unlock()

	if !ok {
		t.fill(ctx, id, s, open)
	}
	select {
	case <-s.ready:
		return s.env, s.err
	case <-ctx.Done():
		var none E
		return none, canceled(ctx, MayHaveRun, "open environment")
	}
}

// fill opens s. A panic of open frees the slot on its way up.
func (t *Environments[E]) fill(ctx context.Context, id string, s *slot[E], open func(context.Context) (E, error)) {
	s.err = Errorf(CodeInternal, MayHaveRun, "open environment: the backend panicked")
	defer func() {
		if s.err != nil {
			t.remove(id, s)
		}
		close(s.ready)
	}()
	s.env, s.err = open(ctx)
}

// Get returns the open environment with this ID.
func (t *Environments[E]) Get(id string) (E, bool) {
	t.mu.Lock()
	s := t.slots[id]
	t.mu.Unlock()

	if s != nil {
		select {
		case <-s.ready:
			return s.env, s.err == nil
		default:
		}
	}
	var none E
	return none, false
}

// Close takes the environment with this ID out of the table and calls free with it. Whoever comes second finds nothing and gets nil.
// An environment that is still being opened is waited for.
func (t *Environments[E]) Close(ctx context.Context, id string, free func(context.Context, E) error) error {
	t.mu.Lock()
	s := t.slots[id]
	t.mu.Unlock()
	if s == nil {
		return nil
	}

	select {
	case <-s.ready:
	case <-ctx.Done():
		return canceled(ctx, NotStarted, "close environment")
	}
	if !t.remove(id, s) || s.err != nil {
		return nil
	}
	return free(ctx, s.env)
}

// IDs returns the IDs in the table, in no order.
func (t *Environments[E]) IDs() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := make([]string, 0, len(t.slots))
	for id := range t.slots {
		ids = append(ids, id)
	}
	return ids
}

// remove takes s out of the table and reports whether it was there.
func (t *Environments[E]) remove(id string, s *slot[E]) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.slots[id] != s {
		return false
	}
	delete(t.slots, id)
	return true
}
