package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core"
)

func TestSourceRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, data string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tt := range []struct {
		name      string
		src       source
		stdin     string
		want, err string
	}{
		{name: "inline", src: source{code: "1", inline: true}, want: "1"},
		{name: "empty inline", src: source{inline: true}},
		{name: "file", src: source{file: write("a.py", "x=1\n")}, want: "x=1\n"},
		{name: "byte order mark", src: source{file: write("b.py", "\xef\xbb\xbfx=1\n")}, want: "x=1\n"},
		{name: "stdin", src: source{file: "-"}, stdin: "2", want: "2"},
		{name: "largest", src: source{file: "-"}, stdin: strings.Repeat("#", core.MaxCode), want: strings.Repeat("#", core.MaxCode)},
		{name: "too large", src: source{file: "-"}, stdin: strings.Repeat("#", core.MaxCode+1), err: "the code on stdin is over 8 MiB"},
		{name: "not there", src: source{file: filepath.Join(dir, "none.py")}, err: "none.py: no such file"},
		{name: "directory", src: source{file: dir}, err: "is a directory"},
		{name: "latin-1", src: source{file: write("c.py", "a='\xe9'")}, err: "c.py is not UTF-8: byte 0xe9 at offset 3"},
		{name: "cut character", src: source{file: write("d.py", "#é\xc3")}, err: "byte 0xc3 at offset 3"},
		{name: "surrogate", src: source{code: "\xed\xa0\x80", inline: true}, err: "the code of -c is not UTF-8: byte 0xed at offset 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.src.read(strings.NewReader(tt.stdin))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || statusOf(err) != statusUsage {
					t.Errorf("error %v, want a usage error with %q", err, tt.err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("read = %.40q, %v; want %.40q", got, err, tt.want)
			}
		})
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"30s": 30 * time.Second, "1h30m": 90 * time.Minute, "2": 2 * time.Second, "0.5": time.Second / 2, "0": 0} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "soon", "5 m", "NaN", "Inf", "1e300"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("parseDuration(%q) = %v, want an error", text, got)
		}
	}
}

func TestVariables(t *testing.T) {
	path := filepath.Join(t.TempDir(), "env")
	text := `# a comment
A=plain # comment
B = "two\nlines \"q\" \x" # comment
C='raw \n # kept'
export D=d#d

E=
HERE
GONE
F="a"
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	lookup := func(name string) (string, bool) { return "here", name == "HERE" || name == "MINE" }
	got, err := variables([]string{path}, []string{"F=flag=1", "MINE", "UNSET", "G="}, lookup)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"A": "plain", "B": "two\nlines \"q\" \\x", "C": `raw \n # kept`, "D": "d#d", "E": "", "HERE": "here",
		"F": "flag=1", "MINE": "here", "G": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
}

func TestBadVariables(t *testing.T) {
	none := func(string) (string, bool) { return "", false }
	for text, want := range map[string]string{
		"A=1\nB='open":      "2: the value of B has no closing quote",
		"A=\"x\" y":         "1: the value of A goes on after its closing quote",
		"=secret":           "1: a variable without a name",
		"A B=secret":        `1: "A B" is no name of a variable`,
		"A=sec\x00ret":      "1: the value of A is not plain UTF-8 text",
		"A=secret\xff\nB=1": "1: the value of A is not plain UTF-8 text",
	} {
		err := parseEnvFile([]byte(text), map[string]string{}, none)
		if err == nil || err.Error() != want {
			t.Errorf("parseEnvFile(%q) = %v, want %q", text, err, want)
		}
	}
	if _, err := variables(nil, []string{"=x"}, none); err == nil || statusOf(err) != statusUsage {
		t.Errorf("-e =x: %v, want a usage error", err)
	}
}

func FuzzParseEnvFile(f *testing.F) {
	f.Add([]byte("A=\"x\\\"\nB='y'\n# c\nexport C"))
	f.Fuzz(func(t *testing.T, data []byte) {
		vars := map[string]string{}
		if err := parseEnvFile(data, vars, func(string) (string, bool) { return "", false }); err != nil {
			return
		}
		for name, value := range vars {
			if err := checkVariable(name, value); err != nil {
				t.Errorf("from %q: %v", data, err)
			}
		}
	})
}
