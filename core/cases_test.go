package core_test

import (
	"context"
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

func TestACellPrintsAndHasAValue(t *testing.T) {
	e := newEngine(t)
	c := runCode(t, e, "print('hello'); 6*7")
	if c.Outcome != cell.OutcomeOK || c.Stdout != "hello\n" || value(c) != "42" {
		t.Errorf("got %+v", c)
	}
	if c := runCode(t, e, "x = 5"); c.Value != nil {
		t.Errorf("an assignment has the value %q", value(c))
	}
	if c := runCode(t, e, "x;"); c.Value != nil {
		t.Errorf("a trailing semicolon shows the value %q", value(c))
	}
	if c := runCode(t, e, "x + 1"); value(c) != "6" {
		t.Errorf("x + 1 is %q: variables do not survive", value(c))
	}
}

// The three ways to reach a kernel host, and the local one with every byte through the plugin.
func TestEveryWayToAttach(t *testing.T) {
	for _, env := range []string{"local:", "through", "relay:", "runner:"} {
		t.Run(env, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, func(c *core.Config) {
				if env == "through" {
					c.ThroughPlugin = true
				}
			})
			target := strings.TrimPrefix(env, "through")
			first := run(t, e, core.Request{Environment: target, Code: "import os; x = 41; os.getpid()"})
			var streamed strings.Builder
			second, err := e.Run(t.Context(), core.Request{Environment: target, Code: "print('a' * 100000); x + 1"}, func(ev cell.Event) { streamed.WriteString(ev.Text) })
			if err != nil || value(second.Cell) != "42" || second.Cell.StdoutBytes != 100001 || streamed.String() != strings.Repeat("a", 100000)+"\n" {
				t.Errorf("value %q, %d bytes, %d streamed, error %v", value(second.Cell), second.Cell.StdoutBytes, streamed.Len(), err)
			}
			if !second.Kernel.Reused || second.Kernel.Cells != 2 || first.Kernel.ID != second.Kernel.ID {
				t.Errorf("kernel of the first cell %+v, of the second %+v", first.Kernel, second.Kernel)
			}
			begun := time.Now()
			c := run(t, e, core.Request{Environment: target, Code: "import time; time.sleep(60)", Timeout: time.Second}).Cell
			wantOutcome(t, c, cell.OutcomeTimeout)
			if took := time.Since(begun); took > tooLong {
				t.Errorf("a timeout of 1 s took %s", took)
			}
		})
	}
}

// Case 1.
func TestOneCellThroughCallsHasOneKernel(t *testing.T) {
	e := newEngine(t)
	res, err := e.Run(t.Context(), core.Request{Environment: "runner:", ID: e.NewCellID(), Code: "6*7"}, nil)
	if err != nil || value(res.Cell) != "42" {
		t.Errorf("got %+v, %v", res.Cell, err)
	}
	if all, err := e.Kernels(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("kernels: %+v, %v; want one", all, err)
	}
}

func TestABadDirectoryEndsNobodysKernel(t *testing.T) {
	e := newEngine(t)
	runCode(t, e, "x = 1")
	if _, err := e.Run(t.Context(), core.Request{Dir: "/no/such/directory", Code: "1"}, nil); err == nil {
		t.Error("a cell ran in a directory that is not there")
	}
	if c := runCode(t, e, "x"); value(c) != "1" {
		t.Errorf("got %+v, want the value 1", c)
	}
}

func TestManyCallersStartOneKernel(t *testing.T) {
	e := newEngine(t)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if res, err := e.Run(t.Context(), core.Request{Code: "n = globals().get('n', 0) + 1"}, nil); err != nil || res.Cell.Outcome != cell.OutcomeOK {
				t.Errorf("outcome %s, error %v", res.Cell.Outcome, err)
			}
		})
	}
	wg.Wait()
	if c := runCode(t, e, "n"); value(c) != "64" {
		t.Errorf("64 callers counted to %s", value(c))
	}
	if kernels, err := e.Kernels(t.Context()); err != nil || len(kernels) != 1 {
		t.Errorf("%d kernels, error %v, want 1", len(kernels), err)
	}
}

// Cases 2 and 4.
func TestAnIdleKernelEndsAndABusyOneDoesNot(t *testing.T) {
	e := newEngine(t, func(c *core.Config) { c.KernelIdleTimeout = 300 * time.Millisecond })
	c := runCode(t, e, "import os, time; time.sleep(1); os.getpid()")
	wantOutcome(t, c, cell.OutcomeOK)
	pid := atoi(t, value(c))
	if !alive(pid) {
		t.Error("the kernel ended with its cell")
	}
	waitGone(t, pid, tooLong)
	if res := run(t, e, core.Request{Code: "1"}); !res.Kernel.StateLost || res.Kernel.StateLostReason != "idle" {
		t.Errorf("the next result says %+v, want state_lost idle", res.Kernel)
	}
}

