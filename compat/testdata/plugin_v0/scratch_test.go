package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hermes-framework/hermes/plugin"
)

// TestMain gives every scratch directory of the tests one place, so that none can be left unseen.
func TestMain(m *testing.M) {
	base, err := os.MkdirTemp("", "scratch-test-")
	if err != nil {
		panic(err)
	}
	_ = os.Setenv("TMPDIR", base)
	code := m.Run()
	if left, _ := filepath.Glob(filepath.Join(base, "*")); len(left) > 0 && code == 0 {
		println("left behind:", strings.Join(left, " "))
		code = 1
	}
	_ = os.RemoveAll(base)
	os.Exit(code)
}

func TestKeepsThePromisesOfABackend(t *testing.T) {
	for _, err := range plugin.CheckBackend(t.Context(), newBackend(), "scratch:check") {
		t.Error(err)
	}
}

// open opens an environment over the wire.
func open(t *testing.T, req plugin.OpenRequest) (plugin.Environment, error) {
	t.Helper()
	client, stop, err := plugin.Pipe(t.Context(), newBackend())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return client.Open(t.Context(), req)
}

// output runs a shell command that must succeed.
func output(t *testing.T, env plugin.Environment, script string) string {
	t.Helper()
	var out, diag bytes.Buffer
	status, err := env.Exec(t.Context(), plugin.Command{Argv: []string{"sh", "-c", script}, InheritEnv: true}, plugin.IO{Stdout: &out, Stderr: &diag})
	if err != nil || status.Code != 0 {
		t.Fatalf("%s: %+v, %v, %s", script, status, err, diag.String())
	}
	return strings.TrimSpace(out.String())
}

func TestDirectoryLivesAsLongAsTheEnvironment(t *testing.T) {
	base := filepath.Join(t.TempDir(), "it's here") // a name that needs quoting
	if err := os.Mkdir(base, 0o700); err != nil {
		t.Fatal(err)
	}
	env, err := open(t, plugin.OpenRequest{ID: "a", Target: "scratch:x", Config: []byte(`{"base": "` + base + `", "setup": [["touch", "ready"]]}`)})
	if err != nil {
		t.Fatal(err)
	}
	dir := output(t, env, "pwd")
	if filepath.Dir(dir) != base || output(t, env, "cd; pwd; ls") != dir+"\nready" {
		t.Errorf("commands run in %s, want a directory in %s that setup was run in", dir, base)
	}
	output(t, env, "mkdir -p a/b && echo 1 >a/b/c")
	if err := env.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: %v, want the directory to be gone", err)
	}
}

func TestFailuresSayWhatTheyAre(t *testing.T) {
	for _, c := range []struct {
		target, config string
		want           error
		delivery       plugin.Delivery
		text           string
	}{
		{"scratch:a/b", "", plugin.ErrInvalid, plugin.NotStarted, "scratch:NAME"},
		{"local:", "", plugin.ErrInvalid, plugin.NotStarted, "scratch:NAME"},
		{"scratch:", `{"bse": ""}`, plugin.ErrInvalid, plugin.NotStarted, `unknown field "bse"`},
		{"scratch:", `{"base": "/no/such/place"}`, plugin.ErrNotFound, plugin.NotStarted, "/no/such/place"},
		{"scratch:", `{"setup": [["sh", "-c", "echo 'no luck'; exit 3"]]}`, plugin.ErrInvalid, plugin.MayHaveRun, "exit status 3: no luck"},
		{"scratch:", `{"setup": [["no such program", "a b"]]}`, plugin.ErrNotFound, plugin.NotStarted, "setup: 'no such program' 'a b'"},
	} {
		_, err := open(t, plugin.OpenRequest{ID: "a", Target: c.target, Config: []byte(c.config)})
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || plugin.AsError(err, plugin.Ran).Delivery != c.delivery {
			t.Errorf("%s %s: got %v (%s), want %v (%s) with %q", c.target, c.config, err, plugin.AsError(err, plugin.Ran).Delivery, c.want, c.delivery, c.text)
		}
	}
}

// TestCloseEndsWhatRuns: a command that ignores the polite signal ends too, and with its children.
func TestCloseEndsWhatRuns(t *testing.T) {
	b := newBackend()
	env, err := b.Open(t.Context(), plugin.OpenRequest{ID: "a", Target: "scratch:"})
	if err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		cmd := plugin.Command{Argv: []string{"sh", "-c", "trap '' TERM; echo; sleep 60; :"}, InheritEnv: true}
		_, err := env.Exec(context.WithoutCancel(t.Context()), cmd, plugin.IO{Stdout: closeOnWrite(started)})
		ended <- err
	}()
	<-started
	if err := env.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, plugin.ErrClosed) || plugin.AsError(err, plugin.NotStarted).Delivery != plugin.Ran {
		t.Errorf("the command ended with %v", err)
	}
	if _, err := env.Exec(t.Context(), plugin.Command{Argv: []string{"true"}}, plugin.IO{}); !errors.Is(err, plugin.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

type closeOnWrite chan struct{}

func (c closeOnWrite) Write(p []byte) (int, error) {
	close(c)
	return len(p), nil
}
