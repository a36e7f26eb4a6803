//go:build unix

package sdktest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugin/sdk/sdktest"
	"github.com/hermes-framework/hermes/plugins/local"
)

// Without a fault a faulty backend is as good as the one that it wraps.
func TestNoFault(t *testing.T) { sdktest.Run(t, sdktest.Faulty(local.New()), "local:") }

// ways are a backend in this process, and one on the other side of the wire.
var ways = []string{"here", "wire"}

func openFaulty(t *testing.T, way string, f *sdktest.Faults) sdk.Environment {
	t.Helper()
	b := f.Wrap(local.New())
	if way == "wire" {
		client, stop, err := sdk.Pipe(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
		})
		b = client
	}
	env, err := b.Open(t.Context(), sdk.OpenRequest{ID: "e", Target: "local:"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = env.Close(ctx)
	})
	return env
}

func eachWay(t *testing.T, test func(t *testing.T, way string)) {
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel() // they wait more than they work
			test(t, way)
		})
	}
}

// within is a ctx for a step with a fault: short for what hangs.
func within(t *testing.T, do sdktest.Effect) context.Context {
	limit := 20 * time.Second
	if do == sdktest.Hang {
		limit = 300 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func wantDelivery(t *testing.T, err, code error, delivery sdk.Delivery) {
	t.Helper()
	if e := sdk.AsError(err, -1); err == nil || !errors.Is(err, code) || e.Delivery != delivery {
		t.Errorf("got error %v (%+v), want %v with delivery %s", err, e, code, delivery)
	}
}

func TestFaultsOfACommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		do       sdktest.Effect
		runs     int
		code     error
		delivery sdk.Delivery
	}{
		{sdktest.FailBefore, 0, sdk.ErrUnavailable, sdk.NotStarted},
		{sdktest.FailAfter, 1, sdk.ErrUnavailable, sdk.Ran},
		{sdktest.Hang, 0, sdk.ErrTimeout, sdk.NotStarted},
		{sdktest.Rubbish, 1, nil, 0},
	} {
		t.Run(string(c.do), func(t *testing.T) {
			t.Parallel()
			eachWay(t, func(t *testing.T, way string) {
				f := sdktest.NewFaults(sdktest.Fault{Step: sdktest.StepExec, Arg: "pick me", Do: c.do})
				env := openFaulty(t, way, f)
				mark := filepath.Join(t.TempDir(), "mark")
				cmd := sdk.Command{Argv: []string{"sh", "-c", `echo x >>"$1"; echo done`, "sh", mark, "pick me"}, InheritEnv: true}
				var out bytes.Buffer
				status, err := env.Exec(within(t, c.do), cmd, sdk.IO{Stdout: &out})
				if runs, _ := os.ReadFile(mark); len(runs) != 2*c.runs {
					t.Errorf("it ran %d times, want %d", len(runs)/2, c.runs)
				}
				switch {
				case c.code == nil && (err != nil || status.Code != 255):
					t.Errorf("got %s, %v", status, err)
				case c.code != nil:
					want := c.delivery
					if e := sdk.AsError(err, -1); way == "here" && want == sdk.Ran || e.Delivery == sdk.MayHaveRun {
						want = sdk.MayHaveRun // nobody but the wire knows that it had started
					}
					wantDelivery(t, err, c.code, want)
				}

				if status, err := env.Exec(t.Context(), cmd, sdk.IO{}); err != nil || status.Code != 0 {
					t.Errorf("the second time: %s, %v", status, err)
				}
			})
		})
	}
}

