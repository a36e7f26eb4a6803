package registry

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

func builtinLocal() []Builtin { return []Builtin{{Name: "local", Args: []string{serveLocal}}} }

func testRegistry(t *testing.T, cfg Config) *Registry {
	t.Helper()
	cfg.RuntimeDir = shortDir(t)
	r := New(cfg)
	t.Cleanup(func() {
		if err := r.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
		if left, err := os.ReadDir(cfg.RuntimeDir); err != nil || len(left) > 0 {
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
	r := testRegistry(t, Config{Builtin: builtinLocal()})

	b, err := r.Backend(t.Context(), "local")
	if err != nil {
		t.Fatal(err)
	}
	env, err := b.Open(t.Context(), sdk.OpenRequest{ID: "e1", Target: "local:"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	st, err := env.Exec(t.Context(), sdk.Command{Argv: []string{"sh", "-c", "echo hello; exit 3"}, InheritEnv: true}, sdk.IO{Stdout: &out})
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
		r := New(Config{Builtin: builtinLocal(), RuntimeDir: dir})
		if _, err := r.Backend(b.Context(), "local"); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := r.Close(b.Context()); err != nil {
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
		r := New(Config{Builtin: builtinLocal(), RuntimeDir: dir})
		if _, err := r.Backend(b.Context(), "local"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := r.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
