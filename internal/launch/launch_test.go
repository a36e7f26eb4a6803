package launch

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestStartAndStop(t *testing.T) {
	p := start(t, badSpec(t, "ok"))
	if !alive(p.PID()) || p.Version() != 1 {
		t.Errorf("pid %d alive: %v, version %d", p.PID(), alive(p.PID()), p.Version())
	}
	if err := waitReady(t.Context(), p.Conn()); err != nil {
		t.Error(err)
	}
	if pgid, err := syscall.Getpgid(p.PID()); err != nil || pgid != p.PID() {
		t.Errorf("process group %d, %v; want its own, %d", pgid, err, p.PID())
	}
}

func TestSpecServesManyAttempts(t *testing.T) {
	control := goplugin.NewClient(plainConfig("ok"))
	if _, err := control.Start(); err != nil {
		t.Fatal(err)
	}
	control.Kill()
	if _, err := control.Start(); err != nil {
		t.Errorf("control: Start after the plugin's death failed (%v); go-plugin has been mended", err)
	}

	spec := badSpec(t, "ok")
	first := start(t, spec)
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	second := start(t, spec)
	if first.PID() == second.PID() {
		t.Error("the second start gave the first process")
	}
	if err := waitReady(t.Context(), first.Conn()); err == nil {
		t.Error("a dead plugin answers")
	}
}

func TestNoiseBeforeHandshake(t *testing.T) {
	for _, mode := range []string{"noise", "noise-same-line", "noise-long"} {
		t.Run(mode, func(t *testing.T) {
			if _, err := goplugin.NewClient(plainConfig(mode)).Client(); err == nil {
				t.Error("control: started; go-plugin has been mended")
			}

			var log logBuffer
			spec := badSpec(t, mode)
			spec.Logger = log.logger()
			p := start(t, spec)
			if err := p.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := log.String(); !strings.Contains(got, `"level":"WARN","msg":"plugin printed on stdout"`) {
				t.Errorf("log: %s; want a warning with the noise", clip(got, 500))
			}
		})
	}
}

func TestRecordThatPanicsTheLibrary(t *testing.T) {
	out, err := hostCommand(t, "plain-log-types").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "interface conversion") {
		t.Errorf("control: %v\n%s\nwant the host to panic", err, out)
	}

	var log logBuffer
	spec := badSpec(t, "log-types")
	spec.Logger = log.logger()
	p := start(t, spec)
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := log.String(); !strings.Contains(got, `{\"@message\": 1}`) {
		t.Errorf("log: %s; want the line as text", got)
	}
}

