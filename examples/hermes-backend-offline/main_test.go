package main

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/hermes-framework/hermes/internal/mustrun"
	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugin/sdk/sdktest"
	"github.com/hermes-framework/hermes/plugins/local"
)

func TestBackend(t *testing.T) {
	b := backend{local.New()}
	if _, err := b.Open(t.Context(), sdk.OpenRequest{ID: "a", Target: "local:"}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("another scheme: got %v", err)
	}
	if out, err := exec.CommandContext(t.Context(), "/usr/bin/unshare", "--map-current-user", "--net", "true").CombinedOutput(); err != nil {
		if _, err := b.Open(t.Context(), sdk.OpenRequest{ID: "a", Target: "offline:"}); !errors.Is(err, sdk.ErrUnsupported) && !errors.Is(err, sdk.ErrNotFound) {
			t.Errorf("without namespaces: got %v", err)
		}
		mustrun.Skip(t, "namespaces", "this user may not make any here: %s", out)
	}

	sdktest.Run(t, b, "offline:")
	env, err := b.Open(t.Context(), sdk.OpenRequest{ID: "a", Target: "offline:/"})
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close(t.Context()) //nolint:errcheck // a failure shows above
	var out bytes.Buffer
	_, err = env.Exec(t.Context(), sdk.Command{Argv: []string{"cat", "/proc/net/dev"}}, sdk.IO{Stdout: &out})
	if n := strings.Count(out.String(), ":"); err != nil || n != 1 {
		t.Errorf("got %d network devices, want the loopback only (%v)\n%s", n, err, out.String())
	}
}
