package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// execFake makes a backend of one function.
func execFake(fn func(context.Context, sdk.Command, sdk.IO) (sdk.ExitStatus, error)) *fake {
	return &fake{exec: fn}
}

var command = sdk.Command{Argv: []string{"x"}}

func TestExecPassesTheWholeCommand(t *testing.T) {
	var got sdk.Command
	var nilIO bool
	env := environment(t, execFake(func(_ context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
		got = cmd
		nilIO = stdio.Stdin == nil && stdio.Stdout == nil && stdio.Stderr == nil
		return sdk.ExitStatus{Code: -1, Signal: "KILL"}, nil
	}))
	want := sdk.Command{
		Argv:       []string{"a", "", "é"},
		Env:        []string{"A=1"},
		InheritEnv: true,
		Dir:        "/d",
		TTY:        &sdk.Window{Rows: 24, Cols: 80},
	}
	status, err := env.Exec(t.Context(), want, sdk.IO{})
	if err != nil || status != (sdk.ExitStatus{Code: -1, Signal: "KILL"}) {
		t.Errorf("got %+v, %v", status, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if !nilIO {
		t.Error("what the caller left nil was not nil in the backend")
	}
}

// TestExecDeliveryOfFailures: what is said about the work follows what is known about it.
func TestExecDeliveryOfFailures(t *testing.T) {
	plain := errors.New("plain")
	typed := sdk.Errorf(sdk.CodeNotFound, sdk.NotStarted, "typed")
	for _, c := range []struct {
		name    string
		started bool
		err     error
		code    sdk.Code
		want    sdk.Delivery
	}{
		{"a plain error before the start", false, plain, sdk.CodeInternal, sdk.MayHaveRun},
		{"a plain error after it", true, plain, sdk.CodeInternal, sdk.Ran},
		{"a typed error before the start", false, typed, sdk.CodeNotFound, sdk.NotStarted},
		{"a typed error that contradicts the start", true, typed, sdk.CodeNotFound, sdk.Ran},
	} {
		env := environment(t, execFake(func(_ context.Context, _ sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
			if c.started {
				stdio.Started()
			}
			return sdk.ExitStatus{}, c.err
		}))
		started := false
		_, err := env.Exec(t.Context(), command, sdk.IO{Started: func() { started = true }})
		got := sdk.AsError(err, sdk.NotStarted)
		if got.Code != c.code || got.Delivery != c.want || started != c.started {
			t.Errorf("%s: got %s, %s, started %v", c.name, got.Code, got.Delivery, started)
		}
	}
}

func TestPanicIsAnErrorAndThePluginLives(t *testing.T) {
	env := environment(t, execFake(func(_ context.Context, cmd sdk.Command, _ sdk.IO) (sdk.ExitStatus, error) {
		if cmd.Dir == "panic" {
			panic("oh no")
		}
		return sdk.ExitStatus{Code: 5}, nil
	}))
	_, err := env.Exec(t.Context(), sdk.Command{Argv: []string{"x"}, Dir: "panic"}, sdk.IO{})
	if !errors.Is(err, sdk.ErrInternal) || !strings.Contains(err.Error(), "oh no") {
		t.Errorf("got %v", err)
	}
	if status, err := env.Exec(t.Context(), command, sdk.IO{}); err != nil || status.Code != 5 {
		t.Errorf("afterwards: %+v, %v", status, err)
	}
}

func TestPanicInOtherMethods(t *testing.T) {
	client := connect(t, &fake{
		open:  func(context.Context, sdk.OpenRequest) error { panic("in open") },
		close: func(context.Context) error { panic("in close") },
	})
	for range 2 { // the same ID is free again
		_, err := client.Open(t.Context(), sdk.OpenRequest{ID: "a"})
		if !errors.Is(err, sdk.ErrInternal) || !strings.Contains(err.Error(), "in open") {
			t.Errorf("got %v", err)
		}
	}
}

// TestSignalsPassFullStdin: nobody reads stdin, and the caller offers without end; a signal and a size still arrive.
func TestSignalsPassFullStdin(t *testing.T) {
	env := environment(t, execFake(func(ctx context.Context, _ sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
		got := []sdk.Control{}
		for len(got) < 2 {
			select {
			case c := <-stdio.Control:
				got = append(got, c)
			case <-ctx.Done():
				return sdk.ExitStatus{}, ctx.Err()
			}
		}
		_, _ = fmt.Fprint(stdio.Stdout, got[0].Signal, got[1].Resize.Cols)
		return sdk.ExitStatus{}, nil
	}))
	var out bytes.Buffer
	source := &endless{full: make(chan struct{})}
	control := make(chan sdk.Control)
	go func() {
		<-source.full
		control <- sdk.Control{Signal: "USR1"}
		control <- sdk.Control{Resize: &sdk.Window{Rows: 1, Cols: 99}}
	}()
	_, err := env.Exec(t.Context(), command, sdk.IO{Stdin: source, Stdout: &out, Control: control})
	if err != nil || out.String() != "USR199" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	if n := source.n.Load(); n > 1<<20 {
		t.Errorf("%d bytes of stdin were taken although nobody read them", n)
	}
}

// endless is stdin without an end. full is closed when more was taken than may be sent before the plugin grants any.
type endless struct {
	n    atomic.Int64
	full chan struct{}
	once sync.Once
}

func (e *endless) Read(p []byte) (int, error) {
	if e.n.Add(int64(len(p))) > 64<<10 {
		e.once.Do(func() { close(e.full) })
	}
	return len(p), nil
}

// TestSlowReaderBoundsMemory: a caller that takes nothing stops the backend after a bounded number of bytes; the other stream goes on.
func TestSlowReaderBoundsMemory(t *testing.T) {
	var written atomic.Int64
	env := environment(t, execFake(func(_ context.Context, _ sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
		var wg sync.WaitGroup
		wg.Go(func() {
			p := make([]byte, 10_000)
			for range 1000 {
				n, err := stdio.Stdout.Write(p)
				written.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
		for range 1000 {
			_, _ = stdio.Stderr.Write(make([]byte, 10_000))
		}
		wg.Wait()
		return sdk.ExitStatus{}, nil
	}))
	gate := make(chan struct{})
	var out, stderr counter
	slow := writerFunc(func(p []byte) (int, error) {
		<-gate
		return out.Write(p)
	})
	var opened sync.Once
	other := writerFunc(func(p []byte) (int, error) {
		n, err := stderr.Write(p)
		if stderr.n.Load() == 10_000_000 {
			opened.Do(func() {
				if w := written.Load(); w > 1<<20 {
					t.Errorf("%d bytes were written although the caller takes none", w)
				}
				close(gate)
			})
		}
		return n, err
	})
	if _, err := env.Exec(t.Context(), command, sdk.IO{Stdout: slow, Stderr: other}); err != nil {
		t.Fatal(err)
	}
	if out.n.Load() != 10_000_000 || stderr.n.Load() != 10_000_000 {
		t.Errorf("got %d and %d bytes", out.n.Load(), stderr.n.Load())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type counter struct{ n atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// TestTinyWritesDoNotAddUp: a queue that is filled byte by byte and never quite empty does not grow.
func TestTinyWritesDoNotAddUp(t *testing.T) {
	const total = 300_000
	env := environment(t, execFake(func(_ context.Context, _ sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
		n, err := io.Copy(io.Discard, stdio.Stdin)
		if err == nil && n != total {
			err = fmt.Errorf("read %d bytes", n)
		}
		return sdk.ExitStatus{}, err
	}))
	_, err := env.Exec(t.Context(), command, sdk.IO{Stdin: iotestOneByte{io.LimitReader(zero{}, total)}})
	if err != nil {
		t.Error(err)
	}
}

type zero struct{}

func (zero) Read(p []byte) (int, error) { return len(p), nil }

type iotestOneByte struct{ r io.Reader }

func (r iotestOneByte) Read(p []byte) (int, error) { return r.r.Read(p[:min(len(p), 7)]) }

// TestCancelReachesTheBackend: its ctx ends, what it still says arrives, and Exec waits for it.
func TestCancelReachesTheBackend(t *testing.T) {
	env := environment(t, execFake(func(ctx context.Context, _ sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
		stdio.Started()
		<-ctx.Done()
		_, _ = io.WriteString(stdio.Stdout, "last words")
		return sdk.ExitStatus{}, ctx.Err()
	}))
	reason := errors.New("a reason of the caller's")
	ctx, cancel := context.WithCancelCause(t.Context())
	var out bytes.Buffer
	_, err := env.Exec(ctx, command, sdk.IO{Stdout: &out, Started: func() { cancel(reason) }})
	if !errors.Is(err, reason) || !errors.Is(err, sdk.ErrCanceled) || out.String() != "last words" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	if d := sdk.AsError(err, sdk.NotStarted).Delivery; d != sdk.Ran {
		t.Errorf("delivery is %s", d)
	}

	ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	if _, err := env.Exec(ctx, command, sdk.IO{Stdout: &out}); !errors.Is(err, sdk.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}

	ended, end := context.WithCancel(t.Context())
	end()
	_, err = env.Exec(ended, command, sdk.IO{})
	if e := sdk.AsError(err, sdk.Ran); e.Code != sdk.CodeCanceled || e.Delivery != sdk.NotStarted {
		t.Errorf("with a ctx that has ended: %+v", e)
	}
}

// TestHungBackendDoesNotHangTheCaller: a backend that ignores its ctx is left behind after a bounded time.
func TestHungBackendDoesNotHangTheCaller(t *testing.T) {
	grace := sdk.Grace
	sdk.Grace = -1400 * time.Millisecond // leaves 200 ms of the wait
	defer func() { sdk.Grace = grace }()
	release := make(chan struct{})
	env := environment(t, execFake(func(context.Context, sdk.Command, sdk.IO) (sdk.ExitStatus, error) {
		<-release
		return sdk.ExitStatus{}, nil
	}))
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := env.Exec(ctx, command, sdk.IO{})
	if e := sdk.AsError(err, sdk.NotStarted); e.Code != sdk.CodeTimeout || e.Delivery != sdk.MayHaveRun {
		t.Errorf("got %+v", e)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestBrokenCallerEndsTheCommand(t *testing.T) {
	endless := execFake(func(ctx context.Context, _ sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
		if stdio.Stdin != nil {
			_, _ = io.Copy(io.Discard, stdio.Stdin)
		}
		for ctx.Err() == nil {
			_, _ = stdio.Stdout.Write(make([]byte, 1000))
		}
		return sdk.ExitStatus{}, ctx.Err()
	})
	env := environment(t, endless)
	failure := errors.New("pipe is broken")
	fails := writerFunc(func([]byte) (int, error) { return 0, failure })
	if _, err := env.Exec(t.Context(), command, sdk.IO{Stdout: fails}); !errors.Is(err, failure) || sdk.AsError(err, sdk.NotStarted).Delivery != sdk.Ran {
		t.Errorf("a writer that fails: got %v", err)
	}
	stdin := io.MultiReader(strings.NewReader("half"), iotestError{failure})
	if _, err := env.Exec(t.Context(), command, sdk.IO{Stdin: stdin, Stdout: &counter{}}); !errors.Is(err, failure) {
		t.Errorf("a reader that fails: got %v", err)
	}
}

type iotestError struct{ err error }

func (r iotestError) Read([]byte) (int, error) { return 0, r.err }

// TestLateWritesAreRefused: the exit is the last message even if a backend goes on writing.
func TestLateWritesAreRefused(t *testing.T) {
	late := make(chan error, 1)
	returned := make(chan struct{})
	env := environment(t, execFake(func(_ context.Context, _ sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
		go func() {
			<-returned
			_, err := stdio.Stdout.Write([]byte("late"))
			late <- err
		}()
		return sdk.ExitStatus{Code: 1}, nil
	}))
	var out bytes.Buffer
	status, err := env.Exec(t.Context(), command, sdk.IO{Stdout: &out})
	close(returned)
	if err != nil || status.Code != 1 || out.Len() > 0 {
		t.Errorf("got %+v, %q, %v", status, out.String(), err)
	}
	if err := <-late; err == nil {
		t.Error("a write after the exit was accepted")
	}
}

func TestShutdownEndsWhatRuns(t *testing.T) {
	var closed atomic.Int64
	client := connect(t, &fake{
		exec: func(ctx context.Context, _ sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
			stdio.Started()
			<-ctx.Done()
			return sdk.ExitStatus{}, ctx.Err()
		},
		close: func(context.Context) error { closed.Add(1); return nil },
	})
	env, err := client.Open(t.Context(), sdk.OpenRequest{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := env.Exec(t.Context(), command, sdk.IO{Started: func() { close(started) }})
		ended <- err
	}()
	<-started
	if err := client.Shutdown(t.Context()); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if err := <-ended; !errors.Is(err, sdk.ErrClosed) || sdk.AsError(err, sdk.NotStarted).Delivery != sdk.Ran {
		t.Errorf("the command that ran: %v", err)
	}
	if closed.Load() != 1 {
		t.Errorf("Close was called %d times", closed.Load())
	}
	_, err = env.Exec(t.Context(), command, sdk.IO{})
	if e := sdk.AsError(err, sdk.Ran); e.Code != sdk.CodeClosed || e.Delivery != sdk.NotStarted {
		t.Errorf("afterwards: %+v", e)
	}
}

// TestBulkOutputAllocatesLittle: a megabyte costs a bounded number of allocations on both sides together.
func TestBulkOutputAllocatesLittle(t *testing.T) {
	const chunks = 2000
	p := make([]byte, sdk.MaxChunk)
	env := environment(t, execFake(func(_ context.Context, _ sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
		for range chunks {
			if _, err := stdio.Stdout.Write(p); err != nil {
				return sdk.ExitStatus{}, err
			}
		}
		return sdk.ExitStatus{}, nil
	}))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var out counter
	if _, err := env.Exec(t.Context(), command, sdk.IO{Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	perChunk := float64(after.TotalAlloc-before.TotalAlloc) / chunks
	t.Logf("%.0f bytes, %.1f allocations a chunk", perChunk, float64(after.Mallocs-before.Mallocs)/chunks)
	if perChunk > 3*sdk.MaxChunk {
		t.Errorf("%.0f bytes were allocated for each chunk", perChunk)
	}
}

func BenchmarkExecOutput(b *testing.B) {
	p := make([]byte, sdk.MaxChunk)
	env := environment(b, execFake(func(_ context.Context, _ sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
		for range b.N {
			if _, err := stdio.Stdout.Write(p); err != nil {
				return sdk.ExitStatus{}, err
			}
		}
		return sdk.ExitStatus{}, nil
	}))
	b.SetBytes(sdk.MaxChunk)
	b.ReportAllocs()
	b.ResetTimer()
	if _, err := env.Exec(b.Context(), command, sdk.IO{Stdout: &counter{}}); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkExecInput(b *testing.B) {
	env := environment(b, execFake(func(_ context.Context, _ sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
		_, err := io.CopyBuffer(struct{ io.Writer }{&counter{}}, struct{ io.Reader }{stdio.Stdin}, make([]byte, sdk.MaxChunk))
		return sdk.ExitStatus{}, err
	}))
	b.SetBytes(sdk.MaxChunk)
	b.ReportAllocs()
	b.ResetTimer()
	if _, err := env.Exec(b.Context(), command, sdk.IO{Stdin: io.LimitReader(zero{}, int64(b.N)*sdk.MaxChunk)}); err != nil {
		b.Fatal(err)
	}
}
