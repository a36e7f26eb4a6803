package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/plugin"
)

func runHere(ctx context.Context, cmd plugin.Command, stdin []byte) (plugin.RunResult, error) {
	if cmd.Argv[0] == "dump" { // the environment of this process
		return plugin.RunResult{Stdout: []byte(strings.Join(os.Environ(), "\n"))}, nil
	}
	c := exec.CommandContext(ctx, cmd.Argv[0], cmd.Argv[1:]...)
	c.WaitDelay = 250 * time.Millisecond
	c.Env = append([]string{}, cmd.Env...)
	if cmd.InheritEnv {
		c.Env = append([]string{"PATH=" + os.Getenv("PATH")}, cmd.Env...)
	}
	var out, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &out, &stderr
	err := c.Run()
	if ctx.Err() != nil {
		return plugin.RunResult{}, context.Cause(ctx)
	}
	if errors.Is(err, exec.ErrNotFound) {
		return plugin.RunResult{}, plugin.Errorf(plugin.CodeNotFound, plugin.NotStarted, "%s: command not found", cmd.Argv[0])
	}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return plugin.RunResult{}, err
	}
	return plugin.RunResult{Stdout: out.Bytes(), Stderr: stderr.Bytes(), Code: c.ProcessState.ExitCode()}, nil
}

func TestRunnerIsAConformingBackend(t *testing.T) {
	for _, err := range plugin.CheckBackend(t.Context(), plugin.FromRunner(runnerInfo, osRunner{}), "runner:") {
		t.Error(err)
	}
}

func TestRunnerCapabilities(t *testing.T) {
	info, err := connect(t, plugin.FromRunner(runnerInfo, osRunner{})).Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := runnerInfo
	want.Capabilities = []plugin.Capability{plugin.CapStdin, plugin.CapFiles} // tty cannot be had, files come for free
	if diff := cmp.Diff(want, info); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestRunnerPutFromSourceAndErrors(t *testing.T) {
	env := environment(t, plugin.FromRunner(runnerInfo, osRunner{})).(plugin.Files)
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	if err := os.WriteFile(source, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(dir, "it's a target")
	if err := env.Put(t.Context(), plugin.PutRequest{Path: target, Mode: 0o640, Source: source}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(target); err != nil || string(got) != "content" {
		t.Errorf("got %q, %v", got, err)
	}

	put := func(path string) error {
		return env.Put(t.Context(), plugin.PutRequest{Path: path, Content: strings.NewReader("x")})
	}
	if err := put(dir); !errors.Is(err, plugin.ErrConflict) {
		t.Errorf("put over a directory: got %v, want ErrConflict", err)
	}
	if err := put(filepath.Join(dir, "missing", "file")); !errors.Is(err, plugin.ErrNotFound) {
		t.Errorf("put into a missing directory: got %v, want ErrNotFound", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".hermes-put-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
