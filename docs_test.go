package hermes_test

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
)

var writeDocs = flag.Bool("write-docs", false, "put the files into the documents that show them")

// shown is a code block that names the file which it shows.
var shown = regexp.MustCompile("(?ms)^```go ([a-z][a-z0-9/_-]*\\.go)\n.*?^```$")

// TestDocsShowTheFiles: a block that names a file is that file, which is built and tested beside it.
func TestDocsShowTheFiles(t *testing.T) {
	const doc = "docs/write-a-backend.md"
	data, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}

	files := 0
	want := shown.ReplaceAllStringFunc(string(data), func(block string) string {
		files++
		name := shown.FindStringSubmatch(block)[1]
		code, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(code), "\n"); n > 60 {
			t.Errorf("%s has %d lines: too many for a document", name, n)
		}
		return "```go " + name + "\n" + string(code) + "```"
	})
	if files != 2 {
		t.Errorf("%s shows %d files, want 2", doc, files)
	}
	if want == string(data) {
		return
	}
	if !*writeDocs {
		t.Fatalf("%s does not show the files as they are; go test -run TestDocsShowTheFiles -write-docs . puts them in", doc)
	}
	if err := os.WriteFile(doc, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}