// Case 6.
func TestAKilledKernelIsLost(t *testing.T) {
	e := newEngine(t)
	runCode(t, e, "x = 1")
	begun := time.Now()
	c := runCode(t, e, "import os; os.kill(os.getpid(), 9)")
	wantOutcome(t, c, cell.OutcomeLost)
	if took := time.Since(begun); c.Signal != "SIGKILL" || took > tooLong {
		t.Errorf("signal %q after %s, want SIGKILL soon", c.Signal, took)
	}
	res := run(t, e, core.Request{Code: "'x' in globals()"})
	if !res.Kernel.StateLost || res.Kernel.StateLostReason != "died" || value(res.Cell) != "False" {
		t.Errorf("the next result says %+v, value %s", res.Kernel, value(res.Cell))
	}
	if again := run(t, e, core.Request{Code: "1"}); again.Kernel.StateLost {
		t.Error("the loss is told twice")
	}
}

// An idle kernel that dies is noticed with the next cell, which then runs, once, in a fresh one.
func TestAKernelThatDiedWhileIdleIsReplaced(t *testing.T) {
	e := newEngine(t)
	pid := atoi(t, value(runCode(t, e, "import os; os.getpid()")))
	kill(t, pid)
	waitGone(t, pid, tooLong)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) { // until the host has noticed
		if kernels, err := e.Kernels(t.Context()); err != nil || len(kernels) == 0 || time.Now().After(deadline) {
			break
		}
	}
	mark := filepath.Join(t.TempDir(), "mark")
	res := run(t, e, core.Request{Code: fmt.Sprintf("open(%q, 'a').write('x'); 1", mark)})
	if data, _ := os.ReadFile(mark); string(data) != "x" || res.Cell.Outcome != cell.OutcomeOK || !res.Kernel.StateLost {
		t.Errorf("runs %q, result %+v", data, res)
	}
}

// So is a kernel host: the cell was never submitted to it, so it runs, once, in a kernel of a fresh one.
func TestAKernelHostThatDiedWhileIdleIsReplaced(t *testing.T) {
	for _, session := range []string{"", "s"} {
		e := newEngine(t)
		pid := atoi(t, value(run(t, e, core.Request{Session: session, Code: "import os; os.getpid()"}).Cell))
		host := parent(t, parent(t, pid))
		kill(t, host)
		waitGone(t, host, tooLong) // its end of the connection is closed then, whether the engine knows yet or not
		mark := filepath.Join(t.TempDir(), "mark")
		res := run(t, e, core.Request{Session: session, Code: fmt.Sprintf("open(%q, 'a').write('x'); 1", mark)})
		if data, _ := os.ReadFile(mark); string(data) != "x" || res.Cell.Outcome != cell.OutcomeOK || !res.Kernel.StateLost || res.Kernel.StateLostReason != "died" {
			t.Errorf("session %q: runs %q, result %+v", session, data, res)
		}
	}
}

// Case 7.
func TestABackendThatIsGoneIsAnError(t *testing.T) {
	e := newEngine(t)
	_, err := e.Run(t.Context(), core.Request{Environment: "nosuch://host", Code: "1"}, nil)
	var pe *sdk.Error
	if !errors.As(err, &pe) || !strings.Contains(err.Error(), "nosuch") || pe.Delivery != sdk.NotStarted {
		t.Errorf("got %v", err)
	}
}

// Case 9.
func TestATimeoutKeepsTheState(t *testing.T) {
	e := newEngine(t)
	runCode(t, e, "y = 5")
	begun := time.Now()
	res, err := e.Run(t.Context(), core.Request{Code: "import time; print(1, flush=True); time.sleep(60)", Timeout: time.Second}, nil)
	took := time.Since(begun)
	if !errors.Is(err, cell.ErrTimeout) || res.Cell.Outcome != cell.OutcomeTimeout || res.Cell.Stdout != "1\n" {
		t.Errorf("outcome %s, stdout %q, error %v", res.Cell.Outcome, res.Cell.Stdout, err)
	}
	if took < time.Second || took > tooLong {
		t.Errorf("took %s", took)
	}
	if next := run(t, e, core.Request{Code: "y"}); value(next.Cell) != "5" || next.Kernel.StateLost {
		t.Errorf("y is %s, kernel %+v", value(next.Cell), next.Kernel)
	}
}