// echo has lines go through cat, one after the other, until one does not come back.
func echo(ctx context.Context, env sdk.Environment, lines ...string) (got string, err error) {
	in, toCat := io.Pipe()
	fromCat, out := io.Pipe()
	done := make(chan error, 1)
	go func() { // ends with the pipes or ctx; waited for below
		_, err := env.Exec(ctx, sdk.Command{Argv: []string{"cat"}, InheritEnv: true}, sdk.IO{Stdin: in, Stdout: out})
		_ = out.Close()
		_ = in.CloseWithError(io.ErrClosedPipe)
		done <- err
	}()
	for _, line := range lines {
		if _, err := io.WriteString(toCat, line); err != nil {
			break
		}
		p := make([]byte, len(line))
		n, err := io.ReadFull(fromCat, p)
		got += string(p[:n])
		if err != nil {
			break
		}
	}
	_ = toCat.Close()
	rest, _ := io.ReadAll(fromCat)
	return got + string(rest), <-done
}

func TestFaultsOfACommandsStreams(t *testing.T) {
	t.Parallel()
	lines := []string{"one\n", "two\n", "three\n"}
	for _, c := range []struct {
		fault sdktest.Fault
		got   string
		err   error
	}{
		{sdktest.Fault{Step: sdktest.StepStdin, Do: sdktest.FailBefore}, "one\n", sdk.ErrUnavailable},
		{sdktest.Fault{Step: sdktest.StepStdin, Do: sdktest.FailAfter}, "one\n", sdk.ErrUnavailable},
		{sdktest.Fault{Step: sdktest.StepStdin, Do: sdktest.Hang}, "one\n", sdk.ErrTimeout},
		{sdktest.Fault{Step: sdktest.StepStdin, Do: sdktest.Rubbish}, "one\n\xff\xff\xff\xffthree\n", nil},
		{sdktest.Fault{Step: sdktest.StepStdin, Do: sdktest.Cut, At: 1}, "one\n", sdk.ErrUnavailable},
		{sdktest.Fault{Step: sdktest.StepStdout, Do: sdktest.FailBefore}, "one\n", sdk.ErrUnavailable},
		{sdktest.Fault{Step: sdktest.StepStdout, Do: sdktest.FailAfter}, "one\ntwo\n", sdk.ErrUnavailable},
		{sdktest.Fault{Step: sdktest.StepStdout, Do: sdktest.Hang}, "one\n", sdk.ErrTimeout},
		{sdktest.Fault{Step: sdktest.StepStdout, Do: sdktest.Rubbish}, "one\n\xff\xff\xff\xffthree\n", nil},
		{sdktest.Fault{Step: sdktest.StepStdout, Do: sdktest.Cut, At: 2}, "one\ntw", sdk.ErrUnavailable},
	} {
		t.Run(fmt.Sprintf("%s %s", c.fault.Step, c.fault.Do), func(t *testing.T) {
			t.Parallel()
			eachWay(t, func(t *testing.T, way string) {
				fault := c.fault
				fault.Match, fault.Arg = []byte("two"), "cat"
				f := sdktest.NewFaults(fault)
				env := openFaulty(t, way, f)
				limit := 20 * time.Second
				if fault.Do == sdktest.Hang {
					limit = time.Second // what goes before must pass
				}
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				got, err := echo(ctx, env, lines...)
				if c.fault.Step == sdktest.StepStdin && c.fault.Do == sdktest.Cut {
					got = strings.TrimSuffix(got, "t") // whether cat still passes it on before it is stopped
				}
				if got != c.got || !errors.Is(err, c.err) {
					t.Errorf("got %q, %v; want %q, %v", got, err, c.got, c.err)
				}
				if f.Fired() != 1 {
					t.Errorf("the fault hit %d times", f.Fired())
				}
				if got, err := echo(t.Context(), env, lines...); got != strings.Join(lines, "") || err != nil {
					t.Errorf("the second time: got %q, %v", got, err)
				}
			})
		})
	}
}

// listen serves a socket that answers each chunk with the same in capitals.
func listen(t *testing.T) (path string) {
	dir, err := os.MkdirTemp("", "f") //nolint:usetesting // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { // ends with the listener and the connections; waited for below
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p := make([]byte, 100)
			for {
				n, err := c.Read(p)
				if err != nil {
					break
				}
				_, _ = c.Write(bytes.ToUpper(p[:n]))
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		select {
		case <-served:
		case <-time.After(10 * time.Second):
			t.Error("a connection was left open")
		}
		_ = os.RemoveAll(dir)
	})
	return path
}

