package hermes_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// step is one command of the README's tour, and what the README says it prints.
type step struct {
	line    int
	command string
	want    string
}

// TestTour runs every command of the README's console blocks, in order and in one
// home directory, and compares what they print. In the README … stands for any text
// within a line; a line of nothing else stands for any number of lines.
func TestTour(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the tour is for a POSIX shell")
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := tour(string(readme))
	if len(steps) < 10 {
		t.Fatalf("README.md has %d commands in console blocks; a tour has more", len(steps))
	}

	env := tourEnvironment(t)
	for _, s := range steps {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, "sh", "-c", s.command)
		cmd.Env, cmd.Dir = env, t.TempDir()
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Errorf("README.md:%d: %s: %v", s.line, s.command, err)
		}
		if !pattern(s.want).Match(out) {
			t.Errorf("README.md:%d: %s\ngot:\n%swant:\n%s", s.line, s.command, out, s.want)
		}
	}
}

// TestProgram builds and runs the README's Go program.
func TestProgram(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(readme), "```go\n")
	source, _, closed := strings.Cut(rest, "```\n")
	if !found || !closed {
		t.Fatal("README.md has no block of Go")
	}

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, filepath.Join(dir, "main.go"))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "42\n" {
		t.Errorf("the README's program: got %q, %v, want 42", out, err)
	}
}

// tour lists the commands of all console blocks.
func tour(readme string) []step {
	var steps []step
	inside := false
	n := 0
	for line := range strings.Lines(readme) {
		n++
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console\n"
		case inside && isCommand:
			steps = append(steps, step{line: n, command: strings.TrimSuffix(command, "\n")})
		case inside && len(steps) > 0:
			steps[len(steps)-1].want += line
		}
	}
	return steps
}

func pattern(want string) *regexp.Regexp {
	re := regexp.QuoteMeta(want)
	re = regexp.MustCompile(`(?m)^…\n`).ReplaceAllString(re, `(?s:.*)`)
	return regexp.MustCompile(`\A` + strings.ReplaceAll(re, "…", `.*`) + `\z`)
}

// tourEnvironment is a fresh home with hermes on PATH. Its sessions are ended when the test ends.
func tourEnvironment(t *testing.T) []string {
	home, bin := t.TempDir(), t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/hermes")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build hermes: %v\n%s", err, out)
	}
	env := append(os.Environ(), "HOME="+home, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	for _, name := range []string{"CONFIG_HOME", "STATE_HOME", "DATA_HOME", "CACHE_HOME", "RUNTIME_DIR"} {
		env = append(env, "XDG_"+name+"=") // empty is unset, by the XDG specification
	}

	t.Cleanup(func() {
		prune := exec.CommandContext(context.Background(), filepath.Join(bin, "hermes"), "kernels", "prune")
		prune.Env = env
		if out, err := prune.CombinedOutput(); err != nil {
			t.Errorf("hermes kernels prune: %v\n%s", err, out)
		}
	})
	return env
}
