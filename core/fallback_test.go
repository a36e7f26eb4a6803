package core_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugin/sdk/sdktest"
	"github.com/hermes-framework/hermes/plugins/local"
)

// hostless is the local backend on a machine where no kernel host can be started as long as the file exists that the target names.
type hostless struct{ sdk.Backend }

func newHostless() sdk.Backend { return hostless{local.New()} }

func (b hostless) Info(ctx context.Context) (sdk.Info, error) {
	info, err := b.Backend.Info(ctx)
	info.Name = "hostless"
	return info, err
}

func (b hostless) Open(ctx context.Context, req sdk.OpenRequest) (sdk.Environment, error) {
	_, full, _ := strings.Cut(req.Target, ":")
	req.Target = "local:"
	env, err := b.Backend.Open(ctx, req)
	return hostlessEnv{env, env.(sdk.Dialer), full}, err
}

type hostlessEnv struct {
	sdk.Environment
	sdk.Dialer
	full string
}

func (e hostlessEnv) Exec(ctx context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	if _, err := os.Stat(e.full); err == nil && cmd.Argv[len(cmd.Argv)-1] == "start" {
		answer := cell.AppendValue(nil, cell.Fields{"code": "exhausted", "msg": "the disk is full", "hint": "free some space"})
		_, err := fmt.Fprintln(stdio.Stdout, "hermes-error", hex.EncodeToString(answer))
		return sdk.ExitStatus{Code: 1}, err
	}
	return e.Environment.Exec(ctx, cmd, stdio)
}