// talk writes chunks to the socket and reads the answers; it closes the connection when one takes too long.
func talk(ctx context.Context, env sdk.Environment, path string, chunks ...string) (got string, err error) {
	end, err := env.(sdk.Dialer).Dial(ctx, sdk.DialRequest{Path: path})
	if err != nil {
		return "", err
	}
	if end.Conn == nil {
		return "", errors.New("an address, which no bytes can be watched at")
	}
	defer func() { _ = end.Conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = end.Conn.Close() })()
	for _, chunk := range chunks {
		if _, err := io.WriteString(end.Conn, chunk); err != nil {
			break
		}
		p := make([]byte, len(chunk))
		n, err := io.ReadFull(end.Conn, p)
		got += string(p[:n])
		if err != nil {
			break
		}
	}
	return got, ctx.Err()
}

func TestFaultsOfAConnection(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault sdktest.Fault
		got   string
		hangs bool
	}{
		{sdktest.Fault{Step: sdktest.StepSend, Match: []byte("two"), Do: sdktest.FailBefore}, "ONE.", false},
		{sdktest.Fault{Step: sdktest.StepSend, Match: []byte("two"), Do: sdktest.FailAfter}, "ONE.", false},
		{sdktest.Fault{Step: sdktest.StepSend, Match: []byte("two"), Do: sdktest.Hang}, "ONE.", true},
		{sdktest.Fault{Step: sdktest.StepSend, Match: []byte("two"), Do: sdktest.Rubbish}, "ONE.\xff\xff\xff\xffTHREE.", false},
		{sdktest.Fault{Step: sdktest.StepSend, Do: sdktest.Cut, At: 4}, "", false},
		{sdktest.Fault{Step: sdktest.StepReceive, Match: []byte("TWO"), Do: sdktest.FailBefore}, "ONE.", false},
		{sdktest.Fault{Step: sdktest.StepReceive, Match: []byte("TWO"), Do: sdktest.FailAfter}, "ONE.TWO.", false},
		{sdktest.Fault{Step: sdktest.StepReceive, Match: []byte("TWO"), Do: sdktest.Hang}, "ONE.", true},
		{sdktest.Fault{Step: sdktest.StepReceive, Match: []byte("TWO"), Do: sdktest.Rubbish}, "ONE.\xff\xff\xff\xffTHREE.", false},
		{sdktest.Fault{Step: sdktest.StepReceive, Do: sdktest.Cut, At: 6}, "ONE.TW", false},
		// A match that comes in two chunks.
		{sdktest.Fault{Step: sdktest.StepSend, Match: []byte("e.tw"), Do: sdktest.FailBefore}, "ONE.", false},
		{sdktest.Fault{Step: sdktest.StepReceive, Match: []byte("E.TWO.TH"), Do: sdktest.FailBefore}, "ONE.TWO.", false},
		// The second occurrence.
		{sdktest.Fault{Step: sdktest.StepSend, Match: []byte("."), Skip: 1, Do: sdktest.FailBefore}, "ONE.", false},
		{sdktest.Fault{Step: sdktest.StepReceive, Match: []byte("E"), Skip: 2, Do: sdktest.FailBefore}, "ONE.TWO.", false},
	} {
		t.Run(fmt.Sprintf("%s %s %q", c.fault.Step, c.fault.Do, c.fault.Match), func(t *testing.T) {
			t.Parallel()
			eachWay(t, func(t *testing.T, way string) {
				path := listen(t)
				f := sdktest.NewFaults(c.fault)
				env := openFaulty(t, way, f)
				got, err := talk(within(t, c.fault.Do), env, path, "one.", "two.", "three.")
				if c.fault.Do == sdktest.Cut && c.fault.Step == sdktest.StepSend {
					got = "" // the far end may have answered already
				}
				if got != c.got || (err != nil) != c.hangs {
					t.Errorf("got %q, %v; want %q, hangs %t", got, err, c.got, c.hangs)
				}
				if f.Fired() != 1 {
					t.Errorf("the fault hit %d times", f.Fired())
				}
				if got, err := talk(t.Context(), env, path, "one.", "two."); got != "ONE.TWO." || err != nil {
					t.Errorf("the second time: got %q, %v", got, err)
				}
			})
		})
	}
}

