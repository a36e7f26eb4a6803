package sh_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/hermes-framework/hermes/plugin/sdk/sh"
)

func ExampleJoin() {
	fmt.Println(sh.Join([]string{"echo", "it's", "", "a b", "$HOME"}))
	// Output: echo 'it'\''s' '' 'a b' '$HOME'
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"":           "''",
		"plain":      "plain",
		"/a/b-c_d.e": "/a/b-c_d.e",
		"a b":        "'a b'",
		"'":          `''\'''`,
		"K=v":        "'K=v'", // first in a line it would be an assignment
		"~":          "'~'",
		"é":          "'é'",
		"a\nb":       "'a\nb'",
	} {
		if got := sh.Quote(in); got != want {
			t.Errorf("Quote(%q) = %s, want %s", in, got, want)
		}
	}
}

// FuzzQuote lets a real shell read what was quoted.
func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "a", "'", `\`, "\n", "$(x)", "`x`", "!", "é\xff", "-n", "a'b\"c", "*", "{a,b}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.IndexByte(s, 0) >= 0 {
			t.Skip("no word holds a NUL byte")
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s. "+sh.Quote(s)).Output()
		if err != nil || string(out) != s+"." {
			t.Errorf("the shell read %q from %s, want %q (%v)", out, sh.Quote(s), s, err)
		}
	})
}
