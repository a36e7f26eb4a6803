package main

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/hermes-framework/hermes/plugin"
	"github.com/hermes-framework/hermes/plugins/local"
)

func TestBackend(t *testing.T) {
	b := backend{local.New()}
	if _, err := b.Open(t.Context(), plugin.OpenRequest{ID: "a", Target: "local:"}); !errors.Is(err, plugin.ErrInvalid) {
		t.Errorf("another scheme: got %v", err)
	}
	if out, err := exec.CommandContext(t.Context(), "/usr/bin/unshare", "--map-current-user", "--net", "true").CombinedOutput(); err != nil {
		if _, err := b.Open(t.Context(), plugin.OpenRequest{ID: "a", Target: "offline:"}); !errors.Is(err, plugin.ErrUnsupported) && !errors.Is(err, plugin.ErrNotFound) {
			t.Errorf("without namespaces: got %v", err)
		}
		t.Skipf("namespaces: this user may not make any here: %s", out)
	}

	for _, err := range plugin.CheckBackend(t.Context(), b, "offline:") {
		t.Error(err)
	}
	env, err := b.Open(t.Context(), plugin.OpenRequest{ID: "a", Target: "offline:/"})
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close(t.Context()) //nolint:errcheck // a failure shows above
	var out bytes.Buffer
	_, err = env.Exec(t.Context(), plugin.Command{Argv: []string{"cat", "/proc/net/dev"}}, plugin.IO{Stdout: &out})
	if n := strings.Count(out.String(), ":"); err != nil || n != 1 {
		t.Errorf("got %d network devices, want the loopback only (%v)\n%s", n, err, out.String())
	}
}
