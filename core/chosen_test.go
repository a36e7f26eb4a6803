package core_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// killHost kills the kernel host of a request's kernel and waits for the kernel's end.
func killHost(t *testing.T, e *core.Engine, req core.Request) (journal string) {
	t.Helper()
	req.ID, req.Code = "", "import os; os.getpid()"
	res := run(t, e, req)
	pid := atoi(t, value(res.Cell))
	host := parent(t, parent(t, pid))
	journal = journalOf(t, host)
	kill(t, host)
	waitGone(t, pid, tooLong)
	return journal
}

// The same id is the same cell also when its kernel host was killed in between, in the same engine and, in a session, in another one.
func TestTheSameIDAfterItsHostWasKilled(t *testing.T) {
	for _, session := range []string{"", "ids"} {
		t.Run("session "+session, func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "state")
			use := func(c *core.Config) { c.StateDir = state }
			e := newEngine(t, use)
			mark := filepath.Join(t.TempDir(), "mark")
			req := core.Request{Session: session, ID: "mine", Code: fmt.Sprintf("n = open(%q, 'a').write('x'); print('once'); 7", mark)}
			run(t, e, req)
			half := core.Request{Session: session, ID: "half", Code: "import os, signal, time; h = open(f'/proc/{os.getppid()}/stat').read().rsplit(')', 1)[1].split()[1]; os.kill(int(h), signal.SIGKILL); time.sleep(60)"}
			if res, err := e.Run(t.Context(), half, nil); !errors.Is(err, cell.ErrLost) {
				t.Errorf("the host's end: %+v", res)
			}
			if session != "" {
				e = newEngine(t, use)
			}
			for range 2 {
				if c := run(t, e, req).Cell; value(c) != "7" || c.Stdout != "once\n" {
					t.Errorf("the id again: %+v", c)
				}
				if c := run(t, e, half).Cell; c.Outcome != cell.OutcomeLost {
					t.Errorf("the id of a cell that was lost: %+v", c)
				}
			}
			if data, _ := os.ReadFile(mark); string(data) != "x" {
				t.Errorf("it ran %d times", len(data))
			}
			other := req
			other.Code = "8"
			if c := run(t, e, other).Cell; c.Outcome != cell.OutcomeRefused || !strings.Contains(c.Reason, "conflict") {
				t.Errorf("other code: %+v", c)
			}
			// A cell that ended where there is no journal any more.
			last := core.Request{Session: session, ID: "last", Code: "9"}
			run(t, e, last)
			if err := os.Remove(killHost(t, e, core.Request{Session: session})); err != nil {
				t.Error(err)
			}
			if c := run(t, e, last).Cell; c.Outcome != cell.OutcomeUnknown {
				t.Errorf("without a journal: %+v", c)
			}
			last.Code = "10"
			if c := run(t, e, last).Cell; c.Outcome != cell.OutcomeRefused || !strings.Contains(c.Reason, "conflict") {
				t.Errorf("without a journal, other code: %+v", c)
			}
			// A cell that could not be sent has not run.
			killHost(t, e, core.Request{Session: session})
			if c := run(t, e, core.Request{Session: session, ID: "unsent", Code: "11"}).Cell; value(c) != "11" {
				t.Errorf("an id that was never sent: %+v", c)
			}
		})
	}
}

// A cell that waited when its host was killed has certainly not run: its id may run now.
func TestAnIDThatWaitedRunsLater(t *testing.T) {
	e := newEngine(t)
	host := parent(t, parent(t, atoi(t, value(run(t, e, core.Request{Session: "w", Code: "import os; os.getpid()"}).Cell))))
	req := core.Request{Session: "w", ID: "waits", Code: "5"}
	var waiting sync.WaitGroup
	_, err := e.Run(t.Context(), core.Request{Session: "w", Code: "import time; time.sleep(60)"}, func(ev cell.Event) {
		if ev.Kind != cell.EventStarted {
			return
		}
		accepted := make(chan struct{})
		waiting.Go(func() { // ends with the host
			var once sync.Once
			res, err := e.Run(t.Context(), req, func(ev cell.Event) {
				if ev.Kind == cell.EventAccepted {
					once.Do(func() { close(accepted) })
				}
			})
			if !errors.Is(err, cell.ErrRefused) {
				t.Errorf("the waiting cell: %+v, %v", res.Cell, err)
			}
		})
		<-accepted
		kill(t, host)
	})
	waiting.Wait()
	if !errors.Is(err, cell.ErrLost) {
		t.Errorf("got %v", err)
	}
	if c := run(t, e, req).Cell; value(c) != "5" {
		t.Errorf("later: %+v", c)
	}
}

