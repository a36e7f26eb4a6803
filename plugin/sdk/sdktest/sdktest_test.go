//go:build unix

package sdktest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugin/sdk/sdktest"
	"github.com/hermes-framework/hermes/plugins/local"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/hermes-framework/hermes/plugins/local.makeProcesses"), // these live as long as the program
		goleak.IgnoreTopFunction("github.com/hermes-framework/hermes/plugins/local.reapOrphans"),
	)
}

func TestAGoodBackend(t *testing.T) { sdktest.Run(t, local.New(), "local:") }

// bent is the local backend with one thing wrong.
type bent struct {
	sdk.Backend

	info  func(*sdk.Info)
	open  func() error
	exec  func(*sdk.Command, *sdk.IO)
	ended func(*sdk.ExitStatus) error
	put   func(*sdk.PutRequest)
	close func() error
}

func (b *bent) Info(ctx context.Context) (sdk.Info, error) {
	info, err := b.Backend.Info(ctx)
	b.info(&info)
	return info, err
}

func (b *bent) Open(ctx context.Context, req sdk.OpenRequest) (sdk.Environment, error) {
	if err := b.open(); err != nil {
		return nil, err
	}
	env, err := b.Backend.Open(ctx, req)
	if err != nil {
		return nil, err
	}
	return &bentEnvironment{env, env.(sdk.Files), b}, nil
}

type bentEnvironment struct {
	sdk.Environment
	sdk.Files
	b *bent
}

func (e *bentEnvironment) Exec(ctx context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	e.b.exec(&cmd, &stdio)
	status, err := e.Environment.Exec(ctx, cmd, stdio)
	if err == nil {
		err = e.b.ended(&status)
	}
	return status, err
}

func (e *bentEnvironment) Put(ctx context.Context, req sdk.PutRequest) error {
	e.b.put(&req)
	return e.Files.Put(ctx, req)
}

func (e *bentEnvironment) Close(ctx context.Context) error {
	return errors.Join(e.Environment.Close(ctx), e.b.close())
}

// instead has another command run than one that contains the word.
func instead(word string, argv ...string) func(*sdk.Command, *sdk.IO) {
	return func(c *sdk.Command, _ *sdk.IO) {
		if strings.Contains(strings.Join(c.Argv, " "), word) {
			c.Argv = argv
		}
	}
}

// TestABrokenPromiseIsFound, each one, by its name.
func TestABrokenPromiseIsFound(t *testing.T) {
	oops := errors.New("oops")
	for promise, bend := range map[string]func(*bent){
		"info":        func(b *bent) { b.info = func(i *sdk.Info) { i.Name = "My Backend" } },
		"open":        func(b *bent) { b.open = func() error { return oops } },
		"exit status": func(b *bent) { b.ended = func(s *sdk.ExitStatus) error { return failed(s.Code != 0) } },
		"exact arguments": func(b *bent) {
			b.exec = func(c *sdk.Command, _ *sdk.IO) {
				c.Argv = slices.DeleteFunc(c.Argv, func(s string) bool { return s == "" })
			}
		},
		"exact environment": func(b *bent) { b.exec = func(c *sdk.Command, _ *sdk.IO) { c.InheritEnv = true } },
		"no stdin":          func(b *bent) { b.exec = func(_ *sdk.Command, s *sdk.IO) { s.Stdin = strings.NewReader("something") } },
		"working directory": func(b *bent) { b.exec = func(c *sdk.Command, _ *sdk.IO) { c.Dir = "/tmp" } },
		"missing program":   func(b *bent) { b.exec = instead("hermes-no-such-program", "false") },
		"cancel":            func(b *bent) { b.exec = instead("sleep 60", "true") },
		"capability stdin":  func(b *bent) { b.exec = func(_ *sdk.Command, s *sdk.IO) { s.Stdin = nil } },
		"capability stream": func(b *bent) { b.exec = instead("echo first", "true") },
		"capability signal": func(b *bent) { b.ended = func(s *sdk.ExitStatus) error { return failed(s.Code == 7) } },
		"capability files":  func(b *bent) { b.put = func(r *sdk.PutRequest) { r.Mode = 0o777 } },
		"close":             func(b *bent) { b.close = func() error { return oops } },
	} {
		t.Run(promise, func(t *testing.T) {
			t.Parallel()
			b := &bent{
				Backend: local.New(),
				info:    func(*sdk.Info) {}, open: func() error { return nil }, exec: func(*sdk.Command, *sdk.IO) {},
				ended: func(*sdk.ExitStatus) error { return nil }, put: func(*sdk.PutRequest) {}, close: func() error { return nil },
			}
			bend(b)
			errs := sdktest.CheckBackend(t.Context(), b, "local:")
			if !slices.ContainsFunc(errs, func(err error) bool { return strings.HasPrefix(err.Error(), promise+": ") }) {
				t.Errorf("got %v", errs)
			}
		})
	}
}

func failed(is bool) error {
	if is {
		return errors.New("exit status")
	}
	return nil
}

// brokenVar lets a test of the test binary fail: see TestRunFailsByName.
const brokenVar = "SDKTEST_TEST_BROKEN"

func TestBroken(t *testing.T) {
	if os.Getenv(brokenVar) != "" {
		sdktest.Run(t, &refuses{local.New()}, "local:")
	}
}

// refuses is a backend that has no environments.
type refuses struct{ sdk.Backend }

func (refuses) Open(context.Context, sdk.OpenRequest) (sdk.Environment, error) {
	return nil, sdk.Errorf(sdk.CodeUnavailable, sdk.NotStarted, "nobody is at home")
}

// TestRunFailsByName: the promise is named, and nothing is checked that needs it.
func TestRunFailsByName(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBroken$", "-test.v")
	cmd.Env = append(os.Environ(), brokenVar+"=1")
	out, err := cmd.CombinedOutput()
	text := string(out)
	if err == nil || !strings.Contains(text, "--- FAIL: TestBroken") || !strings.Contains(text, "open: nobody is at home") || strings.Contains(text, "exit_status") {
		t.Errorf("got %v\n%s", err, text)
	}
}
