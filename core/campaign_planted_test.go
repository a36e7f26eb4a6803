package core_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/internal/mustrun"
)

// plant is a fault put into a copy of the source. A test that passes without it must fail with it.
type plant struct {
	name   string
	file   string      // below core
	swaps  [][2]string // each text occurs once
	caught []string    // by these tests, of the package or directory
	in     string
}

// environBefore is the environment before TestMain changed it: the go command has its cache in the user's home.
var environBefore = os.Environ()

// TestCampaignFindsPlantedFaults: what is said to happen exactly once is only worth what would be noticed if it did not.
func TestCampaignFindsPlantedFaults(t *testing.T) {
	for _, p := range []plant{
		{
			name: "no tombstone", file: "kernelhost/host.py",
			swaps:  [][2]string{{"            self._remember(cell_id, \"revoked\", b\"\", \"\")\n            return\n", "            return\n"}},
			caught: []string{"test_journal.Writing.test_revoke"},
		},
		{
			name: "started before it is written", file: "kernelhost/host.py",
			swaps:  [][2]string{{"            self.host.spare_pipes = pipes\n            raise NotWritten(e) from None\n", "            pass\n"}},
			caught: []string{"test_journal.Writing.test_a_file_that_cannot_grow"},
		},
		{
			name: "told before it is written", file: "kernelhost/host.py",
			swaps: [][2]string{{
				"        self.kernel.host.journal.finished(self, ran)  # before anybody is told\n",
				"        self.kernel.host.after(0.3, lambda: self.kernel.host.journal.finished(self, ran))\n",
			}},
			caught: []string{"test_journal.Writing.test_records"},
		},
		{
			name: "no check of the incarnation", file: "kernel/host.go", in: "./core/kernel",
			swaps:  [][2]string{{`inc != h.id.Incarnation {`, `inc == "" {`}},
			caught: []string{"TestAnotherIncarnationIsNotAsked"},
		},
		{
			name: "submitted again under a new id", file: "kernel/submit.go", in: "./core/kernel",
			swaps: [][2]string{{
				"	if r.sent {\n		state, err := l.request(", "	if r.sent {\n		r.sub.ID += \"again\"\n		msg[\"cell\"] = r.sub.ID\n	}\n	if false {\n		state, err := l.request(",
			}},
			caught: []string{"TestACellRunsOnceHoweverOftenTheConnectionBreaks"},
		},
		{
			name: "a second run without a revoke", file: "kernel/revoke.go", in: "./core/kernel",
			swaps:  [][2]string{{`	case answer.Text("state") != "revoked":`, `	case answer == nil:`}},
			caught: []string{"TestACellThatCannotBeRevokedIsFollowed"},
		},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			source, err := os.ReadFile(p.file)
			if err != nil {
				t.Fatal(err)
			}
			text := string(source)
			for _, swap := range p.swaps {
				if n := strings.Count(text, swap[0]); n != 1 {
					t.Fatalf("%s has %q %d times, want once: the fault is planted at another place now", p.file, swap[0], n)
				}
				text = strings.Replace(text, swap[0], swap[1], 1)
			}
			cmd := p.goTest(ctx, t, text)
			if filepath.Ext(p.file) == ".py" {
				cmd = p.pythonTest(ctx, t, text)
			}
			out, err := cmd.CombinedOutput()
			if err == nil || ctx.Err() != nil {
				t.Errorf("%s was not noticed by %v (%v):\n%s", p.name, p.caught, err, out)
			}
			if text := string(out); !strings.Contains(text, "FAIL: "+p.caught[0][strings.LastIndex(p.caught[0], ".")+1:]) || strings.Contains(text, "[build failed]") || strings.Contains(text, "SyntaxError") {
				t.Errorf("something else went wrong:\n%s", out)
			}
		})
	}
}

// goTest runs the Go tests that must fail, with the text in the place of the file.
func (p plant) goTest(ctx context.Context, t *testing.T, text string) *exec.Cmd {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		mustrun.Skip(t, "go", "the go command is not on PATH")
	}
	dir := t.TempDir()
	copied, overlay := filepath.Join(dir, filepath.Base(p.file)), filepath.Join(dir, "overlay.json")
	original, err := filepath.Abs(p.file)
	if err != nil {
		t.Fatal(err)
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: copied}})
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string][]byte{copied: []byte(text), overlay: replace} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-timeout=2m", "-overlay="+overlay, "-run=^("+strings.Join(p.caught, "|")+")$", p.in)
	cmd.Dir = ".."
	cmd.Env = environBefore
	return cmd
}

// pythonTest runs the kernel host's tests that must fail, in a copy of its directory that has the text.
func (p plant) pythonTest(ctx context.Context, t *testing.T, text string) *exec.Cmd {
	t.Helper()
	room := filepath.Join(t.TempDir(), "kernelhost")
	if err := os.CopyFS(room, os.DirFS("kernelhost")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(room, "host.py"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "python3", append([]string{"-W", "ignore", "-m", "unittest"}, p.caught...)...)
	cmd.Dir = filepath.Join(room, "hosttest")
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}