// Case 10.
func TestCellsThatDoNotYieldEndByTheLadder(t *testing.T) {
	for name, code := range map[string]string{
		"catches interrupts": "import time\nwhile True:\n try: time.sleep(1)\n except KeyboardInterrupt: pass",
		"ignores interrupts": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			runCode(t, e, "x = 1")
			begun := time.Now()
			res := run(t, e, core.Request{Code: code, Timeout: 500 * time.Millisecond})
			wantOutcome(t, res.Cell, cell.OutcomeTimeout)
			if took := time.Since(begun); took > tooLong {
				t.Errorf("took %s, want at most timeout and grace", took)
			}
			if next := run(t, e, core.Request{Code: "1"}); !next.Kernel.StateLost || next.Kernel.StateLostReason != "timeout" {
				t.Errorf("the next result says %+v, want state_lost timeout", next.Kernel)
			}
		})
	}
	t.Run("busy loop", func(t *testing.T) {
		t.Parallel()
		e := newEngine(t)
		wantOutcome(t, run(t, e, core.Request{Code: "while True: pass", Timeout: 500 * time.Millisecond}).Cell, cell.OutcomeTimeout)
	})
}

// Case 11.
func TestBackgroundProcessesDoNotHoldTheCellAndEndWithTheKernel(t *testing.T) {
	e := newEngine(t)
	begun := time.Now()
	c := runCode(t, e, `import subprocess
p = subprocess.Popen(["sleep", "300"])
subprocess.run("setsid sleep 300 & sleep 300 &", shell=True)
subprocess.run("setsid sh -c 'sleep 300 &'", shell=True, stdout=open("/dev/null", "w"))
print(p.pid)`)
	wantOutcome(t, c, cell.OutcomeOK)
	if took := time.Since(begun); took > tooLong {
		t.Errorf("the cell took %s", took)
	}
	kernels, err := e.Kernels(t.Context())
	if err != nil || len(kernels) != 1 {
		t.Fatalf("%d kernels, error %v", len(kernels), err)
	}
	if err := e.Kill(t.Context(), kernels[0].ID); err != nil {
		t.Fatal(err)
	}
	waitGone(t, atoi(t, c.Stdout), tooLong)
	for _, p := range processesOf("HOME=" + homeDir) {
		if strings.Contains(p, "sleep 300") && alive(atoi(t, strings.Fields(p)[0])) {
			t.Errorf("left behind: %s", p)
		}
	}
}

// Cases 12 and 13.
func TestOutputOfSubprocessesIsInOrder(t *testing.T) {
	e := newEngine(t)
	c := runCode(t, e, `import os; os.system("echo from-child"); print("from-python")`)
	if c.Stdout != "from-child\nfrom-python\n" {
		t.Errorf("got %q", c.Stdout)
	}
	c = runCode(t, e, `print("first"); _ = os.system("echo second"); os.write(1, bytes([0xff, 0xfe, 10])); _ = os.system("echo third")`)
	if c.Stdout != "first\nsecond\n\ufffd\ufffd\nthird\n" {
		t.Errorf("got %q", c.Stdout)
	}
}

// Case 14.
func TestMuchOutputIsCountedExactly(t *testing.T) {
	e := newEngine(t)
	c := runCode(t, e, "import sys; _ = sys.stdout.write('x' * (64 << 20))")
	if c.Outcome != cell.OutcomeOK || c.StdoutBytes != 64<<20 || len(c.Stdout) > 60_000 || c.StdoutOmitted < 64<<20-60_000 {
		t.Errorf("outcome %s, %d bytes, shown %d, omitted %d", c.Outcome, c.StdoutBytes, len(c.Stdout), c.StdoutOmitted)
	}
	slow := true
	res, err := e.Run(t.Context(), core.Request{Code: "for i in range(200000): print(i)"}, func(ev cell.Event) {
		if ev.Kind == cell.EventOutput && slow {
			time.Sleep(time.Second) // this is the slow reader
			slow = false
		}
	})
	const want = 10*2 + 90*3 + 900*4 + 9000*5 + 90000*6 + 100000*7
	if err != nil || res.Cell.StdoutBytes != want || !strings.HasSuffix(res.Cell.Stdout, "199998\n199999\n") || !strings.HasPrefix(res.Cell.Stdout, "0\n1\n") {
		t.Errorf("%d bytes, want %d; error %v; ends %.40q", res.Cell.StdoutBytes, want, err, res.Cell.Stdout[max(0, len(res.Cell.Stdout)-40):])
	}
}

