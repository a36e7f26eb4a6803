package core

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/hermes-framework/hermes/plugin"
	"github.com/hermes-framework/hermes/plugins/local"
)

// serveLocal as the only argument makes the test binary a plugin: the built-in backend re-executes the running program.
const serveLocal = "registry-test-serve-local"

func init() {
	if len(os.Args) == 2 && os.Args[1] == serveLocal {
		plugin.Serve(local.New())
		os.Exit(0)
	}
}

func builtinLocal() []Builtin { return []Builtin{{Name: "local", Args: []string{serveLocal}}} }

func testRegistry(t *testing.T, cfg registryConfig) *registry {
	t.Helper()
	cfg.runtimeDir = shortDir(t)
	r := newRegistry(cfg)
	t.Cleanup(func() {
		if err := r.close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
		if left, err := os.ReadDir(cfg.runtimeDir); err != nil || len(left) > 0 {
			t.Errorf("left in the runtime directory: %v, %v", left, err)
		}
	})
	return r
}

// shortDir is a directory that socket paths fit into.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "hermes-test-") //nolint:usetesting // a socket path must fit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestBuiltinBackendRunsACommand(t *testing.T) {
	r := testRegistry(t, registryConfig{builtin: builtinLocal()})

	b, err := r.backend(t.Context(), "local")
	if err != nil {
		t.Fatal(err)
	}
	env, err := b.Open(t.Context(), plugin.OpenRequest{ID: "e1", Target: "local:"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	st, err := env.Exec(t.Context(), plugin.Command{Argv: []string{"sh", "-c", "echo hello; exit 3"}, InheritEnv: true}, plugin.IO{Stdout: &out})
	if err != nil || st.Code != 3 || out.String() != "hello\n" {
		t.Fatalf("Exec = %+v, %v, output %q; want code 3 and hello", st, err, out.String())
	}
	if err := env.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// BenchmarkStart is the cost of a plugin for a program that runs one command: from nothing to its first answer, and back to nothing.
func BenchmarkStart(b *testing.B) {
	dir, err := os.MkdirTemp("/tmp", "hermes-test-") //nolint:usetesting // a socket path must fit
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for b.Loop() {
		r := newRegistry(registryConfig{builtin: builtinLocal(), runtimeDir: dir})
		if _, err := r.backend(b.Context(), "local"); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := r.close(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkStop(b *testing.B) {
	dir, err := os.MkdirTemp("/tmp", "hermes-test-") //nolint:usetesting // a socket path must fit
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for b.Loop() {
		b.StopTimer()
		r := newRegistry(registryConfig{builtin: builtinLocal(), runtimeDir: dir})
		if _, err := r.backend(b.Context(), "local"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := r.close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
