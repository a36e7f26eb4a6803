package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"go.uber.org/goleak"
)

// Most tests here have a control: the same bad plugin under a plain goplugin.NewClient, which shows that the defect is there.

// hostVar makes the test binary a host of the kind it names, for tests in which the host must die.
const hostVar = "LAUNCH_TEST_HOST"

var badplugin string // path of the built testdata/badplugin

var testHandshake = Handshake{CookieKey: "BADPLUGIN_COOKIE", CookieValue: "b1f0", Versions: []int{1}}

func TestMain(m *testing.M) {
	if host := os.Getenv(hostVar); host != "" {
		runHost(host)
		return
	}
	dir, err := os.MkdirTemp("", "launch-test-")
	if err == nil {
		badplugin = filepath.Join(dir, "hermes-backend-bad")
		err = build(badplugin)
		_ = os.Setenv("TMPDIR", dir) // for the sockets of plugins that a control kills
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

func build(path string) error {
	out, err := exec.Command("go", "build", "-o", path, "./testdata/badplugin").CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// shortDir is a directory that socket paths fit into.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "launch-") //nolint:usetesting // a socket path must fit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// badSpec launches the bad plugin in a mode.
func badSpec(t *testing.T, args ...string) Spec {
	t.Helper()
	return Spec{
		Name:         "bad",
		Path:         badplugin,
		Check:        func(string) error { return nil },
		Args:         args,
		RuntimeDir:   shortDir(t),
		Handshake:    testHandshake,
		StartTimeout: 20 * time.Second, // machines that run tests are busy
	}
}

// start starts spec and, at the end of the test, stops it and checks that nothing is left.
func start(t *testing.T, spec Spec) *Process {
	t.Helper()
	p, err := Start(t.Context(), spec)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Stop: %v", err)
		}
		wantGone(t, p.PID())
		wantEmpty(t, spec.RuntimeDir)
	})
	return p
}

// startFails starts spec, which must fail and leave nothing behind.
func startFails(t *testing.T, spec Spec) *Error {
	t.Helper()
	p, err := Start(t.Context(), spec)
	if err == nil {
		_ = p.Kill()
		t.Fatal("Start succeeded")
	}
	wantEmpty(t, spec.RuntimeDir)
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("Start failed with a %T: %v", err, err)
	}
	t.Logf("error: %v; hint: %s", e, e.Hint)
	return e
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the runtime directory: %v, %v", left, err)
	}
}

func wantGone(t *testing.T, pid int) {
	t.Helper()
	if alive(pid) {
		t.Errorf("process %d is still there", pid)
	}
}

// alive says whether the process is there and no zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return syscall.Kill(pid, 0) == nil && !errors.Is(err, os.ErrNotExist)
	}
	after := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
	return !strings.HasPrefix(after, " Z")
}

// eventually waits until ok, and fails the test if that takes too long.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("in 20 s not seen: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// readPID reads a pid that the bad plugin wrote down, and kills that process at the end of the test.
func readPID(t *testing.T, path string) int {
	t.Helper()
	eventually(t, path, func() bool { return exists(path) })
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	return pid
}

// plainConfig is what a host writes that follows go-plugin's own examples.
func plainConfig(args ...string) *goplugin.ClientConfig {
	return &goplugin.ClientConfig{
		HandshakeConfig: goplugin.HandshakeConfig{
			ProtocolVersion: 1, MagicCookieKey: testHandshake.CookieKey, MagicCookieValue: testHandshake.CookieValue,
		},
		Plugins:          goplugin.PluginSet{pluginKey: connPlugin{}},
		Cmd:              exec.Command(badplugin, args...),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         true,
		StartTimeout:     20 * time.Second,
		Logger:           hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: io.Discard}),
	}
}

// plainStart starts a plain client. Its process is killed at the end of the test, which may be what its Kill waits for.
func plainStart(t *testing.T, config *goplugin.ClientConfig) (*goplugin.Client, goplugin.ClientProtocol) {
	t.Helper()
	client := goplugin.NewClient(config)
	protocol, err := client.Client()
	if err != nil {
		t.Fatalf("control: %v", err)
	}
	pid := config.Cmd.Process.Pid
	t.Cleanup(func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		within(t, 20*time.Second, "control: Kill of a dead plugin", client.Kill)
	})
	return client, protocol
}

// within runs f, which must return in time.
func within(t *testing.T, d time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(d):
		t.Errorf("%s: not back after %s", what, d)
	}
}

// hangs runs f and reports that it has not returned after d. The second result waits until it has.
func hangs(d time.Duration, f func()) (bool, func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
		return false, func() {}
	case <-time.After(d):
		return true, func() { <-done }
	}
}

// logBuffer is a slog sink to look into.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug - 4}))
}