// Case 15.
func TestWaysToExit(t *testing.T) {
	for _, c := range []struct {
		code    string
		outcome cell.Outcome
		exit    int
		signal  string
	}{
		{"raise SystemExit(3)", cell.OutcomeExit, 3, ""},
		{"exit()", cell.OutcomeExit, 0, ""},
		{"import sys; sys.exit('bye')", cell.OutcomeExit, 1, ""},
		{"import os; os._exit(7)", cell.OutcomeExit, 7, ""},
		{"import os; os.kill(os.getpid(), 11)", cell.OutcomeLost, -1, "SIGSEGV"},
	} {
		t.Run(c.code, func(t *testing.T) {
			e := newEngine(t)
			begun := time.Now()
			got := runCode(t, e, c.code)
			wantOutcome(t, got, c.outcome)
			if c.exit >= 0 && (got.ExitCode == nil || *got.ExitCode != c.exit) || got.Signal != c.signal {
				t.Errorf("exit code %v, signal %q, want %d and %q", got.ExitCode, got.Signal, c.exit, c.signal)
			}
			if took := time.Since(begun); took > tooLong {
				t.Errorf("took %s", took)
			}
			if next := runCode(t, e, "1"); value(next) != "1" {
				t.Errorf("the next cell: %+v", next)
			}
		})
	}
}

// Cases 16 and 17.
func TestErrorsOfCells(t *testing.T) {
	e := newEngine(t)
	if c := runCode(t, e, "input()"); c.Error == nil || c.Error.Type != "EOFError" {
		t.Errorf("input(): %+v", c)
	}
	runCode(t, e, "def broken():\n    return undefined_name  # the line to show")
	runCode(t, e, "1")
	c := runCode(t, e, "broken()")
	if c.Outcome != cell.OutcomeError || c.Error == nil || c.Error.Type != "NameError" || !strings.Contains(c.Error.Traceback, "return undefined_name  # the line to show") {
		t.Errorf("got %+v", c.Error)
	}
	if c := runCode(t, e, "def f(:"); c.Error == nil || c.Error.Type != "SyntaxError" {
		t.Errorf("got %+v", c)
	}
}

// Case 18.
func TestLateOutputIsNotTheNextCells(t *testing.T) {
	e := newEngine(t)
	runCode(t, e, "import threading, time, subprocess\nsent = threading.Event()\ndef late():\n    sent.wait(); print('late')\nth = threading.Thread(target=late); th.start()\np = subprocess.Popen('read x; echo late', shell=True, stdin=subprocess.PIPE)")
	c := runCode(t, e, "sent.set(); th.join(); p.communicate(b'go\\n'); print('mine')")
	if c.Stdout != "mine\n" {
		t.Errorf("stdout of the next cell: %q", c.Stdout)
	}
}

// Case 19.
func TestCellsSentTogetherRunOneAfterTheOther(t *testing.T) {
	e := newEngine(t)
	runCode(t, e, "import time; running = 0")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			res, err := e.Run(t.Context(), core.Request{Code: fmt.Sprintf("running += 1; assert running == 1; print(%d); time.sleep(0.02); print(%d); running -= 1", i, i)}, nil)
			if want := fmt.Sprintf("%d\n%d\n", i, i); err != nil || res.Cell.Stdout != want {
				t.Errorf("cell %d: stdout %q, outcome %s, error %v", i, res.Cell.Stdout, res.Cell.Outcome, err)
			}
		})
	}
	wg.Wait()
}

// Case 33.
func TestAForkedChildDoesNotAnswer(t *testing.T) {
	e := newEngine(t)
	c := runCode(t, e, "import os; pid = os.fork(); pid")
	wantOutcome(t, c, cell.OutcomeOK)
	child := atoi(t, value(c))
	if child == 0 {
		t.Fatal("the child's answer came")
	}
	if next := runCode(t, e, "1+1"); value(next) != "2" {
		t.Errorf("the next cell: %+v", next)
	}
	waitGone(t, child, tooLong)
}

// Case 34.
func TestTopLevelAwaitIsInterrupted(t *testing.T) {
	e := newEngine(t)
	c := run(t, e, core.Request{Code: "import asyncio; z = 1; await asyncio.sleep(60)", Timeout: 300 * time.Millisecond}).Cell
	wantOutcome(t, c, cell.OutcomeTimeout)
	if next := runCode(t, e, "await asyncio.sleep(0.01); z"); value(next) != "1" {
		t.Errorf("the next await: %+v", next)
	}
}

