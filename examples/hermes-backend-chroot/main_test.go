package main

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/hermes-framework/hermes/plugin"
)

func TestBackend(t *testing.T) {
	if _, err := newBackend().Open(t.Context(), plugin.OpenRequest{ID: "a", Target: "chroot:dir"}); !errors.Is(err, plugin.ErrInvalid) {
		t.Errorf("a relative directory: got %v", err)
	}
	if os.Geteuid() != 0 {
		if _, err := newBackend().Open(t.Context(), plugin.OpenRequest{ID: "a", Target: "chroot:/"}); !errors.Is(err, plugin.ErrPermission) {
			t.Errorf("as another user than root: got %v", err)
		}
		t.Skip("root: the tests run as another user")
	}
	if out, err := exec.CommandContext(t.Context(), "chroot", "/", "true").CombinedOutput(); err != nil {
		t.Skipf("chroot: root may not do it here: %s", out)
	}
	for _, err := range plugin.CheckBackend(t.Context(), newBackend(), "chroot:/") {
		t.Error(err)
	}
}
