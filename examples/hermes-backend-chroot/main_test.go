package main

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/hermes-framework/hermes/internal/mustrun"
	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugin/sdk/sdktest"
)

func TestBackend(t *testing.T) {
	if _, err := newBackend().Open(t.Context(), sdk.OpenRequest{ID: "a", Target: "chroot:dir"}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a relative directory: got %v", err)
	}
	if os.Geteuid() != 0 {
		if _, err := newBackend().Open(t.Context(), sdk.OpenRequest{ID: "a", Target: "chroot:/"}); !errors.Is(err, sdk.ErrPermission) {
			t.Errorf("as another user than root: got %v", err)
		}
		mustrun.Skip(t, "root", "the tests run as another user")
	}
	if out, err := exec.CommandContext(t.Context(), "chroot", "/", "true").CombinedOutput(); err != nil {
		mustrun.Skip(t, "chroot", "root may not do it here: %s", out)
	}
	sdktest.Run(t, newBackend(), "chroot:/")
}