func TestFaultsOfADial(t *testing.T) {
	t.Parallel()
	for _, do := range []sdktest.Effect{sdktest.FailBefore, sdktest.FailAfter, sdktest.Hang, sdktest.Rubbish} {
		t.Run(string(do), func(t *testing.T) {
			t.Parallel()
			eachWay(t, func(t *testing.T, way string) {
				path := listen(t)
				env := openFaulty(t, way, sdktest.NewFaults(sdktest.Fault{Step: sdktest.StepDial, Arg: path, Do: do}))
				if got, err := talk(within(t, do), env, path, "one."); err == nil {
					t.Errorf("got %q, want an error", got)
				}
				if got, err := talk(t.Context(), env, path, "one."); got != "ONE." || err != nil {
					t.Errorf("the second time: got %q, %v", got, err)
				}
			})
		})
	}
}

func TestFaultsOfFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault   sdktest.Fault
		content string // of the file after a put
		got     string // by a get
		fails   bool
	}{
		{sdktest.Fault{Step: sdktest.StepPut, Do: sdktest.FailBefore}, "old", "old", true},
		{sdktest.Fault{Step: sdktest.StepPut, Do: sdktest.FailAfter}, "new", "new", true},
		{sdktest.Fault{Step: sdktest.StepPut, Do: sdktest.Hang}, "old", "old", true},
		{sdktest.Fault{Step: sdktest.StepPut, Do: sdktest.Rubbish}, "\xff\xff\xff", "\xff\xff\xff", false},
		{sdktest.Fault{Step: sdktest.StepGet, Do: sdktest.FailBefore}, "new", "", true},
		{sdktest.Fault{Step: sdktest.StepGet, Do: sdktest.FailAfter}, "new", "", true},
		{sdktest.Fault{Step: sdktest.StepGet, Do: sdktest.Hang}, "new", "", true},
		{sdktest.Fault{Step: sdktest.StepGet, Do: sdktest.Rubbish}, "new", "\xff\xff\xff", false},
	} {
		t.Run(fmt.Sprintf("%s %s", c.fault.Step, c.fault.Do), func(t *testing.T) {
			t.Parallel()
			eachWay(t, func(t *testing.T, way string) {
				path := filepath.Join(t.TempDir(), "file")
				if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
					t.Fatal(err)
				}
				files := openFaulty(t, way, sdktest.NewFaults(c.fault)).(sdk.Files)
				effect := func(step sdktest.Step) sdktest.Effect {
					if step != c.fault.Step {
						return ""
					}
					return c.fault.Do
				}
				putErr := files.Put(within(t, effect(sdktest.StepPut)), sdk.PutRequest{Path: path, Content: strings.NewReader("new")})
				content, _ := os.ReadFile(path)
				var got bytes.Buffer
				_, getErr := files.Get(within(t, effect(sdktest.StepGet)), path, &got)
				if string(content) != c.content || got.String() != c.got || (putErr != nil) != (c.fails && c.fault.Step == sdktest.StepPut) || (getErr != nil) != (c.fails && c.fault.Step == sdktest.StepGet) {
					t.Errorf("file %q (%v), got %q (%v); want %q, %q", content, putErr, got.String(), getErr, c.content, c.got)
				}
			})
		})
	}
}

