package launch

import (
	"context"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

func kill(t *testing.T, id string, sig syscall.Signal) {
	t.Helper()
	pid, err := strconv.Atoi(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// waitFor waits until the file is there or ctx is done.
func waitFor(ctx context.Context, path string) {
	for !exists(path) && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
}

func TestStopIsQuick(t *testing.T) {
	p := start(t, badSpec(t, "ok"))
	began := time.Now()
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("took %s", d)
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestStopWhileAGrandchildHoldsTheOutput(t *testing.T) {
	t.Parallel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	client, _ := plainStart(t, plainConfig("grandchild", pidFile))
	holder := readPID(t, pidFile)
	stuck, wait := hangs(3*time.Second, client.Kill)
	if !stuck || client.Exited() {
		t.Error("control: Kill came back; go-plugin has been mended")
	}
	_ = syscall.Kill(holder, syscall.SIGKILL)
	wait()

	pidFile = filepath.Join(t.TempDir(), "pid")
	p := start(t, badSpec(t, "grandchild", pidFile))
	readPID(t, pidFile)
	began := time.Now()
	if err := p.Stop(t.Context()); err != nil || time.Since(began) > 2*time.Second {
		t.Errorf("Stop: %v after %s", err, time.Since(began))
	}
}

func TestCrashWhileAGrandchildHoldsTheOutput(t *testing.T) {
	t.Parallel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	began := time.Now()
	e := startFails(t, badSpec(t, "grandchild-crash", pidFile))
	readPID(t, pidFile)
	if e.Exit == nil || e.Exit.Code != 9 || time.Since(began) > 10*time.Second {
		t.Errorf("exit %+v after %s", e.Exit, time.Since(began))
	}
}

func TestStopOfAStoppedProcess(t *testing.T) {
	t.Parallel()
	client, protocol := plainStart(t, plainConfig("ok"))
	kill(t, client.ID(), syscall.SIGSTOP)
	pings, waitPing := hangs(time.Second, func() { _ = protocol.Ping() })
	kills, waitKill := hangs(3*time.Second, client.Kill)
	if !pings || !kills {
		t.Errorf("control: Ping hangs: %v, Kill hangs: %v; go-plugin has been mended", pings, kills)
	}
	kill(t, client.ID(), syscall.SIGCONT)
	waitPing()
	waitKill()

	p := start(t, badSpec(t, "ok"))
	_ = syscall.Kill(p.PID(), syscall.SIGSTOP)
	began := time.Now()
	if err := p.Stop(t.Context()); err != nil || time.Since(began) > 2*time.Second {
		t.Errorf("Stop: %v after %s", err, time.Since(began))
	}

	p = start(t, badSpec(t, "ok"))
	_ = syscall.Kill(p.PID(), syscall.SIGSTOP)
	began = time.Now()
	if err := p.Kill(); err != nil || time.Since(began) > 2*time.Second {
		t.Errorf("Kill: %v after %s", err, time.Since(began))
	}
}

// TestStopAtWorst goes the whole way: a Shutdown that never answers, a process that ignores TERM.
func TestStopAtWorst(t *testing.T) {
	t.Parallel()
	spec := badSpec(t, "ignore-term")
	spec.Shutdown = func(ctx context.Context, _ *grpc.ClientConn) error {
		<-ctx.Done()
		return nil
	}
	p := start(t, spec)
	began := time.Now()
	err := p.Stop(t.Context())
	if d := time.Since(began); err != nil || d < 9*time.Second || d > 12*time.Second {
		t.Errorf("Stop: %v after %s; want all steps, about 10 s", err, d)
	}
	if e := p.Exit(); e.Signal != "KILL" || !e.Killed {
		t.Errorf("exit: %+v", e)
	}
}

func TestStopWithoutPatience(t *testing.T) {
	p := start(t, badSpec(t, "ignore-term"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	if err := p.Stop(ctx); err != nil || time.Since(began) > 2*time.Second {
		t.Errorf("Stop: %v after %s", err, time.Since(began))
	}
}

// TestSlowShutdownIsWaitedFor: go-plugin waits 2 s for a plugin that clears up, and kills it.
func TestSlowShutdownIsWaitedFor(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cleared")
	client, _ := plainStart(t, plainConfig("slow-exit", file))
	client.Kill()
	if exists(file) {
		t.Error("control: the plugin was given its time; go-plugin has been mended")
	}

	file = filepath.Join(t.TempDir(), "cleared")
	spec := badSpec(t, "slow-exit", file)
	spec.Shutdown = func(ctx context.Context, conn *grpc.ClientConn) error {
		_ = conn.Invoke(ctx, "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{}) // ends the server it is answered by
		return nil
	}
	p := start(t, spec)
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !exists(file) || p.Exit().Code != 0 {
		t.Errorf("the plugin was not given its time: %+v", p.Exit())
	}
}

// TestSocketsAreRemoved: a plugin that is killed leaves its socket in the temp directory.
func TestSocketsAreRemoved(t *testing.T) {
	tmp := shortDir(t)
	t.Setenv("TMPDIR", tmp)
	client, _ := plainStart(t, plainConfig("ok"))
	kill(t, client.ID(), syscall.SIGKILL)
	eventually(t, "control: the plugin's death", client.Exited)
	client.Kill()
	if left, _ := filepath.Glob(filepath.Join(tmp, "plugin*")); len(left) == 0 {
		t.Error("control: no socket is left; go-plugin has been mended")
	}

	p := start(t, badSpec(t, "ok")) // checks at its end that its runtime directory is empty
	_ = syscall.Kill(p.PID(), syscall.SIGKILL)
	<-p.Done()
}