// Cells of sessions can be seen, waited for and cancelled by another engine.
func TestCellsOfAnotherEngine(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	use := func(c *core.Config) { c.StateDir = state }
	first, second := newEngine(t, use), newEngine(t, use)
	var running sync.WaitGroup
	started := make(chan struct{})
	running.Go(func() { // ends when the cell is cancelled
		var once sync.Once
		_, err := first.Run(t.Context(), core.Request{Session: "c", ID: "long", Code: "import time; print('x' * 300000, flush=True); time.sleep(60)"}, func(ev cell.Event) {
			if ev.Kind == cell.EventOutput && ev.Offset+int64(len(ev.Data)) == 300001 {
				once.Do(func() { close(started) })
			}
		})
		if !errors.Is(err, cell.ErrInterrupted) {
			t.Errorf("the cancelled cell: %v", err)
		}
	})
	<-started
	all, err := second.Cells(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != "long" || all[0].State != "running" || all[0].Started == nil || all[0].Finished != nil || time.Since(all[0].Submitted) > time.Minute {
		t.Errorf("cells %+v, error %v", all, err)
	}
	status, shown, err := second.ShowCell(t.Context(), "long", nil)
	if err != nil || status.State != "running" || shown.Cell.Outcome != "" || shown.Cell.StdoutBytes != 300001 {
		t.Errorf("shown %+v, %d bytes, error %v", status, shown.Cell.StdoutBytes, err)
	}
	if err := second.CancelCell(t.Context(), "long"); err != nil {
		t.Error(err)
	}
	running.Wait()
	for range 2 {
		if res, err := second.Cell(t.Context(), "long", nil); !errors.Is(err, cell.ErrInterrupted) || res.Cell.StdoutBytes != 300001 || res.Kernel.Session != "c" {
			t.Errorf("waited: %+v, %v", res.Kernel, err)
		}
	}
	if err := second.CancelCell(t.Context(), "none"); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("cancel of nothing: %v", err)
	}
	if _, err := second.Cell(t.Context(), "none", nil); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("wait for nothing: %v", err)
	}
}

// Two programs that ask for one id at the same moment get one cell.
func TestTwoProgramsAskForOneID(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	use := func(c *core.Config) { c.StateDir = state }
	engines := []*core.Engine{newEngine(t, use), newEngine(t, use)}
	mark := filepath.Join(t.TempDir(), "mark")
	const ids = 12
	for n := range ids {
		id := fmt.Sprint("both-", n)
		code := fmt.Sprintf("open(%q, 'a').write('%d\\n'); %d", mark, n, n)
		var asking sync.WaitGroup
		for _, e := range engines {
			asking.Go(func() {
				if c := run(t, e, core.Request{Session: "shared", ID: id, Code: code}).Cell; value(c) != fmt.Sprint(n) {
					t.Errorf("cell %d: %+v", n, c)
				}
			})
		}
		asking.Wait()
	}
	data, _ := os.ReadFile(mark)
	if got := strings.Fields(string(data)); len(got) != ids {
		t.Errorf("%d cells ran %d times: %q", ids, len(got), got)
	}
}

// A session that was reset into another environment: an id that ran in the one before has run, one that waited there is revoked and runs here.
func TestAnIDOfASessionThatMoved(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	use := func(c *core.Config) {
		c.StateDir = state
		c.Environments = map[string]core.EnvironmentConfig{"other": {Target: "local:"}}
	}
	first, second := newEngine(t, use), newEngine(t, use)
	mark := filepath.Join(t.TempDir(), "mark")
	mine := func(id string) core.Request {
		return core.Request{Session: "moves", ID: id, Code: fmt.Sprintf("open(%q, 'a').write('%s\\n'); 1", mark, id)}
	}
	run(t, first, mine("ran"))
	run(t, first, core.Request{Session: "moves", Environment: "other", Reset: true, Code: "2"})
	for _, e := range []*core.Engine{first, second} {
		if c := run(t, e, mine("ran")).Cell; value(c) != "1" {
			t.Errorf("an id that ran before the session moved: %+v", c)
		}
	}
	if data, _ := os.ReadFile(mark); string(data) != "ran\n" {
		t.Errorf("what ran: %q", data)
	}
}

func TestARecordOfACellThatIsDamaged(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	e := newEngine(t, func(c *core.Config) { c.StateDir = state })
	req := core.Request{Session: "d", ID: "damaged", Code: "open('/dev/null'); 1"}
	run(t, e, req)
	records, _ := filepath.Glob(filepath.Join(state, "cells", "*.json"))
	if len(records) != 1 {
		t.Fatalf("records: %q", records)
	}
	if err := os.WriteFile(records[0], []byte(`{"id":"some`), 0o600); err != nil {
		t.Fatal(err)
	}
	// The kernel host still has the cell, so that the damage matters only to a program that would have to ask there.
	res, err := newEngine(t, func(c *core.Config) { c.StateDir = state }).Run(t.Context(), req, nil)
	if err == nil || !strings.Contains(err.Error(), records[0]) {
		t.Errorf("got %+v, %v; want an error that names %s", res.Cell, err, records[0])
	}
	if data, _ := os.ReadFile(records[0]); string(data) != `{"id":"some` {
		t.Errorf("the damaged record was changed: %q", data)
	}
}

func TestOldRecordsOfCellsAreRemoved(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	e := newEngine(t, func(c *core.Config) { c.StateDir = state })
	run(t, e, core.Request{Session: "o", ID: "old", Code: "1"})
	records, _ := filepath.Glob(filepath.Join(state, "cells", "*.json"))
	if len(records) != 1 {
		t.Fatalf("records: %q", records)
	}
	run(t, e, core.Request{Session: "o", ID: "young", Code: "2"})
	week := time.Now().Add(-7*24*time.Hour - time.Minute)
	if err := os.Chtimes(records[0], week, week); err != nil {
		t.Fatal(err)
	}
	run(t, e, core.Request{Session: "o", ID: "new", Code: "3"})
	if _, err := os.Stat(records[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a record of more than seven days is there: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(state, "cells", "*.json")); len(left) != 2 {
		t.Errorf("records: %q, want those of young and new", left)
	}
}
