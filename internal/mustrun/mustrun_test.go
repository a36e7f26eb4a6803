package mustrun_test

import (
	"fmt"
	"testing"

	"github.com/hermes-framework/hermes/internal/mustrun"
)

// told records what a test was told.
type told struct{ what string }

func (r *told) Fatal(args ...any) { r.say("fatal", args...) }
func (r *told) Skip(args ...any)  { r.say("skip", args...) }

func (r *told) say(kind string, args ...any) {
	if r.what == "" { // a real test ends with the first
		r.what = kind + " " + fmt.Sprint(args...)
	}
}

func TestSkip(t *testing.T) {
	for _, c := range []struct{ list, want string }{
		{"", "skip python: there is none"},
		{"bash", "skip python: there is none"},
		{"pythons,bash", "skip python: there is none"},
		{"bash,python", "fatal python: there is none (HERMES_TEST_MUST_RUN allows no skip)"},
	} {
		t.Setenv("HERMES_TEST_MUST_RUN", c.list)
		var r told
		mustrun.Skip(&r, "python", "there is %s", "none")
		if r.what != c.want {
			t.Errorf("with %q: got %q, want %q", c.list, r.what, c.want)
		}
	}
}
