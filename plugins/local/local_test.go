//go:build unix

package local_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugins/local"
)

// open returns an environment of the local backend, over the wire.
func open(t *testing.T, target string) sdk.Environment {
	t.Helper()
	client, stop, err := sdk.Pipe(t.Context(), local.New())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	env, err := client.Open(t.Context(), sdk.OpenRequest{ID: "test", Target: target})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// waitFor waits for something that can only be looked for.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for pause := time.Millisecond; !ok(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
		time.Sleep(pause)
	}
}

type result struct {
	status      sdk.ExitStatus
	out, stderr string
}

func run(ctx context.Context, env sdk.Environment, stdin io.Reader, argv ...string) (result, error) {
	var out, stderr bytes.Buffer
	status, err := env.Exec(ctx, sdk.Command{Argv: argv, InheritEnv: true}, sdk.IO{Stdin: stdin, Stdout: &out, Stderr: &stderr})
	return result{status, out.String(), stderr.String()}, err
}

func TestExecReportsTheStatusAndBothOutputs(t *testing.T) {
	env := open(t, "local:")
	got, err := run(t.Context(), env, strings.NewReader("in"), "sh", "-c", "cat; echo err >&2; exit 43")
	want := result{sdk.ExitStatus{Code: 43}, "in", "err\n"}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestExecEndsWithTheProcessNotWithItsPipes(t *testing.T) {
	env := open(t, "local:")
	start := time.Now()
	got, err := run(t.Context(), env, nil, "sh", "-c", "sleep 300 & echo done $!")
	if err != nil || !strings.HasPrefix(got.out, "done ") {
		t.Fatalf("got %+v, %v", got, err)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("took %v", d)
	}
	pid := strings.TrimPrefix(strings.TrimSpace(got.out), "done ")
	if left, err := run(t.Context(), env, nil, "kill", pid); err != nil || left.status.Code != 0 {
		t.Errorf("the background process is gone: %+v, %v", left, err)
	}
}

func TestExecCarries100MiBBothWays(t *testing.T) {
	env := open(t, "local:")
	const size = 100 << 20
	in := sha256.New()
	out := sha256.New()
	src := io.TeeReader(io.LimitReader(&pattern{}, size), in)
	start := time.Now()
	status, err := env.Exec(t.Context(), sdk.Command{Argv: []string{"cat"}, InheritEnv: true}, sdk.IO{Stdin: src, Stdout: out})
	if err != nil || status != (sdk.ExitStatus{}) {
		t.Fatalf("got %+v, %v", status, err)
	}
	if !bytes.Equal(in.Sum(nil), out.Sum(nil)) {
		t.Error("what came back differs")
	}
	t.Logf("%.0f MiB/s", 100/time.Since(start).Seconds())
}

// pattern has no period near a chunk's size, so that a chunk that is missing, repeated or in the wrong place is seen.
type pattern struct{ at int }

func (r *pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.at>>7*r.at ^ r.at>>20)
		r.at++
	}
	return len(p), nil
}

