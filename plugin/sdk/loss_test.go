package sdk_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// mortal is the backend of the tests of this file, in a process of its own. Its commands are "die", which kills the plugin before
// anything is said, and "wait", which starts and never ends. A Dial gives a connection on which nothing comes.
type mortal struct{}

func (mortal) Info(context.Context) (sdk.Info, error) {
	return sdk.Info{Name: "mortal", Version: "1"}, nil
}

func (mortal) Open(context.Context, sdk.OpenRequest) (sdk.Environment, error) {
	return mortalEnvironment{}, nil
}

type mortalEnvironment struct {
	sdk.UnimplementedEnvironment
}

func (mortalEnvironment) Exec(ctx context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	if cmd.Argv[0] == "die" {
		killProcess(os.Getpid())
	}
	stdio.Started()
	<-ctx.Done()
	return sdk.ExitStatus{}, context.Cause(ctx)
}

func (mortalEnvironment) Dial(context.Context, sdk.DialRequest) (sdk.Endpoint, error) {
	near, _ := net.Pipe()
	return sdk.Endpoint{Conn: near}, nil
}

// launchMortal starts the plugin; kill is SIGKILL.
func launchMortal(t *testing.T) (client *sdk.Client, env sdk.Environment, kill func()) {
	t.Helper()
	host := dispense{}.client(t, t.TempDir(), false, "HERMES_TEST_SERVE=mortal")
	t.Cleanup(host.Kill)
	protocol, err := host.Client()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := protocol.Dispense(sdk.PluginName)
	if err != nil {
		t.Fatal(err)
	}
	client = raw.(*sdk.Client)
	env, err = client.Open(t.Context(), sdk.OpenRequest{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	return client, env, func() { killProcess(host.ReattachConfig().Pid) }
}

func killProcess(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill()
	}
}

// wantLoss wants an error of the connection, with what it says about the work.
func wantLoss(t *testing.T, what string, err error, code sdk.Code, delivery sdk.Delivery) {
	t.Helper()
	e, ok := errors.AsType[*sdk.Error](err)
	if !ok || e.Code != code || e.Delivery != delivery {
		t.Errorf("%s: got %T %v (%+v), want %s, %s", what, err, err, e, code, delivery)
	}
}

func TestPluginDiesBeforeItAnswers(t *testing.T) {
	_, env, _ := launchMortal(t)
	_, err := env.Exec(t.Context(), sdk.Command{Argv: []string{"die"}}, sdk.IO{Stdout: io.Discard})
	wantLoss(t, "exec", err, sdk.CodeCrashed, sdk.MayHaveRun)
}

func TestPluginDiesWhileItWorks(t *testing.T) {
	_, env, kill := launchMortal(t)
	end, err := env.(sdk.Dialer).Dial(t.Context(), sdk.DialRequest{Path: "/x", Stream: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = env.Exec(t.Context(), sdk.Command{Argv: []string{"wait"}}, sdk.IO{Stdout: io.Discard, Started: kill})
	wantLoss(t, "exec", err, sdk.CodeCrashed, sdk.MayHaveRun)

	// What broke off must not look like the end.
	_, err = end.Conn.Read(make([]byte, 1))
	wantLoss(t, "read", err, sdk.CodeCrashed, sdk.Ran)
	_ = end.Conn.Close()
}

func TestPluginIsDeadAlready(t *testing.T) {
	client, env, kill := launchMortal(t)
	kill()
	for client.Health(t.Context()) == nil {
		t.Log("the connection is not known to be gone yet")
	}
	_, err := env.Exec(t.Context(), sdk.Command{Argv: []string{"wait"}}, sdk.IO{})
	wantLoss(t, "exec", err, sdk.CodeUnavailable, sdk.NotStarted)
	_, err = env.(sdk.Dialer).Dial(t.Context(), sdk.DialRequest{Path: "/x"})
	wantLoss(t, "dial", err, sdk.CodeUnavailable, sdk.NotStarted)
	err = env.(sdk.Files).Put(t.Context(), sdk.PutRequest{Path: "/x", Content: strings.NewReader("x")})
	wantLoss(t, "put", err, sdk.CodeUnavailable, sdk.NotStarted)
	_, err = env.(sdk.Files).Get(t.Context(), "/x", io.Discard)
	if !errors.Is(err, sdk.ErrCrashed) && !errors.Is(err, sdk.ErrUnavailable) {
		t.Errorf("get: %v", err)
	}
}
