package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPercentile(t *testing.T) {
	samples := []time.Duration{5, 1, 4, 2, 3}
	for p, want := range map[float64]time.Duration{0: 1, 0.5: 3, 1: 5} {
		if got := percentile(samples, p); got != want {
			t.Errorf("percentile(%v, %v) = %d, want %d", samples, p, got, want)
		}
	}
}

func TestField(t *testing.T) {
	const text = "Name:\tx\nPss:                1234 kB\nPss_Anon: 5 kB\n"
	if got := field(text, "Pss"); got != "1234 kB" {
		t.Errorf("field(Pss) = %q, want 1234 kB", got)
	}
	got, err := kilobytes(field(text, "Pss"))
	if err != nil || got != 1234*1024 {
		t.Errorf("kilobytes = %v, %v, want %d", got, err, 1234*1024)
	}
}

func TestReplaceTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte("before\n"+begin+"old\n"+end+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time finds the same two lines
		if err := replaceTable(path, "new\n"); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff("before\n"+begin+"\nnew\n\n"+end+"after\n", string(got)); d != "" {
		t.Errorf("page (-want +got):\n%s", d)
	}
}

func TestReplaceTableWithoutMarkers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte(begin+"no end\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replaceTable(path, "new\n"); err == nil {
		t.Error("replaceTable of a page without an end marker: no error")
	}
}