// Case 35.
func TestProcessesAndThreadsWorkAsInAPlainInterpreter(t *testing.T) {
	e := newEngine(t)
	runCode(t, e, "def f(x): return x * x")
	for code, want := range map[string]string{
		"import multiprocessing\nwith multiprocessing.Pool(4) as p: r = p.map(f, range(8))\nr":                                "[0, 1, 4, 9, 16, 25, 36, 49]",
		"from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as p: r = list(p.map(f, range(4)))\nr": "[0, 1, 4, 9]",
		"import subprocess\nn = len(subprocess.run(['cat'], input=b'x' * 100_000_000, stdout=subprocess.PIPE).stdout)\nn":     "100000000",
	} {
		if c := runCode(t, e, code); value(c) != want {
			t.Errorf("%s: value %q, outcome %s, error %+v, stderr %q", code, value(c), c.Outcome, c.Error, c.Stderr)
		}
	}
}

func TestCancellingInterruptsTheCell(t *testing.T) {
	e := newEngine(t)
	runCode(t, e, "w = 3")
	ctx, cancel := context.WithCancel(t.Context())
	res, err := e.Run(ctx, core.Request{Code: "import time; print('go'); time.sleep(60)"}, func(ev cell.Event) {
		if ev.Kind == cell.EventOutput {
			cancel()
		}
	})
	if !errors.Is(err, cell.ErrInterrupted) || res.Cell.Outcome != cell.OutcomeInterrupted || !strings.HasPrefix(res.Cell.Stdout, "go") { // the interrupt may come before the newline
		t.Errorf("outcome %s, stdout %q, error %v", res.Cell.Outcome, res.Cell.Stdout, err)
	}
	if next := runCode(t, e, "w"); value(next) != "3" {
		t.Errorf("the state is gone: %+v", next)
	}
}

func TestShellCells(t *testing.T) {
	e := newEngine(t)
	sh := func(code string) cell.Cell { return run(t, e, core.Request{Language: cell.Bash, Code: code}).Cell }
	if c := sh("cd /usr; x=5; f() { echo $x; }; echo hi; echo err >&2"); c.Outcome != cell.OutcomeOK || c.Stdout != "hi\n" || c.Stderr != "err\n" {
		t.Errorf("got %+v", c)
	}
	if c := sh("pwd; f"); c.Stdout != "/usr\n5\n" {
		t.Errorf("directory, variable or function did not survive: %q", c.Stdout)
	}
	if c := sh("(exit 4)"); c.Outcome != cell.OutcomeError || c.ExitCode == nil || *c.ExitCode != 4 {
		t.Errorf("status 4: %+v", c)
	}
	if c := sh("echo 'unterminated"); c.Outcome != cell.OutcomeError {
		t.Errorf("a syntax error: %+v", c)
	}
	if c := sh("echo $x"); c.Stdout != "5\n" {
		t.Errorf("the shell did not survive a syntax error: %+v", c)
	}
	if c := run(t, e, core.Request{Language: cell.Bash, Code: "sleep 60", Timeout: 300 * time.Millisecond}).Cell; c.Outcome != cell.OutcomeTimeout {
		t.Errorf("a timeout: %+v", c)
	}
	if c := sh("echo $x; sleep 300 & echo bg"); c.Stdout != "5\nbg\n" {
		t.Errorf("after a timeout: %+v", c)
	}
	if c := sh("exit 3"); c.Outcome != cell.OutcomeExit || c.ExitCode == nil || *c.ExitCode != 3 {
		t.Errorf("exit 3: %+v", c)
	}
}

// Faults of the kernel host: nothing that could know is left.
// A host that is killed leaves a journal, which tells what became of its cells.
func TestACellOfAKilledKernelHostIsLost(t *testing.T) {
	for _, env := range []string{"local:", "relay:", "runner:"} {
		t.Run(env, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			pid := atoi(t, value(run(t, e, core.Request{Environment: env, Code: "import os; os.getpid()"}).Cell))
			nursery := parent(t, pid)
			host := parent(t, nursery)
			begun := filepath.Join(t.TempDir(), "begun")
			var killer sync.WaitGroup
			killer.Go(func() { // ends with the cell's beginning
				for _, err := os.Stat(begun); err != nil && t.Context().Err() == nil; _, err = os.Stat(begun) {
					time.Sleep(5 * time.Millisecond) // no event: with runner: output comes with the end
				}
				kill(t, host)
			})
			res, err := e.Run(t.Context(), core.Request{Environment: env, Code: fmt.Sprintf("import time; open(%q, 'w'); time.sleep(60)", begun)}, nil)
			killer.Wait()
			if !errors.Is(err, cell.ErrLost) || res.Cell.Outcome != cell.OutcomeLost || !strings.Contains(res.Cell.Reason, "kernel host was killed") {
				t.Errorf("outcome %s (%s), error %v", res.Cell.Outcome, res.Cell.Reason, err)
			}
			if alive(pid) || alive(nursery) {
				t.Errorf("it was said to be lost before its processes were gone: kernel %v, nursery %v", alive(pid), alive(nursery))
			}
			if next := run(t, e, core.Request{Environment: env, Code: "1"}); value(next.Cell) != "1" || !next.Kernel.StateLost {
				t.Errorf("the next cell: %+v", next)
			}
		})
	}
}

