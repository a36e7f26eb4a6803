package sdk_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// dispense is go-plugin's view of the backend, on the host's side.
type dispense struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (dispense) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error { return errors.ErrUnsupported }

func (dispense) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, cc *grpc.ClientConn) (any, error) {
	return sdk.NewClient(cc), nil
}

// client starts the test binary as a plugin; env says more than that it is one.
func (dispense) client(t *testing.T, tmp string, mtls bool, env ...string) *goplugin.Client {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "HERMES_TEST_SERVE=1", "TMPDIR="+tmp, "PLUGIN_SECRET=x")
	cmd.Env = append(cmd.Env, env...)
	return goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: goplugin.HandshakeConfig{
			ProtocolVersion:  sdk.ProtocolVersion,
			MagicCookieKey:   sdk.CookieKey,
			MagicCookieValue: sdk.CookieValue,
		},
		Plugins:          goplugin.PluginSet{sdk.PluginName: dispense{}},
		Cmd:              cmd,
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         mtls,
		Logger:           hclog.NewNullLogger(),
		GRPCDialOptions:  sdk.DialOptions(),
	})
}

// TestServeWithGoPluginsOwnHost: the plain library on the host's side, with and without AutoMTLS.
func TestServeWithGoPluginsOwnHost(t *testing.T) {
	for name, mtls := range map[string]bool{"plain": false, "mtls": true} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			host := dispense{}.client(t, tmp, mtls)
			defer host.Kill()
			protocol, err := host.Client()
			if err != nil {
				t.Fatal(err)
			}
			raw, err := protocol.Dispense(sdk.PluginName)
			if err != nil {
				t.Fatal(err)
			}
			client := raw.(*sdk.Client)
			if err := client.Health(t.Context()); err != nil {
				t.Errorf("health: %v", err)
			}
			env, err := client.Open(t.Context(), sdk.OpenRequest{ID: "a"})
			if err != nil {
				t.Fatal(err)
			}
			// The runner of this test hands the plugin's own environment on for this one variable, to see what is in there.
			var out bytes.Buffer
			_, err = env.Exec(t.Context(), sdk.Command{Argv: []string{"dump"}}, sdk.IO{Stdout: &out})
			if err != nil || strings.Contains(out.String(), "PLUGIN_") || strings.Contains(out.String(), sdk.CookieKey) || !strings.Contains(out.String(), "HERMES_TEST_SERVE") {
				t.Errorf("the plugin's environment: %v\n%s", err, out.String())
			}
			if err := client.Shutdown(t.Context()); err != nil {
				t.Errorf("shutdown: %v", err)
			}
			host.Kill()
			if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// serving is a plugin process that was started by hand, as a host would.
type serving struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
	line   string
	tmp    string
}

func serve(t *testing.T) *serving {
	t.Helper()
	s := &serving{tmp: t.TempDir()}
	s.cmd = exec.CommandContext(t.Context(), os.Args[0])
	s.cmd.Env = append(os.Environ(), "HERMES_TEST_SERVE=1", "TMPDIR="+s.tmp, sdk.CookieKey+"="+sdk.CookieValue)
	s.cmd.Stderr = &s.stderr
	var err error
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if s.line, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("no handshake: %v", err)
	}
	return s
}

// wait waits for the process to end by itself.
func (s *serving) wait(t *testing.T) {
	t.Helper()
	timer := time.AfterFunc(10*time.Second, func() {
		t.Error("the plugin did not end")
		_ = s.cmd.Process.Kill()
	})
	defer timer.Stop()
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the plugin ended with %v\n%s", err, s.stderr.String())
	}
	if left, _ := filepath.Glob(filepath.Join(s.tmp, "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestServeEndsWithItsStdin(t *testing.T) {
	s := serve(t)
	if !strings.HasPrefix(s.line, "1|1|unix|") {
		t.Errorf("handshake line is %q", s.line)
	}
	_ = s.stdin.Close()
	s.wait(t)
}

func TestServeEndsAtSIGTERM(t *testing.T) {
	s := serve(t)
	defer func() { _ = s.stdin.Close() }()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.wait(t)
}

func TestServeByHandSaysSo(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "HERMES_TEST_SERVE=1")
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Errorf("got %v, want status 1", err)
	}
	if text := string(out); strings.Count(text, "\n") != 1 || !strings.Contains(text, "is a Hermes backend plugin") {
		t.Errorf("it printed %q", text)
	}
}
