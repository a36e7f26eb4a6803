package registry

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// crasher is the local backend with a directory of things to do: a file there is done and removed, before the call that it names.
type crasher struct {
	sdk.Backend
	dir string
}

func (c *crasher) told(what string) bool { return os.Remove(filepath.Join(c.dir, what)) == nil }

func (c *crasher) Open(ctx context.Context, req sdk.OpenRequest) (sdk.Environment, error) {
	if c.told("open-exits") {
		os.Exit(3)
	}
	if c.told("open-hangs") {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // any thread may be the first that stops: this one must not answer meanwhile
		<-ctx.Done()
	}
	env, err := c.Backend.Open(ctx, req)
	if err != nil {
		return nil, err
	}
	return &crashingEnvironment{env, c}, nil
}

type crashingEnvironment struct {
	sdk.Environment
	c *crasher
}

func (e *crashingEnvironment) Exec(ctx context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	f, err := os.OpenFile(filepath.Join(e.c.dir, "runs"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return sdk.ExitStatus{}, err
	}
	_, _ = f.WriteString("x")
	_ = f.Close()
	if e.c.told("exec-panics") {
		go panic("boom in exec") // where no recover of the server is
		select {}
	}
	return e.Environment.Exec(ctx, cmd, stdio)
}

// crashing is a registry with the crashing backend, and the directory that tells it what to do.
func crashing(t *testing.T) (r *Registry, tell func(what string), dir string) {
	t.Helper()
	dir = t.TempDir()
	r = testRegistry(t, Config{Builtin: []Builtin{{Name: "crash", Args: []string{serveCrash, dir}}}})
	r.tune.backoffMin = time.Millisecond
	return r, func(what string) {
		if err := os.WriteFile(filepath.Join(dir, what), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}, dir
}

func backendOf(t *testing.T, r *Registry) *supervised {
	t.Helper()
	b, err := r.Backend(t.Context(), "crash")
	if err != nil {
		t.Fatal(err)
	}
	return b.(*supervised)
}

func openIn(t *testing.T, b sdk.Backend) sdk.Environment {
	t.Helper()
	env, err := b.Open(t.Context(), sdk.OpenRequest{ID: "e", Target: "local:"})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

var trueCommand = sdk.Command{Argv: []string{"true"}, InheritEnv: true}

func TestExecThatMayHaveRunIsNotRunAgain(t *testing.T) {
	r, tell, dir := crashing(t)
	env := openIn(t, backendOf(t, r))
	tell("exec-panics")
	_, err := env.Exec(t.Context(), trueCommand, sdk.IO{Stdout: io.Discard})
	e, ok := errors.AsType[*sdk.Error](err)
	if !ok || e.Code != sdk.CodeCrashed || e.Delivery != sdk.MayHaveRun {
		t.Fatalf("got %v; want crashed, may have run", err)
	}
	if !strings.Contains(e.Message, "panic: boom in exec") || !strings.Contains(e.Message, "goroutine ") {
		t.Errorf("the error lacks the panic: %s", e.Message)
	}
	if runs, _ := os.ReadFile(filepath.Join(dir, "runs")); len(runs) != 1 {
		t.Errorf("run %d times; want once", len(runs))
	}

	// The handle outlives the plugin: the environment is opened again in the new one.
	st, err := env.Exec(t.Context(), trueCommand, sdk.IO{})
	if err != nil || st.Code != 0 {
		t.Errorf("after the crash: %+v, %v", st, err)
	}
}

func TestExecThatWasNotSentIsSentAgain(t *testing.T) {
	r, _, dir := crashing(t)
	b := backendOf(t, r)
	env := openIn(t, b)
	inst, err := b.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(inst.process.PID(), syscall.SIGKILL)
	<-inst.process.Done() // the connection is gone; whether the registry knows yet is a race that must not matter
	st, err := env.Exec(t.Context(), trueCommand, sdk.IO{})
	if err != nil || st.Code != 0 {
		t.Errorf("got %+v, %v", st, err)
	}
	if runs, _ := os.ReadFile(filepath.Join(dir, "runs")); len(runs) != 1 {
		t.Errorf("run %d times; want once", len(runs))
	}
}

func TestOpenIsMadeAgainAfterACrash(t *testing.T) {
	r, tell, _ := crashing(t)
	b := backendOf(t, r)
	tell("open-exits")
	openIn(t, b)
	if b.started != 2 {
		t.Errorf("%d instances; want 2", b.started)
	}
}

func TestHungPluginIsReplaced(t *testing.T) {
	r, tell, _ := crashing(t)
	r.tune.probeFirst, r.tune.healthWait = 100*time.Millisecond, 500*time.Millisecond
	b := backendOf(t, r)
	tell("open-hangs")
	openIn(t, b)
	if b.started != 2 || !strings.Contains(b.record.last.Error(), "did not answer") {
		t.Errorf("%d instances, last %v; want 2, the first one hung", b.started, b.record.last)
	}
}

func TestQuarantineAndItsEnd(t *testing.T) {
	r, _, _ := crashing(t)
	for range r.tune.crashLimit {
		inst, err := backendOf(t, r).acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(inst.process.PID(), syscall.SIGKILL)
		<-inst.gone
	}
	_, err := r.Backend(t.Context(), "crash")
	e, ok := errors.AsType[*sdk.Error](err)
	if !ok || e.Code != sdk.CodeCrashed || !strings.Contains(e.Message, "quarantine") || !strings.Contains(e.Hint, "hermes plugin install") {
		t.Fatalf("got %v; want quarantine and the way out of it", err)
	}
	if all, err := r.List(t.Context()); err != nil || len(all) != 1 || all[0].State != stateQuarantined {
		t.Errorf("list: %+v, %v", all, err)
	}
	r.backends["crash"].record.binary = "another build"
	backendOf(t, r)
}

func TestBackoffGrows(t *testing.T) {
	tune := defaultTuning
	tune.jitter = func() float64 { return 0 }
	var c crashRecord
	for i, want := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second} {
		c.crashed(errClosed, 0, tune, "")
		if got := time.Until(c.notBefore); got > want || got < want-100*time.Millisecond {
			t.Errorf("crash %d: %s; want %s", i+1, got, want)
		}
	}
	c.crashed(errClosed, time.Minute, tune, "")
	if got := time.Until(c.notBefore); got > 250*time.Millisecond {
		t.Errorf("after a minute of health: %s; want the first step", got)
	}
	c.inRow = 60
	c.crashed(errClosed, 0, tune, "")
	if got := time.Until(c.notBefore); got > 30*time.Second || got < 29*time.Second {
		t.Errorf("at worst: %s; want 30 s", got)
	}
}

func TestStartIsShared(t *testing.T) {
	r, _, _ := crashing(t)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if _, err := r.Backend(t.Context(), "crash"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := r.backends["crash"].started; n != 1 {
		t.Errorf("%d processes started; want 1", n)
	}
}

func TestIdleRegistryArmsNoTimer(t *testing.T) {
	r, _, _ := crashing(t)
	b := backendOf(t, r)
	openIn(t, b)
	b.current.mu.Lock()
	defer b.current.mu.Unlock()
	if b.current.calls != 0 || b.current.probe != nil {
		t.Errorf("%d calls, timer %v", b.current.calls, b.current.probe)
	}
}

func TestClosedRegistry(t *testing.T) {
	r, _, _ := crashing(t)
	b := backendOf(t, r)
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Backend(t.Context(), "crash"); !errors.Is(err, sdk.ErrClosed) {
		t.Errorf("backend: %v", err)
	}
	if _, err := b.Open(t.Context(), sdk.OpenRequest{ID: "late", Target: "local:"}); !errors.Is(err, sdk.ErrClosed) {
		t.Errorf("Open: %v", err)
	}
}