// journalOf is the path of the journal that a kernel host has open: where that is depends on how long the paths are.
func journalOf(t *testing.T, host int) string {
	t.Helper()
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", host))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		if path, err := os.Readlink(fd); err == nil && strings.HasPrefix(filepath.Base(path), "journal-") {
			return path
		}
	}
	t.Fatalf("process %d has no journal open", host)
	return ""
}

// The cell after one that may have run says that what it may have left is gone, whether it was the first of its kernel or not.
func TestACellOfAKilledKernelHostWithoutAJournalIsUnknown(t *testing.T) {
	for _, session := range []string{"", "unsure"} {
		for _, warm := range []bool{true, false} {
			t.Run(fmt.Sprintf("session %s, warm %t", session, warm), func(t *testing.T) {
				e := newEngine(t)
				run(t, e, core.Request{Session: session, Language: cell.Bash, Code: "true"}) // another kernel of the same host
				var once sync.Once
				if warm {
					run(t, e, core.Request{Session: session, Code: "1"})
				}
				res, err := e.Run(t.Context(), core.Request{Session: session, Code: "import os, time; print(os.getpid()); time.sleep(60)"}, func(ev cell.Event) {
					if ev.Kind == cell.EventOutput {
						once.Do(func() {
							host := parent(t, parent(t, atoi(t, strings.TrimSpace(ev.Text))))
							if err := os.Remove(journalOf(t, host)); err != nil {
								t.Error(err)
							}
							kill(t, host)
						})
					}
				})
				if !errors.Is(err, cell.ErrUnknown) || res.Cell.Outcome != cell.OutcomeUnknown || res.Kernel.Reused != warm {
					t.Errorf("outcome %s, error %v, %+v", res.Cell.Outcome, err, res.Kernel)
				}
				next := run(t, e, core.Request{Session: session, Code: "1"})
				if value(next.Cell) != "1" || !next.Kernel.StateLost || next.Kernel.Reused || next.Kernel.ID == res.Kernel.ID {
					t.Errorf("the next cell: %+v", next)
				}
				if again := run(t, e, core.Request{Session: session, Code: "2"}); again.Kernel.StateLost || !again.Kernel.Reused {
					t.Errorf("the one after it: %+v", again)
				}
			})
		}
	}
}

// A cell that waited for another when its host was killed has not run, so it runs in a fresh kernel; one whose id was chosen is refused.
func TestACellThatWaitedInAKilledKernelHost(t *testing.T) {
	for _, session := range []string{"", "waits"} {
		t.Run("session "+session, func(t *testing.T) {
			e := newEngine(t)
			host := parent(t, parent(t, atoi(t, value(run(t, e, core.Request{Session: session, Code: "import os; os.getpid()"}).Cell))))
			mark := filepath.Join(t.TempDir(), "mark")
			var waiting, accepted sync.WaitGroup
			accepted.Add(2)
			var queued, chosen cell.Result
			res, err := e.Run(t.Context(), core.Request{Session: session, Code: "import time; time.sleep(60)"}, func(ev cell.Event) {
				if ev.Kind != cell.EventStarted {
					return
				}
				for _, c := range []struct {
					id  string
					res *cell.Result
				}{{"", &queued}, {"chosen", &chosen}} {
					var once sync.Once
					waiting.Go(func() {
						*c.res, _ = e.Run(t.Context(), core.Request{Session: session, ID: c.id, Code: fmt.Sprintf("n = open(%q, 'a').write('x'); 7", mark)}, func(ev cell.Event) {
							if ev.Kind == cell.EventAccepted {
								once.Do(accepted.Done)
							}
						})
					})
				}
				accepted.Wait()
				kill(t, host)
			})
			waiting.Wait()
			if !errors.Is(err, cell.ErrLost) {
				t.Errorf("the cell that ran: outcome %s, error %v", res.Cell.Outcome, err)
			}
			if queued.Cell.Outcome != cell.OutcomeOK || value(queued.Cell) != "7" || !queued.Kernel.StateLost {
				t.Errorf("the cell that waited: %+v", queued)
			}
			if chosen.Cell.Outcome != cell.OutcomeRefused || chosen.Cell.Reason != "no_kernel" {
				t.Errorf("the cell with a chosen id: outcome %s (%s)", chosen.Cell.Outcome, chosen.Cell.Reason)
			}
			if runs, _ := os.ReadFile(mark); string(runs) != "x" {
				t.Errorf("they ran %d times, want once", len(runs))
			}
		})
	}
}

