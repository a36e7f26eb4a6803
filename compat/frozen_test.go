package compat_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/internal/mustrun"
)

// TestFrozen: what was written for 0.1.0 is what it was then.
func TestFrozen(t *testing.T) {
	want := map[string]string{
		"../api/v0.1.txt":                    "f21e01ec74fca2f39c3b10c0aa2e67ca86a67b66accba5e0db517f07837198a1",
		"testdata/plugin_v0/exec.go":         "e54fdc91cfdfeef19305e445acc6503ba34d16a83d3b555a1f2e54774a04f96b",
		"testdata/plugin_v0/go.mod":          "5fdea57fe41b8823d878ad7de3228b0d5722fe4d27daaf9d77fd53186f6181b4",
		"testdata/plugin_v0/go.sum":          "a4470637b12d01c1016dcb56f3869980a0273b66144256b636f9c7134a5a2a92",
		"testdata/plugin_v0/main.go":         "69471ab4b31b90cbbc3cce0ce54bd01adc059e2646515ae97821a534d528c8b8",
		"testdata/plugin_v0/scratch.go":      "c666f63069a833b617cf988a123ffd6cef7ba1944bad65e918196cdbd729e06f",
		"testdata/plugin_v0/scratch_test.go": "ae16ae325df04591ffb7aecff7a1b486ad7e0fab5897ab619598d24f1b6c5ae2",
	}

	got := map[string]string{}
	for _, root := range []string{"../api/v0.1.txt", "testdata/plugin_v0"} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			got[path] = fmt.Sprintf("%x", sha256.Sum256(data))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("SHA-256 of what is frozen (-want +got):\n%s", d)
	}
}

// TestBase: the base of moves.json is a commit before this one.
func TestBase(t *testing.T) {
	out, said, code := frozen(t, "..", os.Getenv("HERMES_TEST_MUST_RUN"))
	if code == 3 {
		mustrun.Skip(t, "git", "%s", said)
	}
	if code != 0 || len(out) != 40 {
		t.Errorf("scripts/frozen base: exit status %d, stdout %q, stderr %q", code, out, said)
	}
}

// frozen runs scripts/frozen base in the repository in dir.
func frozen(t *testing.T, dir, mustRun string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, "scripts/frozen"), "base")
	cmd.Env = append(environ(), "HERMES_TEST_MUST_RUN="+mustRun)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String()), strings.TrimSpace(said.String()), cmd.ProcessState.ExitCode()
}

// environ is the environment without the variables that a git hook gives to what it runs, which name another repository.
func environ() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GIT_") {
			env = append(env, v)
		}
	}
	return env
}

// TestFindBase: scripts/frozen takes a base only from the history, and tells a history that is cut off from a base that is wrong.
func TestFindBase(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		mustrun.Skip(t, "git", "%v", err)
	}
	whole, base := history(t)
	shallow := t.TempDir()
	git(t, shallow, "clone", "-q", "--depth=1", "file://"+whole, ".")
	wrong := strings.Repeat("0", 40)

	for _, tt := range []struct {
		name    string
		make    func(t *testing.T) string // the repository
		mustRun string
		code    int
		stdout  string
		stderr  string
	}{
		{"whole", func(*testing.T) string { return whole }, "git", 0, base, ""},
		{"shallow", func(*testing.T) string { return shallow }, "python", 3, "", "git: the history here does not reach back to commit " + base},
		{"shallow, but must run", func(*testing.T) string { return shallow }, "python,git", 1, "", "git: the history here does not reach back to commit " + base},
		{"copy without history", func(t *testing.T) string { return tree(t, base) }, "", 3, "", "git: fatal: not a git repository"},
		{"new history", func(t *testing.T) string {
			dir := tree(t, base)
			git(t, dir, "init", "-q")
			commit(t, dir)
			return dir
		}, "", 3, "", "git: the history here does not reach back"},
		{"no commit", func(t *testing.T) string {
			dir := tree(t, base)
			git(t, dir, "init", "-q")
			return dir
		}, "", 3, "", "git: the history here does not reach back"},
		{"inside another repository", func(t *testing.T) string {
			dir := t.TempDir()
			git(t, dir, "init", "-q")
			if err := os.Rename(tree(t, base), filepath.Join(dir, "vendored")); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "vendored")
		}, "", 3, "", "is not the root of a work tree"},
		{"unknown commit", func(t *testing.T) string {
			dir, _ := history(t)
			writeBase(t, dir, wrong)
			return dir
		}, "", 1, "", "commit " + wrong + ", the base of compat/moves.json, is not before HEAD"},
		{"commit of another branch", func(t *testing.T) string {
			dir, base := history(t)
			git(t, dir, "checkout", "-q", "-b", "other", base)
			commit(t, dir)
			other := git(t, dir, "rev-parse", "HEAD")
			git(t, dir, "checkout", "-q", "-")
			writeBase(t, dir, other)
			return dir
		}, "", 1, "", "is not before HEAD"},
		{"short id", func(t *testing.T) string { return tree(t, base[:12]) }, "", 1, "", "40 hexadecimal digits"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr, code := frozen(t, tt.make(t), tt.mustRun)
			if code != tt.code || stdout != tt.stdout || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("exit status %d, stdout %q, stderr %q, want %d, %q, %q", code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
			}
		})
	}
}

// history makes a repository in which moves.json comes after its base.
func history(t *testing.T) (dir, base string) {
	t.Helper()
	dir = t.TempDir()
	git(t, dir, "init", "-q")
	commit(t, dir)
	base = git(t, dir, "rev-parse", "HEAD")
	if err := os.CopyFS(dir, os.DirFS(tree(t, base))); err != nil {
		t.Fatal(err)
	}
	commit(t, dir)
	return dir, base
}

// tree makes a directory with what scripts/frozen base reads.
func tree(t *testing.T, base string) string {
	t.Helper()
	script, err := os.ReadFile("../scripts/frozen")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "tree")
	for _, sub := range []string{"scripts", "compat"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "scripts/frozen"), script, 0o600); err != nil {
		t.Fatal(err)
	}
	writeBase(t, dir, base)
	return dir
}

func writeBase(t *testing.T, dir, base string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "compat/moves.json"), fmt.Appendf(nil, "{\n  \"base\": %q,\n  \"moves\": []\n}\n", base), 0o600); err != nil {
		t.Fatal(err)
	}
}

func commit(t *testing.T, dir string) {
	t.Helper()
	git(t, dir, "add", ".")
	git(t, dir, "-c", "user.name=test", "-c", "user.email=test@example.org", "commit", "-q", "--allow-empty", "-m", "test: a commit")
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
