package core_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// ownerRun runs a cell that gets a result.
func ownerRun(t *testing.T, o *core.Owner, code string) cell.Result {
	t.Helper()
	res, err := o.Run(t.Context(), core.Request{Code: code}, nil)
	if ended := (*cell.RunError)(nil); err != nil && !errors.As(err, &ended) {
		t.Fatalf("owner %s: run %.60q: %v", o.Name(), code, err)
	}
	return res
}

func child(t *testing.T, o *core.Owner, name string) *core.Owner {
	t.Helper()
	c, err := o.Child(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Case 8.
func TestChildrenKeepTheirKernelsToTheirEnd(t *testing.T) {
	e := newEngine(t, func(c *core.Config) { c.MaxSessionKernels = 2; c.KernelIdleTimeout = 300 * time.Millisecond })
	parent := e.Owner("agent")
	const code = "import os, subprocess; x = %d; p = subprocess.Popen(['sleep', '300']); print(os.getpid(), p.pid)"
	var children []*core.Owner
	var pids [][]string
	for i := range 5 { // more than the cap
		c := child(t, parent, fmt.Sprint("task ", i))
		children = append(children, c)
		pids = append(pids, strings.Fields(ownerRun(t, c, fmt.Sprintf(code, i)).Cell.Stdout))
	}
	// Two owners that are called like children are no children: with the parent they are one too many, and idle soon.
	var others []int
	for _, name := range []string{"agent", "agent/task 0", "agent/task 1"} {
		others = append(others, atoi(t, value(run(t, e, core.Request{Owner: name, Code: "import os; os.getpid()"}).Cell)))
	}
	for _, pid := range others {
		waitGone(t, pid, tooLong) // by eviction, or by the idle time that a child's kernel has passed by now, too
	}
	if err := children[1].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, c := range children {
		for _, pid := range pids[i] {
			if got, want := alive(atoi(t, pid)), i != 1; got != want {
				t.Errorf("process %s of child %d: alive %v, want %v", pid, i, got, want)
			}
		}
		if i == 1 {
			_, err := c.Run(t.Context(), core.Request{Code: "1"}, nil)
			if pe := (*sdk.Error)(nil); !errors.As(err, &pe) || pe.Code != sdk.CodeClosed || pe.Delivery != sdk.NotStarted {
				t.Errorf("a closed child: %v", err)
			}
			continue
		}
		if res := ownerRun(t, c, "x"); value(res.Cell) != fmt.Sprint(i) || !res.Kernel.Reused || res.Kernel.StateLost {
			t.Errorf("child %d: value %q, kernel %+v", i, value(res.Cell), res.Kernel)
		}
	}
	if res := ownerRun(t, parent, "'x' in globals()"); value(res.Cell) != "False" || !res.Kernel.StateLost {
		t.Errorf("the parent: value %q, kernel %+v; want its own fresh kernel", value(res.Cell), res.Kernel)
	}
	again := child(t, parent, "task 1")
	if res := ownerRun(t, again, "'x' in globals()"); value(res.Cell) != "False" || res.Kernel.StateLost {
		t.Errorf("a new child of an old name: value %q, kernel %+v", value(res.Cell), res.Kernel)
	}
	if err := parent.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, err := e.Kernels(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("after the parent's Close there are %+v, error %v", all, err)
	}
}

func TestOwnersRefuseWhatIsNotTheirs(t *testing.T) {
	e := newEngine(t)
	a := e.Owner("a")
	if e.Owner("a") != a {
		t.Error("the same name is another owner")
	}
	c := child(t, a, "b")
	_, twice := a.Child("b")
	_, unnamed := a.Child("")
	_, other := a.Run(t.Context(), core.Request{Owner: "x", Code: "1"}, nil)
	_, above := c.Run(t.Context(), core.Request{Owner: "b", Code: "1"}, nil)
	_, session := a.Run(t.Context(), core.Request{Session: "s", Code: "1"}, nil)
	for range 2 {
		if err := a.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	_, late := a.Child("c")
	_, orphan := c.Child("c")
	_, run := c.Run(t.Context(), core.Request{Code: "1"}, nil)
	for _, tc := range []struct {
		what string
		got  error
		want error
	}{
		{"a second child of one name", twice, sdk.ErrConflict},
		{"a child without a name", unnamed, sdk.ErrInvalid},
		{"a request for another owner", other, sdk.ErrInvalid},
		{"a request that names an owner, of a child", above, sdk.ErrInvalid},
		{"a session", session, sdk.ErrInvalid},
		{"a child of a closed owner", late, sdk.ErrClosed},
		{"a child of a closed child", orphan, sdk.ErrClosed},
		{"a cell of a closed owner's child", run, sdk.ErrClosed},
	} {
		if !errors.Is(tc.got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.what, tc.got, tc.want)
		}
	}
	if e.Owner("a") == a {
		t.Error("a closed owner is handed out")
	}
}

// What Close comes upon ends, a running cell and a queued one.
func TestClosingAnOwnerEndsItsCells(t *testing.T) {
	e := newEngine(t)
	c := child(t, e.Owner("a"), "b")
	ownerRun(t, c, "import time")
	running, queued := cellsOf(t.Context(), t, c)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if got := <-running; got.res.Cell.Outcome != cell.OutcomeLost || !errors.Is(got.err, cell.ErrLost) {
		t.Errorf("the running cell: %+v, %v", got.res.Cell, got.err)
	}
	if got := <-queued; got.res.Cell.Outcome != cell.OutcomeRefused || !errors.Is(got.err, cell.ErrRefused) {
		t.Errorf("the queued cell: %+v, %v", got.res.Cell, got.err)
	}
}

func TestCancellingAQueuedCellRefusesIt(t *testing.T) {
	e := newEngine(t)
	o := e.Owner("a")
	ownerRun(t, o, "import time; go = False")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	running, queued := cellsOf(ctx, t, o)
	cancel()
	if got := <-queued; got.res.Cell.Outcome != cell.OutcomeRefused || !errors.Is(got.err, cell.ErrRefused) {
		t.Errorf("the queued cell: %+v, %v", got.res.Cell, got.err)
	}
	kernels, err := e.Kernels(t.Context())
	if err != nil || len(kernels) != 1 || kernels[0].State != "busy" {
		t.Fatalf("kernels %+v, error %v; want one that runs the first cell still", kernels, err)
	}
	if err := e.Interrupt(t.Context(), kernels[0].ID); err != nil {
		t.Error(err)
	}
	if got := <-running; got.res.Cell.Outcome != cell.OutcomeInterrupted {
		t.Errorf("the running cell: %+v, %v", got.res.Cell, got.err)
	}
	if res := ownerRun(t, o, "go"); value(res.Cell) != "False" || res.Kernel.StateLost {
		t.Errorf("the next cell: %+v", res)
	}
}

type ended struct {
	res cell.Result
	err error
}

// cellsOf has a cell that runs and, with ctx, one that is queued behind it.
func cellsOf(ctx context.Context, t *testing.T, o *core.Owner) (running, queued <-chan ended) {
	t.Helper()
	later := func(ctx context.Context, code string, kind cell.EventKind) <-chan ended {
		done, told := make(chan ended, 1), make(chan struct{}, 1)
		go func() { // received by the caller
			res, err := o.Run(ctx, core.Request{Code: code}, func(ev cell.Event) {
				if ev.Kind == kind {
					told <- struct{}{}
				}
			})
			done <- ended{res, err}
		}()
		select {
		case <-told:
		case <-time.After(tooLong):
			t.Fatalf("%s: no event %s", code, kind)
		}
		return done
	}
	running = later(t.Context(), "time.sleep(60)", cell.EventStarted)
	return running, later(ctx, "go = True", cell.EventAccepted)
}
