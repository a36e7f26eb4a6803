package hermes_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName = regexp.MustCompile("`([Tt]est[A-Za-z0-9_]+)`")
	testFunc = regexp.MustCompile(`(?m)^(?:func|\s+def) ([Tt]est[A-Za-z0-9_]+)\(`)
)

// TestEveryRowOfExactlyOnceHasATest: the table in docs/exactly-once.md says nothing that no test shows.
func TestEveryRowOfExactlyOnceHasATest(t *testing.T) {
	there := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(d.Name(), "test_") {
			return err
		}
		data, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(data, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("docs/exactly-once.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "## What happens when")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || strings.Contains(line, "---|") || strings.Contains(line, "shown by") {
			continue
		}
		rows++
		names := testName.FindAllStringSubmatch(cells[3], -1)
		if len(names) == 0 {
			t.Errorf("no test in the row %q", line)
		}
		for _, m := range names {
			if !there[m[1]] {
				t.Errorf("there is no %s, which the row %q names", m[1], line)
			}
		}
	}
	if rows < 30 {
		t.Errorf("%d rows were read: has the table moved?", rows)
	}
}
