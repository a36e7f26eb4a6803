package launch

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/hermes-framework/hermes/internal/mustrun"
)

func TestNoexecRuntimeDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		mustrun.Skip(t, "root", "to mount")
	}
	dir := shortDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_NOEXEC, "size=1m"); err != nil {
		mustrun.Skip(t, "mount", "a tmpfs cannot be mounted: %v", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, 0)) })
	spec := badSpec(t, "ok")
	spec.RuntimeDir = dir
	p := start(t, spec)
	if strings.HasPrefix(p.RunDir(), dir) {
		t.Errorf("the copy was put where nothing can run: %s", p.RunDir())
	}
}

func TestFullRuntimeDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		mustrun.Skip(t, "root", "to mount")
	}
	dir := shortDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		mustrun.Skip(t, "mount", "a tmpfs cannot be mounted: %v", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, 0)) })
	spec := badSpec(t, "ok")
	spec.RuntimeDir = dir
	if e := startFails(t, spec); e.Phase != PhaseDirectory || e.Kind != KindExhausted || !strings.Contains(e.Error(), dir) {
		t.Errorf("got %q, %q, %v; want an error that names the directory", e.Phase, e.Kind, e)
	}
}
