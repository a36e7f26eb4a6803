package plugin_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/hermes-framework/hermes/plugin"
)

// mortal is the backend of the tests of this file, in a process of its own. Its commands are "die", which kills the plugin before
// anything is said, and "wait", which starts and never ends. A Dial gives a connection on which nothing comes.
type mortal struct{}

func (mortal) Info(context.Context) (plugin.Info, error) {
	return plugin.Info{Name: "mortal", Version: "1"}, nil
}

func (mortal) Open(context.Context, plugin.OpenRequest) (plugin.Environment, error) {
	return mortalEnvironment{}, nil
}

type mortalEnvironment struct {
	plugin.UnimplementedEnvironment
}

func (mortalEnvironment) Exec(ctx context.Context, cmd plugin.Command, stdio plugin.IO) (plugin.ExitStatus, error) {
	if cmd.Argv[0] == "die" {
		killProcess(os.Getpid())
	}
	stdio.Started()
	<-ctx.Done()
	return plugin.ExitStatus{}, context.Cause(ctx)
}

func (mortalEnvironment) Dial(context.Context, plugin.DialRequest) (plugin.Endpoint, error) {
	near, _ := net.Pipe()
	return plugin.Endpoint{Conn: near}, nil
}

// launchMortal starts the plugin; kill is SIGKILL.
func launchMortal(t *testing.T) (client *plugin.Client, env plugin.Environment, kill func()) {
	t.Helper()
	host := dispense{}.client(t, t.TempDir(), false, "HERMES_TEST_SERVE=mortal")
	t.Cleanup(host.Kill)
	protocol, err := host.Client()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := protocol.Dispense(plugin.PluginName)
	if err != nil {
		t.Fatal(err)
	}
	client = raw.(*plugin.Client)
	env, err = client.Open(t.Context(), plugin.OpenRequest{ID: "a"})
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
func wantLoss(t *testing.T, what string, err error, code plugin.Code, delivery plugin.Delivery) {
	t.Helper()
	e, ok := errors.AsType[*plugin.Error](err)
	if !ok || e.Code != code || e.Delivery != delivery {
		t.Errorf("%s: got %T %v (%+v), want %s, %s", what, err, err, e, code, delivery)
	}
}

func TestPluginDiesBeforeItAnswers(t *testing.T) {
	_, env, _ := launchMortal(t)
	_, err := env.Exec(t.Context(), plugin.Command{Argv: []string{"die"}}, plugin.IO{Stdout: io.Discard})
	wantLoss(t, "exec", err, plugin.CodeCrashed, plugin.MayHaveRun)
}

func TestPluginDiesWhileItWorks(t *testing.T) {
	_, env, kill := launchMortal(t)
	end, err := env.(plugin.Dialer).Dial(t.Context(), plugin.DialRequest{Path: "/x", Stream: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = env.Exec(t.Context(), plugin.Command{Argv: []string{"wait"}}, plugin.IO{Stdout: io.Discard, Started: kill})
	wantLoss(t, "exec", err, plugin.CodeCrashed, plugin.MayHaveRun)

	// What broke off must not look like the end.
	_, err = end.Conn.Read(make([]byte, 1))
	wantLoss(t, "read", err, plugin.CodeCrashed, plugin.Ran)
	_ = end.Conn.Close()
}

func TestPluginIsDeadAlready(t *testing.T) {
	client, env, kill := launchMortal(t)
	kill()
	for client.Health(t.Context()) == nil {
		t.Log("the connection is not known to be gone yet")
	}
	_, err := env.Exec(t.Context(), plugin.Command{Argv: []string{"wait"}}, plugin.IO{})
	wantLoss(t, "exec", err, plugin.CodeUnavailable, plugin.NotStarted)
	_, err = env.(plugin.Dialer).Dial(t.Context(), plugin.DialRequest{Path: "/x"})
	wantLoss(t, "dial", err, plugin.CodeUnavailable, plugin.NotStarted)
	err = env.(plugin.Files).Put(t.Context(), plugin.PutRequest{Path: "/x", Content: strings.NewReader("x")})
	wantLoss(t, "put", err, plugin.CodeUnavailable, plugin.NotStarted)
	_, err = env.(plugin.Files).Get(t.Context(), "/x", io.Discard)
	if !errors.Is(err, plugin.ErrCrashed) && !errors.Is(err, plugin.ErrUnavailable) {
		t.Errorf("get: %v", err)
	}
}
