package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestItems(t *testing.T) {
	golden, err := os.ReadFile("testdata/sample.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSuffix(string(golden), "\n"), "\n")

	got, err := Items(t.Context(), "testdata/sample", []string{"linux", "darwin"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("items of testdata/sample (-want +got):\n%s", d)
	}
}

func TestItemsOfBrokenPackage(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"go.mod": "module example.org/broken\n\ngo 1.26\n", "a.go": "package a\n\nvar X int = \"text\"\n"} {
		if err := os.WriteFile(dir+"/"+name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Items(t.Context(), dir, []string{"linux"}); err == nil || !strings.Contains(err.Error(), "a.go:3") {
		t.Errorf("Items of a package that does not compile: got error %v, want one that names a.go:3", err)
	}
}

func TestDiff(t *testing.T) {
	got := Diff([]string{"a", "b"}, []string{"b", "c"})
	if d := cmp.Diff([]string{"-a", "+c"}, got); d != "" {
		t.Errorf("Diff (-want +got):\n%s", d)
	}
}
