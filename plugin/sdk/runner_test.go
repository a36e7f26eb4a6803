//go:build unix

package sdk_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugin/sdk/sdktest"
)

func TestRunnerIsAConformingBackend(t *testing.T) {
	sdktest.Run(t, sdk.FromRunner(runnerInfo, here{}), "runner:")
}

func TestRunnerCapabilities(t *testing.T) {
	info, err := connect(t, sdk.FromRunner(runnerInfo, here{})).Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := runnerInfo
	want.Capabilities = []sdk.Capability{sdk.CapStdin, sdk.CapFiles} // tty cannot be had, files come for free
	if diff := cmp.Diff(want, info); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestRunnerPutFromSourceAndErrors(t *testing.T) {
	env := environment(t, sdk.FromRunner(runnerInfo, here{})).(sdk.Files)
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	if err := os.WriteFile(source, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(dir, "it's a target")
	if err := env.Put(t.Context(), sdk.PutRequest{Path: target, Mode: 0o640, Source: source}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(target); err != nil || string(got) != "content" {
		t.Errorf("got %q, %v", got, err)
	}

	put := func(path string) error {
		return env.Put(t.Context(), sdk.PutRequest{Path: path, Content: strings.NewReader("x")})
	}
	if err := put(dir); !errors.Is(err, sdk.ErrConflict) {
		t.Errorf("put over a directory: got %v, want ErrConflict", err)
	}
	if err := put(filepath.Join(dir, "missing", "file")); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("put into a missing directory: got %v, want ErrNotFound", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".hermes-put-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
