package hermes_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/hermes-framework/hermes/"

// layers is the house plan: each package, and the packages of this module it
// imports. Arrows point up the page only. A new package joins by adding a line; a
// line whose package is not there yet is fine.
var layers = []struct {
	pkg     string
	imports []string
}{
	{"internal/launch", nil},
	{"plugin/proto/hermes/backend/v1", nil},
	{"scripts/api", nil},
	{"shellquote", nil},

	{"plugin", []string{"plugin/proto/hermes/backend/v1"}},
	{"plugins/local", []string{"plugin"}},
	{"plugins/local/hermes-backend-local", []string{"plugin", "plugins/local"}},

	{"examples/hermes-backend-chroot", []string{"plugin"}},
	{"examples/hermes-backend-offline", []string{"plugin", "plugins/local"}},

	{"core", []string{"internal/launch", "plugin", "shellquote"}},

	{"bench", []string{"core", "plugin", "plugins/local"}},
	{"cmd/hermes", []string{"core", "plugin", "plugins/local"}},
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
