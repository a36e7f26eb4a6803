package sdk_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/hermes-framework/hermes/plugin/sdk"
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
		sdk.Serve(mortal{})
	default:
		sdk.Serve(sdk.FromRunner(runnerInfo, sdk.RunnerFunc(dump)))
	}
}

var runnerInfo = sdk.Info{
	Name:         "runner",
	Version:      "1.2.3",
	Description:  "for tests",
	Capabilities: []sdk.Capability{sdk.CapStdin, sdk.CapTTY},
}

// dump prints the environment of its own process, whatever the command.
func dump(context.Context, sdk.Command, []byte) (sdk.RunResult, error) {
	return sdk.RunResult{Stdout: []byte(strings.Join(os.Environ(), "\n"))}, nil
}

// fake is a backend whose environment does what a test says.
type fake struct {
	info  sdk.Info
	open  func(context.Context, sdk.OpenRequest) error
	exec  func(context.Context, sdk.Command, sdk.IO) (sdk.ExitStatus, error)
	close func(context.Context) error
}

func (f *fake) Info(context.Context) (sdk.Info, error) { return f.info, nil }

func (f *fake) Open(ctx context.Context, req sdk.OpenRequest) (sdk.Environment, error) {
	if f.open != nil {
		if err := f.open(ctx, req); err != nil {
			return nil, err
		}
	}
	return fakeEnvironment{f: f}, nil
}

type fakeEnvironment struct {
	sdk.UnimplementedEnvironment
	f *fake
}

func (e fakeEnvironment) Exec(ctx context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
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
func connect(t testing.TB, b sdk.Backend) *sdk.Client {
	t.Helper()
	client, stop, err := sdk.Pipe(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
	return client
}

// environment opens b's environment over the wire.
func environment(t testing.TB, b sdk.Backend) sdk.Environment {
	t.Helper()
	env, err := connect(t, b).Open(t.Context(), sdk.OpenRequest{ID: "test", Target: "fake:"})
	if err != nil {
		t.Fatal(err)
	}
	return env
}
