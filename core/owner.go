package core

import (
	"context"
	"errors"
	"sync"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/pool"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Owner is whose kernels cells run in: an agent, a user, a conversation. Kernels are never shared between owners. Engine.Owner hands one out, and
// Owner.Child one for work that it delegates. An Owner has no kernel until its first cell; its kernels are gone after Close.
// Its methods may be called concurrently.
type Owner struct {
	engine *Engine
	parent *Owner // nil: it was handed out by Engine.Owner
	name   string
	life   *pool.Owner

	mu       sync.Mutex
	children map[string]*Owner // the open ones
	closed   bool
}

// Owner returns the owner of that name, the one that a Request with the same Owner means; the empty name is that of a Request that names none.
// Until it is closed, the same name is the same *Owner. It does no I/O.
func (e *Engine) Owner(name string) *Owner {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.owners[name]
	if o == nil {
		o = e.newOwner(nil, name, &pool.Owner{Name: name})
		e.owners[name] = o
	}
	return o
}

func (e *Engine) newOwner(parent *Owner, name string, life *pool.Owner) *Owner {
	life.Closed = ownerClosed(life.Name)
	return &Owner{engine: e, parent: parent, name: name, life: life, children: map[string]*Owner{}}
}

func ownerClosed(name string) error {
	return sdk.Errorf(sdk.CodeClosed, sdk.NotStarted, "owner %q is closed", name)
}

// Name returns the name that Engine.Owner or Child was given.
func (o *Owner) Name() string { return o.name }

// Run is Engine.Run in a kernel of this owner. The request's Owner must be empty or, unless this is a child, Name. It must name no session: the kernel
// of a session belongs to its name, and outlives every owner. After Close the error has sdk.CodeClosed and nothing ran; a cell that Close comes
// upon ends as lost, or as refused if it was queued.
func (o *Owner) Run(ctx context.Context, req Request, emit func(cell.Event)) (cell.Result, error) {
	switch {
	case req.Owner != "" && (o.parent != nil || req.Owner != o.name):
		return cell.Result{}, invalid("leave Request.Owner empty", "owner %q: the request is for another owner, %q", o.life.Name, req.Owner)
	case req.Session != "":
		return cell.Result{}, invalid("use Engine.Run", "owner %q: a named session has no owner", o.life.Name)
	}
	return o.engine.run(ctx, o.life, req, emit)
}

// Child returns an owner for work that this one delegates, which may have children in turn. Its kernels are pinned while it is open: they do not count
// against Config.MaxSessionKernels, and neither eviction nor idle time ends them. Only Close does, its own, its parent's or the engine's: call it when
// the work is done. A child shares nothing with its parent, nor with an earlier child of its name. The name, which is for people, must not be empty
// and not that of another open child of this owner: that is an error with sdk.CodeConflict. If this owner is closed, it has sdk.CodeClosed.
func (o *Owner) Child(name string) (*Owner, error) {
	if name == "" {
		return nil, invalid("", "owner %q: a child must have a name", o.life.Name)
	}
	if err := o.engine.alive(); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, o.life.Closed
	}
	if o.children[name] != nil {
		return nil, sdk.Errorf(sdk.CodeConflict, sdk.NotStarted, "owner %q has an open child %q already", o.life.Name, name)
	}
	// The number is what tells children apart: any name of theirs, joined with any separator, may be that of an owner.
	life := &pool.Owner{Name: o.life.Name + "/" + name, Child: o.engine.children.Add(1), Pinned: true}
	c := o.engine.newOwner(o, name, life)
	o.children[name] = c
	return c, nil
}

// Close ends the kernels of this owner with all their processes, and closes its children; nobody else's are touched. It returns when they are gone,
// which takes some seconds at most, longer only if one of them was just starting; or when ctx is done, with its error, and then they end all the same.
// It is idempotent: every call waits for the same end. Then the name is free again, for Engine.Owner or Child. To a Request that only names this
// owner Close means nothing but that its kernel is gone.
func (o *Owner) Close(ctx context.Context) error {
	defer o.release() // not before: the parent's Close waits for those that have their names still
	var wg sync.WaitGroup
	children := o.shut()
	errs := make([]error, len(children)+1)
	for i, c := range children {
		wg.Go(func() { errs[i] = c.Close(ctx) })
	}
	errs[len(children)] = o.engine.pool.CloseOwner(ctx, o.life)
	wg.Wait()
	return errors.Join(errs...)
}

// shut makes the owner closed and returns its open children.
func (o *Owner) shut() []*Owner {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	var open []*Owner
	for _, c := range o.children {
		open = append(open, c)
	}
	return open
}

// release frees the owner's name.
func (o *Owner) release() {
	if o.parent == nil {
		o.engine.mu.Lock()
		defer o.engine.mu.Unlock()
		if o.engine.owners[o.name] == o {
			delete(o.engine.owners, o.name)
		}
		return
	}
	o.parent.mu.Lock()
	defer o.parent.mu.Unlock()
	if o.parent.children[o.name] == o {
		delete(o.parent.children, o.name)
	}
}
