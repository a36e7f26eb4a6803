package lockdown_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core/lockdown"
)

// TestTheSecretIsOnStdinOnly: argument lists and environments are read by everybody on the host.
func TestTheSecretIsOnStdinOnly(t *testing.T) {
	const secret = "the-token\x00\xff\nof this host"
	sum := strings.Repeat("0f", 32)
	for name, c := range map[string]struct {
		source []byte
		stdin  string
	}{
		"with the source":      {[]byte("print(1)\n"), "hermes1 " + sum + " 9 24\nprint(1)\n" + secret},
		"with its sum only":    {nil, "hermes1 " + sum + " 0 24\n" + secret},
		"with an empty source": {[]byte{}, "hermes1 " + sum + " 0 24\n" + secret},
	} {
		p := lockdown.Program{Name: "a-program", Loader: "import sys", Sum: sum, Source: c.source}
		got := p.Launch("python3", "start", []byte(secret))
		want := lockdown.Launch{
			Argv:  []string{"python3", "-c", "import sys", "a-program", "start"},
			Env:   []string{"PYTHONDONTWRITEBYTECODE=1"},
			Stdin: []byte(c.stdin),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for _, open := range append(got.Argv, got.Env...) {
			if strings.Contains(open, "the-token") {
				t.Errorf("%s: everybody can read %q", name, open)
			}
		}
	}
}

func TestALaunchWithoutConfig(t *testing.T) {
	p := lockdown.Program{Sum: "5a"}
	if diff := cmp.Diff("hermes1 5a 0 0\n", string(p.Launch("python3", "start", nil).Stdin)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