func TestCancelStopsTheTree(t *testing.T) {
	env := open(t, "local:")
	// A daemon made within two clock ticks (10 ms each) of another command's life could be that one's, and is left alone.
	time.Sleep(50 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	go func() {
		line := make([]byte, 1)
		_, _ = io.ReadFull(r, line)
		cancel()
		_, _ = io.Copy(io.Discard, r)
	}()
	start := time.Now()
	_, err := env.Exec(ctx, sdk.Command{Argv: []string{"sh", "-c", "setsid sleep 311 & (setsid sleep 311 >/dev/null 2>&1 &) ; sleep 311 & echo x; wait"}, InheritEnv: true}, sdk.IO{Stdout: w})
	_ = w.Close()
	if !errors.Is(err, context.Canceled) || !errors.Is(err, sdk.ErrCanceled) {
		t.Errorf("got %v, want a cancellation", err)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("took %v", d)
	}
	if left, err := run(t.Context(), env, nil, "pgrep", "-fx", "sleep 311"); err != nil || left.status.Code != 1 {
		t.Errorf("left: %+v, %v", left, err)
	}
}

// TestCancelWaitsForThePolite: what handles TERM gets its time and its last words, what ignores it is killed.
func TestCancelWaitsForThePolite(t *testing.T) {
	grace := sdk.Grace
	sdk.Grace = 300 * time.Millisecond
	defer func() { sdk.Grace = grace }()
	for script, want := range map[string]string{
		"trap 'echo bye; exit' TERM; echo ready; while :; do sleep 0.01; done": "bye\n",
		"trap '' TERM; echo ready; while :; do sleep 0.01; done":               "",
	} {
		env := open(t, "local:")
		ctx, cancel := context.WithCancel(t.Context())
		var out bytes.Buffer
		_, err := env.Exec(ctx, sdk.Command{Argv: []string{"sh", "-c", script}, InheritEnv: true},
			sdk.IO{Stdout: writerFunc(func(p []byte) (int, error) {
				cancel()
				return out.Write(p)
			})})
		if !errors.Is(err, sdk.ErrCanceled) || out.String() != "ready\n"+want {
			t.Errorf("%s: got %q, %v", script, out.String(), err)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestCancelLeavesOtherCommandsAlone: also a daemon that another command left behind, and one of a command that runs at the same time.
func TestCancelLeavesOtherCommandsAlone(t *testing.T) {
	env := open(t, "local:")
	daemon := "(setsid sleep 304 >/dev/null 2>&1 & echo $!)"
	before, err := run(t.Context(), env, nil, "sh", "-c", daemon)
	if err != nil {
		t.Fatal(err)
	}
	otherCtx, endOther := context.WithCancel(t.Context())
	var other bytes.Buffer
	otherReady := make(chan struct{})
	otherEnded := make(chan struct{})
	go func() {
		defer close(otherEnded)
		_, _ = env.Exec(otherCtx, sdk.Command{Argv: []string{"sh", "-c", daemon + "; exec sleep 304"}, InheritEnv: true},
			sdk.IO{Stdout: writerFunc(func(p []byte) (int, error) {
				defer close(otherReady)
				return other.Write(p)
			})})
	}()
	<-otherReady

	ctx, cancel := context.WithCancel(t.Context())
	_, err = env.Exec(ctx, sdk.Command{Argv: []string{"sleep", "304"}, InheritEnv: true}, sdk.IO{Started: cancel})
	if !errors.Is(err, sdk.ErrCanceled) {
		t.Errorf("got %v", err)
	}
	for _, pid := range []string{strings.TrimSpace(before.out), strings.TrimSpace(other.String())} {
		if got, err := run(t.Context(), env, nil, "kill", "-0", pid); err != nil || got.status.Code != 0 {
			t.Errorf("%s is gone: %+v, %v", pid, got, err)
		}
	}
	endOther()
	<-otherEnded
	_, _ = run(t.Context(), env, nil, "kill", strings.TrimSpace(before.out), strings.TrimSpace(other.String()))
}

// TestCancelLeavesTheDaemonOfAnEarlierCommandAlone: also when the two ran in the same clock tick, and what that daemon starts later.
func TestCancelLeavesTheDaemonOfAnEarlierCommandAlone(t *testing.T) {
	env := open(t, "local:")
	var daemons []string
	for i := range 30 {
		script := "(setsid sleep 308 >/dev/null 2>&1 & echo $!)"
		if i%3 == 2 { // it ends, and leaves a child behind while the other command runs
			script = "(setsid sh -c 'sleep 0.02; sleep 308 &' >/dev/null 2>&1 & echo $!)"
		}
		before, err := run(t.Context(), env, nil, "sh", "-c", script)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, err = env.Exec(ctx, sdk.Command{Argv: []string{"sleep", "309"}, InheritEnv: true}, sdk.IO{Started: func() {
			if i%3 == 2 {
				time.Sleep(50 * time.Millisecond) // for the other one's child
			}
			cancel()
		}})
		if !errors.Is(err, sdk.ErrCanceled) {
			t.Errorf("got %v", err)
		}
		daemons = append(daemons, strings.TrimSpace(before.out))
	}
	lost := 0
	for _, session := range daemons {
		if got, err := run(t.Context(), env, nil, "pkill", "-s", session, "sleep"); err != nil || got.status.Code != 0 {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d daemons are gone", lost, len(daemons))
	}
}

// TestOrphansAreReaped: the backend adopts what daemonises and must not collect zombies.
func TestOrphansAreReaped(t *testing.T) {
	env := open(t, "local:")
	got, err := run(t.Context(), env, nil, "sh", "-c", "(setsid sleep 0.01 >/dev/null 2>&1 & echo $!)")
	if err != nil {
		t.Fatal(err)
	}
	pid := strings.TrimSpace(got.out)
	waitFor(t, "the orphan to be reaped", func() bool {
		_, err := os.Stat("/proc/" + pid)
		return err != nil
	})
}

func TestEnvironmentIsExact(t *testing.T) {
	t.Setenv("PLUGIN_X", "secret")
	t.Setenv("OTHER", "secret")
	t.Setenv("LC_TEST", "kept")
	env := open(t, "local:/tmp")
	exec := func(cmd sdk.Command) string {
		var out bytes.Buffer
		cmd.Argv = []string{"/usr/bin/env"}
		if _, err := env.Exec(t.Context(), cmd, sdk.IO{Stdout: &out}); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	if got := exec(sdk.Command{Env: []string{"A=1", "B=2", "A=3"}}); got != "B=2\nA=3\n" {
		t.Errorf("exact: got %q", got)
	}
	if got := exec(sdk.Command{}); got != "" {
		t.Errorf("empty: got %q", got)
	}
	got := "\n" + exec(sdk.Command{InheritEnv: true, Env: []string{"HOME=/h"}})
	for want, there := range map[string]bool{"\nHOME=/h\n": true, "\nPATH=": true, "\nLC_TEST=kept\n": true, "\nPWD=/tmp\n": true, "secret": false, "\nHOME=/r": false} {
		if strings.Contains(got, want) != there {
			t.Errorf("inherited: %q there: %v, want %v, in %s", want, !there, there, got)
		}
	}
}

// TestWhatCannotBeStarted: each failure has its code and its sentence, and says that nothing ran.
func TestWhatCannotBeStarted(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := write("plain", "#!/bin/sh\n", 0o644)
	rubbish := write("rubbish", "\x00\x01\x02", 0o755)
	interpreter := write("interpreter", "#!/no/such/interpreter\n", 0o755)
	env := open(t, "local:")
	for _, c := range []struct {
		cmd  sdk.Command
		code sdk.Code
		text string
	}{
		{sdk.Command{Argv: []string{"no-such-program"}}, sdk.CodeNotFound, "no-such-program: command not found"},
		{sdk.Command{Argv: []string{dir + "/missing"}}, sdk.CodeNotFound, "no such file"},
		{sdk.Command{Argv: []string{"plain"}, Env: []string{"PATH=" + dir}}, sdk.CodePermission, "not executable"},
		{sdk.Command{Argv: []string{plain}}, sdk.CodePermission, "not executable"},
		{sdk.Command{Argv: []string{dir}}, sdk.CodePermission, "is a directory"},
		{sdk.Command{Argv: []string{rubbish}}, sdk.CodePermission, "not a program"},
		{sdk.Command{Argv: []string{interpreter}}, sdk.CodeNotFound, "first line"},
		{sdk.Command{Argv: []string{"true"}, Dir: dir + "/missing"}, sdk.CodeInvalid, "does not exist"},
		{sdk.Command{Argv: []string{"true"}, Dir: plain}, sdk.CodeInvalid, "is not a directory"},
		{sdk.Command{Argv: []string{""}}, sdk.CodeInvalid, "empty"},
		{sdk.Command{}, sdk.CodeInvalid, "empty"},
		{sdk.Command{Argv: []string{"true"}, Env: []string{"rubbish"}}, sdk.CodeInvalid, "NAME=value"},
		{sdk.Command{Argv: []string{"/bin/true", strings.Repeat("x", 1<<20)}}, sdk.CodeInvalid, "too long"},
	} {
		if c.cmd.Env == nil {
			c.cmd.InheritEnv = true
		}
		_, err := env.Exec(t.Context(), c.cmd, sdk.IO{})
		got := sdk.AsError(err, sdk.MayHaveRun)
		if got == nil || got.Code != c.code || got.Delivery != sdk.NotStarted || !strings.Contains(got.Message, c.text) {
			t.Errorf("%.60q in %q: got %+v, want %s with %q", c.cmd.Argv, c.cmd.Dir, got, c.code, c.text)
		}
	}
}

func TestTargets(t *testing.T) {
	client, stop, err := sdk.Pipe(t.Context(), local.New())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stop() }()
	for _, target := range []string{"", "ssh://x", "local://host/dir", "local:relative", "local:/?a=b", "local:/no/such/dir"} {
		_, err := client.Open(t.Context(), sdk.OpenRequest{ID: "x", Target: target})
		if !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%q: got %v, want ErrInvalid", target, err)
		}
	}
	_, err = client.Open(t.Context(), sdk.OpenRequest{ID: "x", Target: "local:", Config: []byte(`{"x":1}`)})
	if !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("config: got %v", err)
	}
}

// TestBusyFileIsTriedAgain: a program that somebody has just written may still be open in a process that is being forked.
func TestBusyFileIsTriedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "busy")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 6\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	env := open(t, "local:")
	timer := time.AfterFunc(20*time.Millisecond, func() { _ = f.Close() })
	defer timer.Stop()
	if got, err := run(t.Context(), env, nil, path); err != nil || got.status.Code != 6 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestStdinThatNobodyReads(t *testing.T) {
	env := open(t, "local:")
	for _, script := range []string{"head -c1 >/dev/null", "sleep 0.1", "exec 0<&-; sleep 0.05"} {
		got, err := run(t.Context(), env, &pattern{}, "sh", "-c", script)
		if err != nil || got.status != (sdk.ExitStatus{}) {
			t.Errorf("%s: got %+v, %v", script, got, err)
		}
	}
}

func TestSignalsPassFullStdin(t *testing.T) {
	env := open(t, "local:")
	control := make(chan sdk.Control, 1)
	full := &gated{after: 1 << 17, fn: func() { control <- sdk.Control{Signal: "INT"} }}
	status, err := env.Exec(t.Context(), sdk.Command{Argv: []string{"sleep", "305"}, InheritEnv: true}, sdk.IO{Stdin: full, Control: control})
	if err != nil || status != (sdk.ExitStatus{Code: -1, Signal: "INT"}) {
		t.Errorf("got %+v, %v", status, err)
	}
}

// gated is endless input that calls fn once a number of bytes was taken.
type gated struct {
	n, after int
	fn       func()
}

func (g *gated) Read(p []byte) (int, error) {
	g.n += len(p)
	if g.fn != nil && g.n >= g.after {
		g.fn()
		g.fn = nil
	}
	return len(p), nil
}

// TestSlowReaderGetsEverything: what was in the pipe when the process ended is not lost to a reader that takes its time.
func TestSlowReaderGetsEverything(t *testing.T) {
	env := open(t, "local:")
	const size = 2_000_000
	n := 0
	slow := writerFunc(func(p []byte) (int, error) {
		if n == 0 {
			time.Sleep(600 * time.Millisecond) // longer than a pipe that others hold is read
		}
		n += len(p)
		return len(p), nil
	})
	status, err := env.Exec(t.Context(), sdk.Command{Argv: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}, InheritEnv: true}, sdk.IO{Stdout: slow})
	if err != nil || status.Code != 0 || n != size {
		t.Errorf("got %+v, %v and %d bytes", status, err, n)
	}
}

func TestTerminal(t *testing.T) {
	env := open(t, "local:")
	var out bytes.Buffer
	control := make(chan sdk.Control, 1)
	ready := false
	script := `trap 'stty size; exit 3' WINCH; test -t 0 -a -t 1 -a -t 2 && stty size; echo ready; while :; do sleep 0.01; done`
	status, err := env.Exec(t.Context(), sdk.Command{Argv: []string{"sh", "-c", script}, InheritEnv: true, TTY: &sdk.Window{Rows: 7, Cols: 70}},
		sdk.IO{Control: control, Stdout: writerFunc(func(p []byte) (int, error) {
			out.Write(p)
			if !ready && strings.Contains(out.String(), "ready") {
				ready = true
				control <- sdk.Control{Resize: &sdk.Window{Rows: 8, Cols: 80}}
			}
			return len(p), nil
		})})
	if err != nil || status.Code != 3 || out.String() != "7 70\r\nready\r\n8 80\r\n" {
		t.Errorf("got %+v, %q, %v", status, out.String(), err)
	}

	out.Reset()
	status, err = env.Exec(t.Context(), sdk.Command{Argv: []string{"sh", "-c", "stty -echo; cat; exit 4"}, InheritEnv: true, TTY: &sdk.Window{Rows: 7, Cols: 70}},
		sdk.IO{Stdin: strings.NewReader("typed\n"), Stdout: &out})
	if err != nil || status.Code != 4 || !strings.HasSuffix(out.String(), "typed\r\n") {
		t.Errorf("stdin: got %+v, %q, %v", status, out.String(), err)
	}

	out.Reset()
	start := time.Now()
	if _, err := env.Exec(t.Context(), sdk.Command{Argv: []string{"sh", "-c", "trap '' HUP; sleep 306 & echo held $!"}, InheritEnv: true, TTY: &sdk.Window{Rows: 7, Cols: 70}}, sdk.IO{Stdout: &out}); err != nil {
		t.Errorf("held: %v", err)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("a terminal that somebody else holds took %v", d)
	}
	pid, held := strings.CutPrefix(strings.TrimSuffix(out.String(), "\r\n"), "held ")
	if left, err := run(t.Context(), env, nil, "kill", pid); !held || err != nil || left.status.Code != 0 {
		t.Errorf("held: it printed %q, and what it left is gone: %+v, %v", out.String(), left, err)
	}
}

func TestCloseEndsCommandsAndIsIdempotent(t *testing.T) {
	env := open(t, "local:")
	started := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := env.Exec(t.Context(), sdk.Command{Argv: []string{"sleep", "307"}, InheritEnv: true}, sdk.IO{Started: func() { close(started) }})
		ended <- err
	}()
	<-started
	for range 2 {
		if err := env.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if err := <-ended; !errors.Is(err, sdk.ErrClosed) {
		t.Errorf("the command: got %v, want ErrClosed", err)
	}
	if _, err := run(t.Context(), env, nil, "true"); !errors.Is(err, sdk.ErrClosed) {
		t.Errorf("after Close: got %v", err)
	}
}
