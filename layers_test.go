package hermes_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/hermes-framework/hermes/"

// The arrows to plugin/sdk from rooms that could do without: errors carry codes,
// which are defined once, in plugin/sdk/errors.go, so core/secfile makes *sdk.Error;
// core/kernelhost works in an sdk.Environment, and a copy of that contract in
// stdlib types would say it twice. plugin/sdk/sh waits for backends with a shell.

// layers is the house plan: each package, and the packages of this module it
// imports. Arrows point up the page only. A new package joins by adding a line; a
// line whose package is not there yet is fine.
var layers = []struct {
	pkg     string
	imports []string
}{
	{"compat", nil}, // the table of what moved, and its tests
	{"core/cell", nil},
	{"internal/launch", nil},
	{"internal/mustrun", nil},
	{"plugin/proto/hermes/backend/v1", nil},
	{"plugin/sdk/sh", nil},
	{"scripts/api", nil},

	{"plugin/sdk", []string{"plugin/proto/hermes/backend/v1"}},
	{"plugin/sdk/farside", []string{"plugin/sdk", "plugin/sdk/sh"}},
	{"plugin/sdk/sdktest", []string{"internal/launch", "plugin/sdk"}},
	{"plugins/local", []string{"plugin/sdk"}},
	{"plugins/local/hermes-backend-local", []string{"plugin/sdk", "plugins/local"}},
	{"plugins/ssh", []string{"plugin/sdk", "plugin/sdk/farside", "plugin/sdk/sh"}},
	{"plugins/ssh/hermes-backend-ssh", []string{"plugin/sdk", "plugins/ssh"}},
	{"plugins/docker", []string{"plugin/sdk", "plugin/sdk/farside", "plugin/sdk/sh"}},
	{"plugins/docker/hermes-backend-docker", []string{"plugin/sdk", "plugins/docker"}},

	{"examples/hermes-backend-chroot", []string{"plugin/sdk"}},
	{"examples/hermes-backend-offline", []string{"plugin/sdk", "plugins/local"}},

	{"core/lockdown", []string{"plugin/sdk/sh"}},
	{"core/secfile", []string{"plugin/sdk"}},
	{"core/toolrpc", []string{"core/cell"}},
	{"core/result", []string{"core/cell"}},
	{"core/kernel", []string{"core/cell"}},
	{"core/kernelhost", []string{"core/cell", "core/lockdown", "plugin/sdk"}},
	{"core/pool", []string{"core/cell", "core/kernel"}},
	{"core/registry", []string{"core/secfile", "internal/launch", "plugin/sdk"}},

	{"core", []string{
		"core/cell", "core/kernel", "core/kernelhost", "core/pool", "core/registry", "core/result", "core/secfile", "core/toolrpc",
		"plugin/sdk",
	}},

	{"bench", []string{"core", "core/cell", "plugin/sdk", "plugins/local"}},
	{"cmd/hermes", []string{"core", "core/cell", "plugin/sdk", "plugins/local"}},
}

func TestLayers(t *testing.T) {
	plan := map[string][]string{}
	for _, l := range layers {
		for _, dep := range l.imports {
			if _, above := plan[dep]; !above {
				t.Errorf("house plan: %s imports %s, which is not above it", l.pkg, dep)
			}
		}
		plan[l.pkg] = l.imports
	}

	for pkg, imports := range imports(t) {
		allowed, known := plan[pkg]
		if !known {
			t.Errorf("%s is not in the house plan", pkg)
			continue
		}
		for _, dep := range imports {
			if !slices.Contains(allowed, dep) {
				t.Errorf("%s imports %s; the house plan allows %v", pkg, dep, allowed)
			}
		}
	}
}

// imports lists each package of this module below its root with the packages of
// this module that it imports, tests left out, names relative to the module.
func imports(t *testing.T) map[string][]string {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}

	found := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		pkg, below := strings.CutPrefix(fields[0], module)
		if !below {
			continue
		}
		found[pkg] = []string{}
		for _, imp := range fields[1:] {
			if dep, ours := strings.CutPrefix(imp, module); ours {
				found[pkg] = append(found[pkg], dep)
			}
		}
	}
	if len(found) == 0 {
		t.Fatal("go list found no package below the root")
	}
	return found
}

// TestDocShowsTheLayers: doc.go holds the table for people who do not read tests.
func TestDocShowsTheLayers(t *testing.T) {
	data, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	for _, l := range slices.Backward(layers) {
		deps := strings.Join(l.imports, ", ")
		if deps == "" {
			deps = "nothing of this module"
		}
		table.WriteString("//\t" + l.pkg + " → " + deps + "\n")
	}
	before, rest, found := strings.Cut(string(data), "//\n//\t")
	_, after, ended := strings.Cut(rest, "\npackage hermes")
	if !found || !ended {
		t.Fatal("doc.go has no table")
	}
	want := before + "//\n" + table.String() + "package hermes" + after
	if want == string(data) {
		return
	}
	if !*writeDocs {
		t.Fatal("doc.go does not show the layers; go test -run TestDocShowsTheLayers -write-docs . puts them in")
	}
	if err := os.WriteFile("doc.go", []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}
