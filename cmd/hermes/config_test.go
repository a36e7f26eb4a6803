package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
)

// appWith is an app that sees the given environment variables and no others.
func appWith(t *testing.T, env map[string]string) *app {
	t.Helper()

	return &app{stdout: os.Stdout, stderr: os.Stderr, getenv: func(name string) string { return env[name] }}
}

func writeConfig(t *testing.T, text string) (home string) {
	t.Helper()
	home = t.TempDir()
	path := filepath.Join(home, ".config", "hermes", "config.yaml")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	return home
}

func TestSettingsPrecedence(t *testing.T) {
	home := writeConfig(t, `
language: bash
interpreter: python3.11
max_session_kernels: 9
kernel_idle_timeout: 90
through_plugin: true
plugin_dirs: [~/plugins, /opt/hermes]
environments:
  build:
    target: ssh://build.example
    config: {port: 22}
`)
	a := appWith(t, map[string]string{"HOME": home, "HERMES_INTERPRETER": "/usr/bin/python3", "HERMES_MAX_SESSION_KERNELS": "-1"})
	s, err := a.settings()
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(home, ".config/hermes/config.yaml")
	want := []shownSetting{
		{"environment", "local:", "default"},
		{"language", "bash", path},
		{"interpreter", "/usr/bin/python3", "HERMES_INTERPRETER"},
		{"max_session_kernels", "-1", "HERMES_MAX_SESSION_KERNELS"},
		{"kernel_idle_timeout", "90", path},
		{"through_plugin", "true", path},
		{"log_level", "error", "default"},
		{"plugin_dirs", home + "/plugins:/opt/hermes", path},
	}
	if diff := cmp.Diff(want, s.shown); diff != "" {
		t.Errorf("settings shown (-want +got):\n%s", diff)
	}
	if s.kernelIdleTimeout != 90*time.Second || s.maxSessionKernels != -1 || !s.throughPlugin || s.language != cell.Bash {
		t.Errorf("settings = %+v", s)
	}
	environments := map[string]core.EnvironmentConfig{
		"build": {Target: "ssh://build.example", Config: map[string]any{"port": uint64(22)}},
	}
	if diff := cmp.Diff(environments, s.environments); diff != "" {
		t.Errorf("environments (-want +got):\n%s", diff)
	}
}

func TestConfigErrors(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown key", "language: bash\ncolour: red\n", `config.yaml:2:1: unknown key "colour"; the keys are environment, environments, `},
		{"bad value", "\nlanguage: perl\n", `config.yaml:2:11: language: must be python or bash, not "perl"`},
		{"bad number", "max_session_kernels: many\n", "config.yaml:1:22: max_session_kernels: must be a number"},
		{"zero kernels", "max_session_kernels: 0\n", "config.yaml:1:22: max_session_kernels: must be a number"},
		{"bad time", "kernel_idle_timeout: soon\n", "config.yaml:1:22: kernel_idle_timeout: must be a time"},
		{"list for a value", "language: [bash]\n", "config.yaml:1:11: language must be one plain value"},
		{"no value", "language:\n", "language must be one plain value"},
		{"a list", "- a\n- b\n", "config.yaml:1:1: the file must consist of lines"},
		{"text", "hello\n", "config.yaml:1:1: the file must consist of lines"},
		{"syntax", "language: 'bash\n", "config.yaml:1:"},
		{"tabs", "environments:\n\tx: y\n", "config.yaml:2:1: "},
		{"twice", "language: bash\nlanguage: python\n", "config.yaml:2:1: "},
		{"two documents", "language: bash\n---\nlanguage: bash\n", "only one document"},
		{"environment without target", "environments:\n  x: {}\n", "config.yaml:2:3: environment x needs a target"},
		{"environment with an unknown key", "environments:\n  x:\n    target: 'local:'\n    port: 2\n", `config.yaml:4:5: unknown field "port"`},
		{"environment with a bad name", "environments:\n  'a:b': {target: 'local:'}\n", "config.yaml:2:3: environment name"},
		{"environments are a list", "environments: [x]\n", "config.yaml:1:15: environments must be a map"},
		{"relative plugin directory", "plugin_dirs: [x]\n", `plugin_dirs: "x" is not an absolute path`},
		{"rubbish", "\x00\x01\x02{{{{", "config.yaml"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := appWith(t, map[string]string{"HOME": writeConfig(t, tt.text)}).settings()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("config %q: error %v, want one with %q", tt.text, err, tt.want)
			}
			if err != nil && statusOf(err) != statusUsage {
				t.Errorf("status %d, want %d", statusOf(err), statusUsage)
			}
		})
	}
}