// fullDisk makes the file of a hostless target and returns the target, and what makes room.
func fullDisk(t *testing.T) (target string, makeRoom func()) {
	t.Helper()
	full := filepath.Join(t.TempDir(), "full")
	if err := os.WriteFile(full, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return "hostless:" + full, func() {
		if err := os.Remove(full); err != nil {
			t.Error(err)
		}
	}
}

func newHostlessEngine(t *testing.T, change ...func(*core.Config)) *core.Engine {
	return newEngine(t, append(change, func(c *core.Config) { c.Builtin = append(c.Builtin, builtin("hostless")) })...)
}

func TestACellWithoutAKernelHostRunsOnceAlone(t *testing.T) {
	for _, session := range []string{"", "work"} {
		t.Run("session "+session, func(t *testing.T) {
			e := newHostlessEngine(t)
			target, makeRoom := fullDisk(t)
			ran := filepath.Join(t.TempDir(), "ran")
			code := fmt.Sprintf("open(%q, 'a').write('x'); import os, sys\nx = 1\nprint('out'); print('err', file=sys.stderr)\nos.getpid()", ran)
			var kinds []cell.EventKind
			res, err := e.Run(t.Context(), core.Request{Environment: target, Session: session, Code: code}, func(ev cell.Event) {
				if ev.Kind != cell.EventOutput {
					kinds = append(kinds, ev.Kind)
				}
			})
			if err != nil || res.Cell.Outcome != cell.OutcomeOK || res.Cell.Stdout != "out\n" || res.Cell.Stderr != "err\n" {
				t.Fatalf("got %+v, %v", res.Cell, err)
			}
			if !res.Kernel.Fallback || res.Kernel.Reused || res.Kernel.StateLost {
				t.Errorf("the result says %+v, want a fallback that lost nothing", res.Kernel)
			}
			if diff := cmp.Diff([]cell.EventKind{cell.EventNote, cell.EventStarted, cell.EventEnd}, kinds); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			waitGone(t, atoi(t, value(res.Cell)), tooLong)

			again := run(t, e, core.Request{Environment: target, Session: session, Code: "x"})
			if again.Cell.Error == nil || again.Cell.Error.Type != "NameError" || !again.Kernel.StateLost || again.Kernel.StateLostReason != "fallback" {
				t.Errorf("the next one: %+v, %+v; want a NameError and state_lost fallback", again.Cell.Error, again.Kernel)
			}
			makeRoom()
			fresh := run(t, e, core.Request{Environment: target, Session: session, Code: "x = 2"})
			if fresh.Kernel.Fallback || !fresh.Kernel.StateLost || fresh.Kernel.StateLostReason != "fallback" {
				t.Errorf("the first one with a kernel says %+v, want state_lost fallback", fresh.Kernel)
			}
			if last := run(t, e, core.Request{Environment: target, Session: session, Code: "x"}); value(last.Cell) != "2" || last.Kernel.StateLost {
				t.Errorf("the one after says %+v, %+v", last.Cell, last.Kernel)
			}
			if data, err := os.ReadFile(ran); err != nil || string(data) != "x" {
				t.Errorf("it ran %d times (%v), want once", len(data), err)
			}
		})
	}
}

func TestAFallbackEndsAsACellDoes(t *testing.T) {
	e := newHostlessEngine(t)
	target, _ := fullDisk(t)
	for _, c := range []struct {
		req     core.Request
		outcome cell.Outcome
		exit    int
		signal  string
	}{
		{core.Request{Code: "import os; os._exit(7)"}, cell.OutcomeExit, 7, ""},
		{core.Request{Code: "raise SystemExit(3)"}, cell.OutcomeExit, 3, ""},
		{core.Request{Code: "import os; os.kill(os.getpid(), 11)"}, cell.OutcomeLost, 0, "SIGSEGV"},
		{core.Request{Code: "1/0"}, cell.OutcomeError, 0, ""},
		{core.Request{Code: "import time; time.sleep(60)", Timeout: 500 * time.Millisecond}, cell.OutcomeTimeout, 0, ""},
		{core.Request{Code: "while True: pass", Timeout: 500 * time.Millisecond}, cell.OutcomeTimeout, 0, ""},
		{core.Request{Code: "cd /; pwd; (exit 4)", Language: cell.Bash}, cell.OutcomeError, 4, ""},
		{core.Request{Code: "print('a' * 3_000_000)"}, cell.OutcomeOK, 0, ""},
	} {
		c.req.Environment = target
		begun := time.Now()
		res := run(t, e, c.req)
		wantOutcome(t, res.Cell, c.outcome)
		if code := res.Cell.ExitCode; code != nil && *code != c.exit || code == nil && c.exit != 0 || res.Cell.Signal != c.signal {
			t.Errorf("%.40q: exit code %v, signal %q, want %d, %q", c.req.Code, code, res.Cell.Signal, c.exit, c.signal)
		}
		if took := time.Since(begun); took > tooLong {
			t.Errorf("%.40q took %s", c.req.Code, took)
		}
	}
}

func TestACancelledFallbackIsInterrupted(t *testing.T) {
	e := newHostlessEngine(t)
	target, _ := fullDisk(t)
	ctx, cancel := context.WithCancel(t.Context())
	var pid int
	res, err := e.Run(ctx, core.Request{Environment: target, Code: "import os, time; print(os.getpid()); time.sleep(60)"}, func(ev cell.Event) {
		if n := strings.TrimSpace(ev.Text); ev.Kind == cell.EventOutput && n != "" {
			pid = atoi(t, n)
			cancel()
		}
	})
	if !errors.Is(err, cell.ErrInterrupted) || res.Cell.Outcome != cell.OutcomeInterrupted {
		t.Errorf("got %+v, %v, want interrupted", res.Cell, err)
	}
	waitGone(t, pid, tooLong)
}

// What might be asked for again must be remembered, and who wants no cell without its state says so.
func TestNoFallbackWhereItWasNotWanted(t *testing.T) {
	target, _ := fullDisk(t)
	for name, req := range map[string]core.Request{"an id that was chosen": {ID: "mine", Code: "1"}, "NoFallback": {Code: "1"}} {
		e := newHostlessEngine(t, func(c *core.Config) { c.NoFallback = name == "NoFallback" })
		req.Environment = target
		_, err := e.Run(t.Context(), req, nil)
		if failure := sdk.AsError(err, sdk.MayHaveRun); err == nil || failure.Code != sdk.CodeExhausted || failure.Delivery != sdk.NotStarted {
			t.Errorf("%s: got %v, want exhausted, not started", name, err)
		}
	}
}

// A directory that is not there is the caller's mistake with a kernel and without.
func TestAFallbackInADirectoryThatIsNotThere(t *testing.T) {
	e := newHostlessEngine(t)
	target, _ := fullDisk(t)
	_, err := e.Run(t.Context(), core.Request{Environment: target, Dir: "/no/such/directory", Code: "1"}, nil)
	if failure := sdk.AsError(err, sdk.MayHaveRun); err == nil || failure.Delivery != sdk.NotStarted || !strings.Contains(err.Error(), "/no/such/directory") {
		t.Errorf("got %v, want one that names the directory and says that nothing ran", err)
	}
}

// The answer to the start of a session's next host is lost. The host is there, and its record leads to it.
func TestASessionWhoseHostStartedUnseen(t *testing.T) {
	f := newField(t, rand.New(rand.NewPCG(1, 0)))
	o := order{N: 1, Session: "unseen", Code: "1"}
	e := f.open("faulty", nil)
	if v, _ := give(t.Context(), e, "here", o, nil); v.Outcome != cell.OutcomeOK {
		t.Fatal(v)
	}
	if !f.strike("host killed", os.Getpid()) {
		t.Fatal("there is no kernel host")
	}
	if err := e.Close(t.Context()); err != nil {
		t.Error(err)
	}
	e = f.open("faulty", map[string]any{"faults": []sdktest.Fault{{Step: sdktest.StepExec, Arg: "start", Do: sdktest.FailAfter}}})
	defer f.shut(e)
	if v, _ := give(t.Context(), e, "here", o, nil); v.Outcome != "" || v.Delivery != sdk.NotStarted {
		t.Errorf("while the answer got lost: %s", v)
	}
	if v, _ := give(t.Context(), e, "here", o, nil); v.Outcome != cell.OutcomeOK {
		t.Errorf("after that: %s", v)
	}
}
