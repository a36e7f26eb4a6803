//go:build linux

package local

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// FuzzParseTarget: a target is refused or names no directory or an absolute one.
func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"", "local:", "local:/srv", "local:///srv", "local://host/srv", "local:srv", "local:/a%2f..%00", "LOCAL:/x", "local:/?a", "local:#", "ssh://x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		dir, err := parseTarget(target)
		switch {
		case err != nil && (dir != "" || !errors.Is(err, sdk.ErrInvalid)):
			t.Errorf("%q: %q and %v", target, dir, err)
		case err == nil && dir != "" && !strings.HasPrefix(dir, "/"):
			t.Errorf("%q names the directory %q", target, dir)
		}
	})
}

// FuzzParseStat: whatever a program calls itself, the fields after its name are found; and no line makes it panic.
func FuzzParseStat(f *testing.F) {
	for _, s := range []string{"", "sh", "a b", ") S 1 1 1", "((", "\n", ")", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		parseStat(7, []byte(name))
		rest := strings.Repeat(" 0", 15)
		line := fmt.Sprintf("7 (%s) S 5 6 4%s 99 1 2", name, rest)
		got, ok := parseStat(7, []byte(line))
		want := stat{pid: 7, parent: 5, session: 4, state: 'S', start: 99}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(stat{})); !ok || diff != "" {
			t.Errorf("%q: %v, (-want +got):\n%s", line, ok, diff)
		}
	})
}
