package kernelhost

import (
	"context"
	"encoding/hex"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/internal/mustrun"
)

// userHome is the user's directory, whatever the tests' HOME is.
func userHome(t *testing.T) string {
	t.Helper()
	found, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return found.HomeDir
}

// pythons returns every Python 3 of the machine that the kernel host supports, the one on PATH first, each version once.
func pythons(t *testing.T) []string {
	t.Helper()
	candidates := []string{"python3"}
	for _, pattern := range []string{"/usr/bin/python3", "/usr/local/bin/python3", filepath.Join(userHome(t), ".pyenv/versions/3*/bin/python3")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		candidates = append(candidates, found...)
	}
	var usable, known []string
	for _, candidate := range candidates {
		const code = "import os, sys, asyncio, ctypes, hmac, json, multiprocessing; print(os.path.realpath(sys.executable)); sys.exit(sys.version_info < (3, 8))"
		out, err := exec.CommandContext(t.Context(), candidate, "-c", code).Output()
		if exe := strings.TrimSpace(string(out)); err == nil && !slices.Contains(known, exe) {
			known, usable = append(known, exe), append(usable, exe)
		}
	}
	if len(usable) == 0 {
		mustrun.Skip(t, "python", "no complete Python 3.8 or newer is installed")
	}
	return usable
}

// The whole suite of hosttest runs with the Python on PATH, its most telling parts with every other one.
func TestKernelHost(t *testing.T) {
	brief := []string{
		"test_cells.PythonCells.test_values", "test_cells.PythonCells.test_errors", "test_cells.PythonCells.test_await", "test_cells.PythonCells.test_exits",
		"test_cells.PythonCells.test_late_output", "test_ladder.Ladder.test_timeout_keeps_state",
		"test_ladder.Ladder.test_kill_ends_the_tree", "test_ladder.Ladder.test_host_is_killed", "test_shell.ShellCells.test_state", "test_link.Vectors",
		"test_link.Link.test_idempotent", "test_link.Start.test_source_is_kept", "test_journal.Reading", "test_journal.Killed.test_a_cell_of_each_state",
		"test_journal.Killed.test_large_results", "test_journal.Writing.test_records",
	}
	whole, err := filepath.Glob("hosttest/test_*.py")
	if err != nil || len(whole) == 0 {
		t.Fatal(whole, err)
	}
	for i, python := range pythons(t) {
		suites := [][]string{brief}
		if i == 0 {
			suites = nil
			for _, file := range whole {
				suites = append(suites, []string{strings.TrimSuffix(filepath.Base(file), ".py")})
			}
		}
		for _, suite := range suites {
			t.Run(strings.ReplaceAll(strings.Trim(python, "/"), "/", "_")+"/"+suite[0], func(t *testing.T) {
				t.Parallel()
				runHostTests(t, python, suite)
			})
		}
	}
}

func runHostTests(t *testing.T, python string, suite []string) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, append([]string{"-W", "ignore", "-m", "unittest"}, suite...)...)
	cmd.Dir = "hosttest"
	cmd.Env = append(os.Environ(), "HERMES_TEST_PYTHON="+python, "PYTHONDONTWRITEBYTECODE=1")
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the kernel host's tests with %s: %v\n%s", python, err, out)
	}
}

// An old Python is told so by the loader, which therefore parses on it.
func TestKernelHostNamesAnOldPython(t *testing.T) {
	old, _ := filepath.Glob(filepath.Join(userHome(t), ".pyenv/versions/*/bin/python"))
	for _, python := range old {
		if exec.CommandContext(t.Context(), python, "-c", "import sys; sys.exit(sys.version_info >= (3, 8))").Run() != nil {
			continue
		}
		loader, err := os.ReadFile("loader.py")
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), python, "-c", string(loader), "hermes-kernel-host", "start").Output()
		line, found := strings.CutPrefix(strings.TrimSpace(string(out)), "hermes-error ")
		raw, decodeErr := hex.DecodeString(line)
		if err == nil || !found || decodeErr != nil {
			t.Errorf("%s answers %q, %v", python, out, err)
			continue
		}
		answer, err := cell.DecodeFields(raw)
		if err != nil || answer.Text("code") != "incompatible" || !strings.Contains(answer.Text("msg"), "need 3.8") {
			t.Errorf("%s answers %v, %v", python, answer, err)
		}
	}
}

func TestKernelHostSource(t *testing.T) {
	python := pythons(t)[0]
	const parse = "import ast, sys; [ast.parse(open(name).read(), name, feature_version=(3, 8)) for name in sys.argv[1:]]"
	if out, err := exec.CommandContext(t.Context(), python, "-c", parse, "host.py", "loader.py").CombinedOutput(); err != nil {
		t.Errorf("not the syntax of Python 3.8: %v\n%s", err, out)
	}
	if _, err := exec.LookPath("pyflakes3"); err != nil {
		mustrun.Skip(t, "pyflakes3", "not installed")
	}
	files, err := filepath.Glob("hosttest/*.py")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "pyflakes3", append(files, "host.py", "loader.py")...).CombinedOutput(); err != nil {
		t.Errorf("pyflakes3: %v\n%s", err, out)
	}
}