// Case of the issue: kill -9 on the plugin in mid-cell, with and without a direct socket.
func TestAKilledPluginLosesNothing(t *testing.T) {
	for _, through := range []bool{false, true} {
		t.Run(fmt.Sprintf("through the plugin %v", through), func(t *testing.T) {
			e := newEngine(t, func(c *core.Config) { c.ThroughPlugin = through })
			mark := filepath.Join(t.TempDir(), "mark")
			runCode(t, e, "x = 1")
			plugins := processesOf("HOME=" + homeDir)
			res, err := e.Run(t.Context(), core.Request{Code: fmt.Sprintf("import time\nprint('before'); open(%q, 'a').write('x'); time.sleep(1); print('after'); x", mark)}, func(ev cell.Event) {
				if strings.Contains(ev.Text, "before") {
					for _, p := range plugins {
						pid := atoi(t, strings.Fields(p)[0])
						if strings.HasSuffix(p, "local ") && parent(t, pid) == os.Getpid() {
							kill(t, pid)
						}
					}
				}
			})
			data, _ := os.ReadFile(mark)
			if err != nil || res.Cell.Stdout != "before\nafter\n" || value(res.Cell) != "1" || string(data) != "x" {
				t.Errorf("outcome %s, stdout %q, runs %q, error %v", res.Cell.Outcome, res.Cell.Stdout, data, err)
			}
		})
	}
}

func TestASessionIsAnotherEnginesToo(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	use := func(c *core.Config) { c.StateDir = state }
	first := newEngine(t, use)
	a := run(t, first, core.Request{Session: "work", Code: "x = 41"})
	second := newEngine(t, use)
	b := run(t, second, core.Request{Session: "work", Code: "x + 1"})
	if value(b.Cell) != "42" || !b.Kernel.Reused || b.Kernel.Cells != 2 || b.Kernel.ID != a.Kernel.ID {
		t.Errorf("value %s, kernel %+v", value(b.Cell), b.Kernel)
	}
	var wg sync.WaitGroup
	for _, e := range []*core.Engine{first, second} {
		wg.Go(func() {
			for range 20 {
				if c := run(t, e, core.Request{Session: "work", Code: "x += 1"}).Cell; c.Outcome != cell.OutcomeOK {
					t.Errorf("outcome %s", c.Outcome)
				}
			}
		})
	}
	wg.Wait()
	if c := run(t, first, core.Request{Session: "work", Code: "x"}).Cell; value(c) != "81" {
		t.Errorf("two engines with 20 cells each counted to %s", value(c))
	}
	err := filepath.WalkDir(state, func(path string, d os.DirEntry, err error) error {
		info, statErr := d.Info()
		if want := map[bool]os.FileMode{true: 0o700, false: 0o600}[d.IsDir()]; path != state && statErr == nil && info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A session's kernel is reached by a socket and by a relay, by one program after the other; so is it known when its host is gone.
func TestASessionOfOneProgramAfterTheOther(t *testing.T) {
	for _, environment := range []string{"local:", "relay:"} {
		t.Run(environment, func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "state")
			in := func(code string) cell.Result {
				e := newEngine(t, func(c *core.Config) { c.StateDir = state })
				return run(t, e, core.Request{Session: "s", Environment: environment, Code: code})
			}
			pid := atoi(t, value(in("x = 41; import os; os.getpid()").Cell))
			if res := in("x + 1"); value(res.Cell) != "42" || !res.Kernel.Reused {
				t.Errorf("the next program: %+v", res)
			}
			kill(t, parent(t, parent(t, pid)))
			waitGone(t, pid, tooLong)
			if res := in("'x' in globals()"); value(res.Cell) != "False" || res.Kernel.StateLostReason != "died" {
				t.Errorf("with the host gone: %+v", res)
			}
		})
	}
}

// A session has one kernel for each language, also when --reset moves it to another kernel host.
func TestResetEndsTheKernelOfAnotherInterpreter(t *testing.T) {
	e := newEngine(t)
	res := run(t, e, core.Request{Session: "s", Code: "import os, sys; print(os.getpid()); os.path.realpath(sys.executable)"})
	exe := strings.Trim(value(res.Cell), "'")
	run(t, e, core.Request{Session: "s", Interpreter: exe, Reset: true, Code: "1"})
	waitGone(t, atoi(t, strings.TrimSpace(res.Cell.Stdout)), tooLong)
	if kernels, err := e.Kernels(t.Context()); err != nil || len(kernels) != 1 {
		t.Errorf("kernels %+v, error %v, want one", kernels, err)
	}
}

func TestASessionPinsItsDirectory(t *testing.T) {
	e := newEngine(t)
	dir := t.TempDir()
	run(t, e, core.Request{Session: "s", Dir: dir, Code: "1"})
	if c := run(t, e, core.Request{Session: "s", Code: "import os; os.getcwd()"}).Cell; value(c) != "'"+dir+"'" {
		t.Errorf("directory %s, want %s", value(c), dir)
	}
	if _, err := e.Run(t.Context(), core.Request{Session: "s", Dir: "/", Code: "1"}, nil); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("another directory: %v, want sdk.ErrInvalid", err)
	}
	if res := run(t, e, core.Request{Session: "s", Dir: "/", Reset: true, Code: "os.getcwd() if 'os' in globals() else 'fresh'"}); value(res.Cell) != "'fresh'" || !res.Kernel.StateReset {
		t.Errorf("after a reset: %+v", res)
	}
}