func TestFaultsOfOpenAndClose(t *testing.T) {
	t.Parallel()
	for _, do := range []sdktest.Effect{sdktest.FailBefore, sdktest.FailAfter, sdktest.Hang, sdktest.Rubbish} {
		t.Run(string(do), func(t *testing.T) {
			b := sdktest.Faulty(local.New(), sdktest.Fault{Step: sdktest.StepOpen, Do: do}, sdktest.Fault{Step: sdktest.StepClose, Do: do})
			req := sdk.OpenRequest{ID: "e", Target: "local:"}
			if env, err := b.Open(within(t, do), req); env != nil || (err == nil) != (do == sdktest.Rubbish) {
				t.Errorf("open: got %v, %v", env, err)
			}
			env, err := b.Open(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if err := env.Close(within(t, do)); err == nil {
				t.Error("close: no error")
			}
			if err := env.Close(t.Context()); err != nil {
				t.Errorf("close again: %v", err)
			}
			_, err = env.Exec(t.Context(), sdk.Command{Argv: []string{"true"}}, sdk.IO{})
			wantDelivery(t, err, sdk.ErrClosed, sdk.NotStarted)
		})
	}
}

// Whatever hangs, Close ends it.
func TestCloseEndsWhatHangs(t *testing.T) {
	t.Parallel()
	for _, step := range []sdktest.Step{sdktest.StepExec, sdktest.StepStdin, sdktest.StepStdout, sdktest.StepDial, sdktest.StepSend, sdktest.StepReceive} {
		t.Run(string(step), func(t *testing.T) {
			f := sdktest.NewFaults(sdktest.Fault{Step: step, Do: sdktest.Hang})
			env := openFaulty(t, "here", f)
			ended := make(chan error, 1)
			path := listen(t)
			go func() { // ends with Close
				var err error
				if slices.Contains([]sdktest.Step{sdktest.StepExec, sdktest.StepStdin, sdktest.StepStdout}, step) {
					_, err = echo(context.Background(), env, "one")
				} else {
					_, err = talk(context.Background(), env, path, "one")
				}
				ended <- err
			}()
			for f.Fired() == 0 {
				time.Sleep(time.Millisecond) // no event is told
			}
			if err := env.Close(t.Context()); err != nil {
				t.Errorf("close: %v", err)
			}
			select {
			case err := <-ended:
				t.Logf("it ended: %v", err)
			case <-time.After(10 * time.Second):
				t.Error("it still hangs")
			}
		})
	}
}

// able is a backend whose environments can do what the environment in it can.
type able struct {
	sdk.Backend
	env sdk.Environment
}

func (b able) Open(context.Context, sdk.OpenRequest) (sdk.Environment, error) { return b.env, nil }

func TestAFaultyEnvironmentCanDoWhatItsOwnCan(t *testing.T) {
	type bare struct{ sdk.Environment }
	type dials struct {
		sdk.Environment
		sdk.Dialer
	}
	type files struct {
		sdk.Environment
		sdk.Files
	}
	none := sdk.UnimplementedEnvironment{}
	for _, env := range []sdk.Environment{bare{none}, dials{none, none}, files{none, none}, none} {
		got, err := sdktest.Faulty(able{local.New(), env}).Open(t.Context(), sdk.OpenRequest{ID: "e"})
		if err != nil {
			t.Fatal(err)
		}
		_, wantDials := env.(sdk.Dialer)
		_, wantFiles := env.(sdk.Files)
		_, gotDials := got.(sdk.Dialer)
		_, gotFiles := got.(sdk.Files)
		if gotDials != wantDials || gotFiles != wantFiles {
			t.Errorf("%T: dials %t, moves files %t", env, gotDials, gotFiles)
		}
	}
}

func TestSetWhileInUse(t *testing.T) {
	f := sdktest.NewFaults()
	env := openFaulty(t, "here", f)
	cmd := sdk.Command{Argv: []string{"true"}, InheritEnv: true}
	for i, set := range [][]sdktest.Fault{nil, {{Step: sdktest.StepExec, Do: sdktest.FailBefore, Times: -1}}, nil} {
		f.Set(set...)
		for range 2 {
			if _, err := env.Exec(t.Context(), cmd, sdk.IO{}); (err != nil) != (set != nil) {
				t.Errorf("set %d: error %v", i, err)
			}
		}
	}
	if f.Fired() != 2 {
		t.Errorf("the fault hit %d times, want 2", f.Fired())
	}
}

// A plugin that is started again with the same config goes on where the one before was.
func TestTheLogOutlivesThePlugin(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	config := fmt.Appendf(nil, `{"log": %q, "data": true, "faults": [{"step": "exec", "do": "before", "arg": "cat"}, {"step": "stdin", "do": "after", "match": "b25l"}]}`, log)
	var errs []bool
	for range 2 {
		env, err := sdktest.Faulty(local.New()).Open(t.Context(), sdk.OpenRequest{ID: "e", Target: "local:", Config: config})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, err = echo(t.Context(), env, "one")
			errs = append(errs, err != nil)
		}
		if err := env.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if d := cmp.Diff([]bool{true, true, false, false}, errs); d != "" {
		t.Errorf("which commands failed (-want +got):\n%s", d)
	}

	records, err := sdktest.ReadRecords(log)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range records {
		got = append(got, fmt.Sprintf("%s %d %q %d", r.Step, r.Call, r.Data, r.Fault))
	}
	want := []string{
		`open 1 "" 0`, `exec 2 "" 1`, `exec 3 "" 0`, `stdin 3 "one" 2`, `close 4 "" 0`,
		`open 5 "" 0`, `exec 6 "" 0`, `stdin 6 "one" 0`, `stdout 6 "one" 0`, `exec 7 "" 0`, `stdin 7 "one" 0`, `stdout 7 "one" 0`, `close 8 "" 0`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the log (-want +got):\n%s", d)
	}
	if fi, err := os.Stat(log); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode of the log: %v, %v", fi.Mode(), err)
	}
}

