package plugin_test

import (
	"context"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/hermes-framework/hermes/plugin"
)

// TestMain lets the test binary be a plugin too: a host that starts it with these variables gets a served backend.
func TestMain(m *testing.M) {
	switch os.Getenv("HERMES_TEST_SERVE") {
	case "":
		dir, err := os.MkdirTemp("", "pt-")
		if err != nil {
			panic(err)
		}
		_ = os.Setenv("TMPDIR", dir) // for the sockets of plugins that are killed
		goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
			_ = os.RemoveAll(dir)
			os.Exit(code)
		}))
	case "mortal":
		plugin.Serve(mortal{})
	default:
		plugin.Serve(plugin.FromRunner(runnerInfo, osRunner{}))
	}
}

var runnerInfo = plugin.Info{
	Name:         "runner",
	Version:      "1.2.3",
	Description:  "for tests",
	Capabilities: []plugin.Capability{plugin.CapStdin, plugin.CapTTY},
}

// osRunner runs commands on this machine in the simplest way.
type osRunner struct{}

func (osRunner) Run(ctx context.Context, cmd plugin.Command, stdin []byte) (plugin.RunResult, error) {
	return runHere(ctx, cmd, stdin)
}

// fake is a backend whose environment does what a test says.
type fake struct {
	info  plugin.Info
	open  func(context.Context, plugin.OpenRequest) error
	exec  func(context.Context, plugin.Command, plugin.IO) (plugin.ExitStatus, error)
	close func(context.Context) error
}

func (f *fake) Info(context.Context) (plugin.Info, error) { return f.info, nil }

func (f *fake) Open(ctx context.Context, req plugin.OpenRequest) (plugin.Environment, error) {
	if f.open != nil {
		if err := f.open(ctx, req); err != nil {
			return nil, err
		}
	}
	return fakeEnvironment{f: f}, nil
}

type fakeEnvironment struct {
	plugin.UnimplementedEnvironment
	f *fake
}

func (e fakeEnvironment) Exec(ctx context.Context, cmd plugin.Command, stdio plugin.IO) (plugin.ExitStatus, error) {
	if e.f.exec == nil {
		return e.UnimplementedEnvironment.Exec(ctx, cmd, stdio)
	}
	return e.f.exec(ctx, cmd, stdio)
}

func (e fakeEnvironment) Close(ctx context.Context) error {
	if e.f.close == nil {
		return nil
	}
	return e.f.close(ctx)
}

// connect serves b over the wire until the test ends.
func connect(t testing.TB, b plugin.Backend) *plugin.Client {
	t.Helper()
	client, stop, err := plugin.Pipe(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
	return client
}

// environment opens b's environment over the wire.
func environment(t testing.TB, b plugin.Backend) plugin.Environment {
	t.Helper()
	env, err := connect(t, b).Open(t.Context(), plugin.OpenRequest{ID: "test", Target: "fake:"})
	if err != nil {
		t.Fatal(err)
	}
	return env
}