func TestRecordsBecomeSlogRecords(t *testing.T) {
	var log logBuffer
	spec := badSpec(t, "log")
	spec.Logger = log.logger()
	p := start(t, spec)
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"level":"WARN","msg":"from the plugin","plugin":"bad","n":"3"`, `plain \\x1b[31mred\\x1b[0m line`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log lacks %s:\n%s", want, log.String())
		}
	}
}

func TestStartErrors(t *testing.T) {
	tests := []struct {
		mode    string
		timeout time.Duration
		phase   Phase
		kind    Kind
		says    []string
	}{
		{mode: "panic", phase: PhaseHandshake, kind: KindCrashed, says: []string{"exit status 2", "boom at start"}},
		{mode: "exit", phase: PhaseHandshake, kind: KindCrashed, says: []string{"exit status 43", "cannot read /etc/badplugin.conf"}},
		{mode: "close-stdout", phase: PhaseHandshake, kind: KindInvalid, says: []string{"closed its stdout without a handshake"}},
		{mode: "silent", timeout: 2 * time.Second, phase: PhaseHandshake, kind: KindTimeout, says: []string{"no handshake came within 2s"}},
		{mode: "mute", timeout: 3 * time.Second, phase: PhaseConnect, kind: KindTimeout, says: []string{"no answer came within 3s"}},
		{mode: "plain", phase: PhaseHandshake, kind: KindIncompatible, says: []string{"no certificate"}},
		{mode: "version", phase: PhaseHandshake, kind: KindIncompatible, says: []string{"version 7", "this program 1"}},
	}
	for _, tt := range tests {
		t.Run(tt.mode, func(t *testing.T) {
			t.Parallel()
			spec := badSpec(t, tt.mode)
			if tt.timeout != 0 {
				spec.StartTimeout = tt.timeout
			}
			e := startFails(t, spec)
			if e.Phase != tt.phase || e.Kind != tt.kind {
				t.Errorf("phase %q, kind %q; want %q, %q", e.Phase, e.Kind, tt.phase, tt.kind)
			}
			for _, want := range append(tt.says, "bad", spec.Path) {
				if !strings.Contains(e.Error(), want) {
					t.Errorf("error %q does not say %q", e, want)
				}
			}
		})
	}
}

func TestStartErrorCarriesTheEvidence(t *testing.T) {
	_, control := goplugin.NewClient(plainConfig("panic")).Client()
	if control == nil || strings.Contains(control.Error(), "boom") {
		t.Errorf("control: %v; want an error that does not know of the panic", control)
	}

	e := startFails(t, badSpec(t, "panic"))
	if e.Exit == nil || e.Exit.Code != 2 || !strings.HasPrefix(e.Exit.Panic, "panic: boom at start\n") || !strings.Contains(e.Exit.Panic, "goroutine ") {
		t.Errorf("exit: %+v; want status 2 and the panic", e.Exit)
	}
	if !strings.Contains(e.Stderr, "about to fail\n") {
		t.Errorf("stderr: %q; want all that it printed", e.Stderr)
	}
}

func TestVersionMismatchNamesBothSides(t *testing.T) {
	control := plainConfig("version")
	control.AutoMTLS = false
	if _, err := goplugin.NewClient(control).Client(); err == nil || strings.Contains(err.Error(), badplugin) {
		t.Errorf("control: %v; want an error without the plugin's path", err)
	}

	e := startFails(t, badSpec(t, "version"))
	if !slices.Equal(e.PluginVersions, []int{7}) || !slices.Equal(e.HostVersions, []int{1}) || !strings.Contains(e.Hint, "upgrade hermes") {
		t.Errorf("versions %v and %v, hint %q", e.PluginVersions, e.HostVersions, e.Hint)
	}

	older := badSpec(t, "ok")
	older.Handshake.Versions = []int{2, 3}
	if e := startFails(t, older); !strings.Contains(e.Error(), "2, 3") || !strings.Contains(e.Hint, "hermes plugin install") {
		t.Errorf("error %q, hint %q; want both sides and the command that helps", e, e.Hint)
	}
}

func TestPanicOfARunningPlugin(t *testing.T) {
	client, protocol := plainStart(t, plainConfig("ok"))
	kill(t, client.ID(), syscall.SIGUSR1)
	eventually(t, "control: the plugin's death", client.Exited)
	if err := protocol.Ping(); err == nil || strings.Contains(err.Error(), "boom") {
		t.Errorf("control: %v; want an error that does not know of the panic", err)
	}

	p := start(t, badSpec(t, "ok"))
	_ = syscall.Kill(p.PID(), syscall.SIGUSR1)
	exit := p.Exit()
	if exit.Code != 2 || !strings.HasPrefix(exit.Panic, "panic: boom while serving\n") || exit.Killed {
		t.Errorf("exit: %+v; want status 2 and the panic", exit)
	}
}

func TestExitIsTyped(t *testing.T) {
	p := start(t, badSpec(t, "ok"))
	_ = syscall.Kill(p.PID(), syscall.SIGUSR2)
	if e := p.Exit(); e.Code != 3 || e.Signal != "" || e.Killed || e.OutOfMemory {
		t.Errorf("exit status 3 is %+v", e)
	}

	p = start(t, badSpec(t, "ok"))
	_ = syscall.Kill(p.PID(), syscall.SIGKILL)
	if e := p.Exit(); e.Code != -1 || e.Signal != "KILL" || e.Killed || e.OutOfMemory {
		t.Errorf("death by somebody else's KILL is %+v", e)
	}

	p = start(t, badSpec(t, "ok"))
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if e := p.Exit(); !e.Killed || e.Signal != "KILL" {
		t.Errorf("death by our KILL is %+v", e)
	}
}

func TestOutOfMemoryIsGuessed(t *testing.T) {
	shot := exec.Command("sh", "-c", "kill -9 $$")
	_ = shot.Run()
	kills := int64(7)
	c := newChild(Spec{}, nil, "")
	c.ooms = func() int64 { return kills }
	c.oomsStart = kills
	if e := c.describe(shot.ProcessState, nil); e.OutOfMemory || e.Signal != "KILL" {
		t.Errorf("a KILL while the kernel had memory: %+v", e)
	}
	kills++
	if e := c.describe(shot.ProcessState, nil); !e.OutOfMemory || !strings.Contains(e.String(), "memory") {
		t.Errorf("a KILL while the kernel killed for want of memory: %+v", e)
	}
}

func TestOutputIsAlwaysDrained(t *testing.T) {
	t.Parallel()
	control := filepath.Join(t.TempDir(), "written")
	config := plainConfig("chatty", control)
	plainStart(t, config)
	if stuck, _ := hangs(2*time.Second, func() { waitFor(t.Context(), control) }); !stuck {
		t.Error("control: the plugin got rid of its long lines; go-plugin has been mended")
	}

	written := filepath.Join(t.TempDir(), "written")
	sink := &stuckHandler{release: make(chan struct{})}
	spec := badSpec(t, "chatty", written)
	spec.Logger = slog.New(sink)
	p := start(t, spec)
	eventually(t, "8 MiB of output, read while the log hangs", func() bool { return exists(written) })

	began := time.Now()
	if err := p.Stop(t.Context()); err != nil || time.Since(began) > 3*time.Second {
		t.Errorf("Stop with a log that hangs: %v after %s", err, time.Since(began))
	}
	close(sink.release)
	<-p.child.log.idle
}

// stuckHandler is a log whose reader has gone to lunch.
type stuckHandler struct{ release chan struct{} }

func (*stuckHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *stuckHandler) Handle(context.Context, slog.Record) error {
	<-h.release
	return nil
}

func (h *stuckHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *stuckHandler) WithGroup(string) slog.Handler      { return h }

func TestEnvironment(t *testing.T) {
	t.Setenv("LAUNCH_TEST_SECRET", "s3cret")
	t.Setenv("LAUNCH_TEST_BOTH", "host")
	t.Setenv("LC_ALL", "C.UTF-8")

	dump := filepath.Join(t.TempDir(), "env")
	config := plainConfig("env", dump)
	config.Cmd.Env = []string{"LAUNCH_TEST_BOTH=plugin"}
	plainStart(t, config)
	env := readEnv(t, dump)
	if !slices.Contains(env, "LAUNCH_TEST_SECRET=s3cret") || !slices.Contains(env, "LAUNCH_TEST_BOTH=host") {
		t.Error("control: the host's environment is neither passed on nor stronger; go-plugin has been mended")
	}

	dump = filepath.Join(t.TempDir(), "env")
	spec := badSpec(t, "env", dump)
	spec.Env = []string{"LAUNCH_TEST_BOTH=first", "LAUNCH_TEST_BOTH=plugin", "TZ=Asia/Tokyo", "malformed"}
	start(t, spec)
	env = readEnv(t, dump)
	for _, want := range []string{"LAUNCH_TEST_BOTH=plugin", "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")} {
		if !slices.Contains(env, want) {
			t.Errorf("the plugin's environment lacks %q", want)
		}
	}
	names := make(map[string]int)
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		names[name]++
	}
	for name, n := range names {
		if n > 1 || name == "LAUNCH_TEST_SECRET" {
			t.Errorf("%s is there %d times", name, n)
		}
	}
}

func readEnv(t *testing.T, path string) []string {
	t.Helper()
	eventually(t, path, func() bool { return exists(path) })
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(b), "\n")
}

func TestOnlyTheHostIsServed(t *testing.T) {
	p := start(t, badSpec(t, "ok"))
	sockets, err := filepath.Glob(filepath.Join(p.RunDir(), "plugin[0-9]*"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("sockets: %v, %v", sockets, err)
	}
	stranger, err := grpc.NewClient("passthrough:///stranger", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", sockets[0])
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close() }()
	if err := waitReady(t.Context(), stranger); err == nil {
		t.Error("a stranger without a certificate got an answer")
	}
}

func TestLargeMessagesFromThePlugin(t *testing.T) {
	// The plugin's side is the SDK's affair: go-plugin's own server factory, which the bad plugin uses, refuses 5 MiB.
	p := start(t, badSpec(t, "ok"))
	_, err := grpc_health_v1.NewHealthClient(p.Conn()).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", 5<<20)})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "4194304") {
		t.Errorf("control: 5 MiB to the default server: %v; want its refusal", err)
	}
	_, err = grpc_health_v1.NewHealthClient(p.Conn()).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", MaxMessage)})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "16777216") {
		t.Errorf("more than 16 MiB: %v; want the host's refusal", err)
	}
}

func TestRuntimeDirectoryOfAnyLength(t *testing.T) {
	for _, n := range []int{40, 60, 77, 78, 108, 200} {
		dir := shortDir(t)
		dir = filepath.Join(dir, strings.Repeat("d", n-len(dir)-1))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		spec := badSpec(t, "ok")
		spec.RuntimeDir = dir
		p := start(t, spec)
		if inside := strings.HasPrefix(p.RunDir(), dir); inside != (n <= 77) {
			t.Errorf("%d bytes: run directory %s", n, p.RunDir())
		}
	}
}

func TestUnusableRuntimeDirectoryFallsBack(t *testing.T) {
	spec := badSpec(t, "ok")
	spec.RuntimeDir = "/nonexistent"
	p, err := Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(p.RunDir(), fallbackBase+"/"+fallbackPrefix) {
		t.Errorf("run directory %s", p.RunDir())
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if exists(p.RunDir()) {
		t.Errorf("%s is left", p.RunDir())
	}
}

func TestStartIsAbandonedWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := time.AfterFunc(200*time.Millisecond, func() { cancel(errors.New("no longer wanted")) })
	defer stop.Stop()
	spec := badSpec(t, "silent")
	began := time.Now()
	_, err := Start(ctx, spec)
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != KindCanceled || !strings.Contains(e.Error(), "no longer wanted") || time.Since(began) > 10*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
	wantEmpty(t, spec.RuntimeDir)
}

func BenchmarkStart(b *testing.B) {
	dir, err := os.MkdirTemp("/tmp", "launch-") //nolint:usetesting // a socket path must fit
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	spec := Spec{
		Path: badplugin, Check: func(string) error { return nil }, Args: []string{"ok"}, RuntimeDir: dir, Handshake: testHandshake,
	}
	for _, trusted := range []bool{true, false} {
		spec.Trusted = trusted
		b.Run(map[bool]string{true: "in-place", false: "copied"}[trusted], func(b *testing.B) {
			for b.Loop() {
				p, err := Start(b.Context(), spec)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				_ = p.Kill()
				b.StartTimer()
			}
		})
	}
}