func TestAFaultThatMakesNoSense(t *testing.T) {
	for _, config := range []string{
		`{"faults": [{"step": "walk", "do": "hang"}]}`, `{"faults": [{"step": "exec", "do": "explode"}]}`, `{"faults": [{"step": "exec", "do": "cut"}]}`,
		`{"faults": [{"step": "stdin", "do": "cut", "at": -1}]}`, `{"fault": []}`,
	} {
		_, err := sdktest.Faulty(local.New()).Open(t.Context(), sdk.OpenRequest{ID: "e", Target: "local:", Config: []byte(config)})
		wantDelivery(t, err, sdk.ErrInvalid, sdk.NotStarted)
	}
	_, err := sdktest.Faulty(local.New(), sdktest.Fault{}).Open(t.Context(), sdk.OpenRequest{ID: "e", Target: "local:"})
	wantDelivery(t, err, sdk.ErrInvalid, sdk.NotStarted)
}

// How a program takes it that the connection breaks when a request has been read and not been answered.
func ExampleFaulty() {
	ctx := context.Background()
	info := sdk.Info{Name: "here", Version: "1.0.0", Capabilities: []sdk.Capability{sdk.CapStdin}}
	backend := sdktest.Faulty(
		sdk.FromRunner(info, sdk.RunnerFunc(run)),
		sdktest.Fault{Step: sdktest.StepStdin, Match: []byte("pay"), Do: sdktest.FailAfter},
	)
	env, err := backend.Open(ctx, sdk.OpenRequest{ID: "e1", Target: "here:"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		status, err := env.Exec(ctx, sdk.Command{Argv: []string{"cat"}, InheritEnv: true}, sdk.IO{Stdin: strings.NewReader("pay\n"), Stdout: os.Stdout})
		if e, ok := errors.AsType[*sdk.Error](err); ok {
			fmt.Println(e.Code, e.Delivery)
			continue
		}
		fmt.Println(status)
	}
	// Output:
	// unavailable may_have_run
	// pay
	// status 0
}
