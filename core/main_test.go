package core_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugins/local"
)

// backendVar makes the test binary serve a backend instead of running tests.
const backendVar = "HERMES_TEST_SERVE"

func TestMain(m *testing.M) {
	sdk.ServeBuiltin(local.New())
	if name := os.Getenv(backendVar); name != "" {
		serveBackend(name)
		return
	}
	makeHome()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if left := leftovers(); len(left) > 0 && code == 0 {
			fmt.Fprintf(os.Stderr, "processes left behind:\n%s\n", strings.Join(left, "\n"))
			code = 1
		}
		_ = os.RemoveAll(homeDir)
		os.Exit(code)
	}))
}

func serveBackend(name string) {
	switch name {
	case "runner":
		sdk.Serve(newRunner())
	case "hostless":
		sdk.Serve(newHostless())
	case "relay":
		sdk.Serve(noSocket{local.New()})
	case "local-plain":
		sdk.Serve(local.New())
	case "engine":
		engineProgram()
	default:
		if faulty, ok := faultyBackends[name]; ok {
			sdk.Serve(faulty())
		}
	}
}

// homeDir is the home of everything the tests of this package start, so that leftovers can be told from other people's.
var homeDir string

func makeHome() {
	dir, err := os.MkdirTemp("", "hermes-core-test-")
	if err != nil {
		panic(err)
	}
	for _, v := range []string{"HOME", "XDG_RUNTIME_DIR"} {
		_ = os.Setenv(v, filepath.Join(dir, strings.ToLower(v)))
		if err := os.Mkdir(os.Getenv(v), 0o700); err != nil {
			panic(err)
		}
	}
	_ = os.Unsetenv("XDG_CACHE_HOME")
	homeDir = dir
}

// leftovers lists the processes whose environment names homeDir, after giving them the time to leave.
func leftovers() []string {
	deadline := time.Now().Add(15 * time.Second)
	for {
		left := processesOf("HOME=" + homeDir)
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(50 * time.Millisecond) // processes of others: there is no event to wait for
	}
}

func processesOf(mark string) []string {
	var out []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if filepath.Base(dir) == strconv.Itoa(os.Getpid()) {
			continue
		}
		env, _ := os.ReadFile(dir + "/environ")
		if bytes.Contains(env, []byte(mark)) {
			cmd, _ := os.ReadFile(dir + "/cmdline")
			out = append(out, filepath.Base(dir)+" "+string(bytes.ReplaceAll(cmd[:min(len(cmd), 120)], []byte{0}, []byte(" "))))
		}
	}
	return out
}

// builtin is the test binary as a backend.
func builtin(name string) core.Builtin {
	return core.Builtin{Name: name, Args: []string{"serve"}, Env: []string{backendVar + "=" + name}}
}

// newEngine opens an engine with the local backend and closes it with the test.
func newEngine(t *testing.T, change ...func(*core.Config)) *core.Engine {
	t.Helper()
	cfg := core.Config{Builtin: []core.Builtin{{Name: "local"}, builtin("runner"), builtin("relay")}, StateDir: filepath.Join(t.TempDir(), "state"), Logger: testLogger(t)}
	for _, c := range change {
		c(&cfg)
	}
	e, err := core.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := e.Prune(ctx); err != nil && !errors.Is(err, sdk.ErrClosed) {
			t.Errorf("prune: %v", err)
		}
		if err := e.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

func testLogger(t *testing.T) *slog.Logger {
	if !testing.Verbose() {
		return nil
	}
	return slog.New(slog.NewTextHandler(logWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	fmt.Fprintf(os.Stderr, "%s: %s", w.t.Name(), p)
	return len(p), nil
}

// run runs one cell and fails the test if it cannot be run.
func run(t *testing.T, e *core.Engine, req core.Request) cell.Result {
	t.Helper()
	res, err := e.Run(t.Context(), req, nil)
	if ended := (*cell.RunError)(nil); err != nil && !errors.As(err, &ended) {
		t.Fatalf("run %.60q: %v", req.Code, err)
	}
	return res
}

// cell runs Python code in the engine's own kernel.
func runCode(t *testing.T, e *core.Engine, code string) cell.Cell {
	t.Helper()
	return run(t, e, core.Request{Code: code}).Cell
}

func value(c cell.Cell) string {
	if c.Value == nil {
		return ""
	}
	return *c.Value
}

func wantOutcome(t *testing.T, c cell.Cell, want cell.Outcome) {
	t.Helper()
	if c.Outcome != want {
		t.Errorf("outcome %s (%s), want %s; stdout %.200q, stderr %.500q, error %+v", c.Outcome, c.Reason, want, c.Stdout, c.Stderr, c.Error)
	}
}

// alive reports whether a process is there and not a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := string(stat[bytes.LastIndexByte(stat, ')')+1:])
	return !strings.HasPrefix(rest, " Z") && !strings.HasPrefix(rest, " X")
}

// waitGone waits until a process is gone.
// tooLong tells what comes soon, on a busy machine too, from what waits for a sleeping cell of 60 s. How soon is for benchmarks.
const tooLong = 20 * time.Second

func waitGone(t *testing.T, pid int, most time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(most); alive(pid); time.Sleep(5 * time.Millisecond) { // a process of others: no event
		if time.Now().After(deadline) {
			t.Errorf("process %d is still there after %s", pid, most)
			return
		}
	}
}

func parent(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	ppid, err := strconv.Atoi(f[1])
	if err != nil {
		t.Fatal(err)
	}
	return ppid
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("kill %d: %v", pid, err)
	}
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		t.Fatalf("not a number: %q", s)
	}
	return n
}

// noSocket is a backend without the capability socket, so that kernel hosts are reached by a relay.
type noSocket struct{ sdk.Backend }

func (b noSocket) Info(ctx context.Context) (sdk.Info, error) {
	info, err := b.Backend.Info(ctx)
	info.Name = "relay"
	info.Capabilities = []sdk.Capability{sdk.CapStdin, sdk.CapStream, sdk.CapDetach}
	return info, err
}

func (b noSocket) Open(ctx context.Context, req sdk.OpenRequest) (sdk.Environment, error) {
	req.Target = "local:"
	return b.Backend.Open(ctx, req)
}

var _ io.Writer = logWriter{}