func TestConfigThatSaysNothing(t *testing.T) {
	for _, text := range []string{"", "\n\n", "# nothing\n", "---\n", "\ufeff# nothing\n", "environments:\n"} {
		if _, err := appWith(t, map[string]string{"HOME": writeConfig(t, text)}).settings(); err != nil {
			t.Errorf("config %q: %v", text, err)
		}
	}
	if _, err := appWith(t, nil).settings(); err != nil {
		t.Errorf("without HOME: %v", err)
	}
}

// TestConfigHelp wants the help to show each option as it is, and to be a configuration itself.
func TestConfigHelp(t *testing.T) {
	for _, o := range options {
		for _, want := range []string{"  " + o.key + ": ", "# " + o.variable + ": ", o.fallback} {
			if !strings.Contains(configHelp, want) {
				t.Errorf("hermes config --help does not have %q", want)
			}
		}
	}
	_, example, _ := strings.Cut(configHelp, "\n\n")
	if _, err := appWith(t, map[string]string{"HOME": writeConfig(t, example)}).settings(); err != nil {
		t.Errorf("the example is no configuration: %v", err)
	}
}

func TestBadVariable(t *testing.T) {
	a := appWith(t, map[string]string{"HERMES_LANGUAGE": "perl"})
	_, err := a.settings()
	if want := `HERMES_LANGUAGE=perl: must be python or bash, not "perl"`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestConfigWritableByAll(t *testing.T) {
	home := writeConfig(t, "language: bash\n")
	if err := os.Chmod(filepath.Join(home, ".config/hermes/config.yaml"), 0o666); err != nil {
		t.Fatal(err)
	}
	_, err := appWith(t, map[string]string{"HOME": home}).settings()
	if err == nil || !strings.Contains(err.Error(), "can be written by every user") {
		t.Errorf("error %v, want a refusal", err)
	}
}

func TestPaths(t *testing.T) {
	private := t.TempDir()
	if err := os.Chmod(private, 0o700); err != nil {
		t.Fatal(err)
	}
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(private)
	for _, tt := range []struct {
		name string
		env  map[string]string
		want paths
	}{
		{"nothing set", nil, paths{}},
		{"home", map[string]string{"HOME": "/h"}, paths{
			config: "/h/.config/hermes/config.yaml", lock: "/h/.config/hermes/plugins.lock",
			state: "/h/.local/state/hermes", data: "/h/.local/share/hermes/plugins",
		}},
		{"xdg over home", map[string]string{"HOME": "/h", "XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s", "XDG_DATA_HOME": "/d"}, paths{
			config: "/c/hermes/config.yaml", lock: "/c/hermes/plugins.lock", state: "/s/hermes", data: "/d/hermes/plugins",
		}},
		{"relative values count as unset", map[string]string{"XDG_CONFIG_HOME": "c", "HOME": "h"}, paths{}},
		{"runtime others can read", map[string]string{"XDG_RUNTIME_DIR": open}, paths{}},
		{"runtime not there", map[string]string{"XDG_RUNTIME_DIR": private + "/none"}, paths{}},
		{"runtime too long", map[string]string{"XDG_RUNTIME_DIR": private + strings.Repeat("/x", 40)}, paths{}},
	} {
		if got := appWith(t, tt.env).paths(); got != tt.want {
			t.Errorf("%s: paths %+v, want %+v", tt.name, got, tt.want)
		}
	}

	short := filepath.Join(testRoot, "rt")
	if err := os.Mkdir(short, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := appWith(t, map[string]string{"XDG_RUNTIME_DIR": short}).paths().runtime; got != short+"/hermes" {
		t.Errorf("runtime %q, want %q", got, short+"/hermes")
	}
}

func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{"language: bash\n", "environments:\n  x: {target: 'local:', config: {a: [1, {b: c}]}}\n", "a: &a [*a]\n", "? [x]: y\n", "--- |\n x\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := parseConfig("config.yaml", data); err != nil && !strings.HasPrefix(err.Error(), "config.yaml") {
			t.Errorf("error %q does not name the file", err)
		}
	})
}