func TestBadSessionNames(t *testing.T) {
	e := newEngine(t)
	for _, name := range []string{"a/b", "..", "a..b", ".", "-x", " ", "a\nb", strings.Repeat("x", 65)} {
		if _, err := e.Run(t.Context(), core.Request{Session: name, Code: "1"}, nil); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("session %q: %v, want sdk.ErrInvalid", name, err)
		}
	}
}

func TestBadCells(t *testing.T) {
	e := newEngine(t)
	for name, req := range map[string]core.Request{
		"too large": {Code: strings.Repeat("#", 50<<20)},
		"not UTF-8": {Code: "x = '\xff'"},
		"language":  {Language: "cobol", Code: "1"},
		"variable":  {Code: "1", Env: map[string]string{"A=B": "c"}},
	} {
		if _, err := e.Run(t.Context(), req, nil); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%s: %v, want sdk.ErrInvalid", name, err)
		}
	}
	if c := runCode(t, e, "1"); value(c) != "1" {
		t.Errorf("after bad cells: %+v", c)
	}
}

func TestTheSameIDIsTheSameCell(t *testing.T) {
	e := newEngine(t)
	mark := filepath.Join(t.TempDir(), "mark")
	req := core.Request{ID: "mine", Code: fmt.Sprintf("open(%q, 'a').write('x'); print('once'); 7", mark)}
	for range 2 {
		if c := run(t, e, req).Cell; value(c) != "7" || c.Stdout != "once\n" {
			t.Errorf("got %+v", c)
		}
	}
	if data, _ := os.ReadFile(mark); string(data) != "x" {
		t.Errorf("it ran %d times", len(data))
	}
	req.Code = "8"
	res, err := e.Run(t.Context(), req, nil)
	if !errors.Is(err, cell.ErrRefused) || !strings.Contains(res.Cell.Reason, "conflict") {
		t.Errorf("the same id with other code: outcome %s (%s), error %v", res.Cell.Outcome, res.Cell.Reason, err)
	}
}

func TestExec(t *testing.T) {
	e := newEngine(t)
	var out, errs strings.Builder
	status, err := e.Exec(t.Context(), core.ExecRequest{
		Argv: []string{"sh", "-c", "cat; echo $V >&2; exit 43"}, Env: map[string]string{"V": "v"},
		Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &errs,
	})
	if err != nil || status.Code != 43 || out.String() != "in" || errs.String() != "v\n" {
		t.Errorf("status %+v, stdout %q, stderr %q, error %v", status, out.String(), errs.String(), err)
	}
	begun := time.Now()
	_, err = e.Exec(t.Context(), core.ExecRequest{Argv: []string{"sleep", "60"}, Timeout: 200 * time.Millisecond})
	if !errors.Is(err, cell.ErrTimeout) || time.Since(begun) > tooLong {
		t.Errorf("a timeout: %v after %s", err, time.Since(begun))
	}
	if _, err = e.Exec(t.Context(), core.ExecRequest{Argv: []string{"no-such-program"}}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("a program that is not there: %v", err)
	}
}

// Case 5, for an engine that is closed in order: nothing is left at once.
func TestCloseLeavesNothing(t *testing.T) {
	e := newEngine(t)
	pid := atoi(t, value(runCode(t, e, "import os; os.getpid()")))
	nursery := parent(t, pid)
	host := parent(t, nursery)
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range []int{pid, nursery, host} {
		waitGone(t, p, tooLong)
	}
	if _, err := e.Run(t.Context(), core.Request{Code: "1"}, nil); !errors.Is(err, sdk.ErrClosed) {
		t.Errorf("a cell after Close: %v, want sdk.ErrClosed", err)
	}
}
