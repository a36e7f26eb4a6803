package core

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/plugin"
)

func TestPrivateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if _, err := readPrivate(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	for _, content := range []string{"one", "two"} {
		if err := writePrivate(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := readPrivate(path); err != nil || string(got) != content {
			t.Errorf("got %q, %v; want %q", got, err, content)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("left: %v", left)
	}

	link := path + "-link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, link, "is a symbolic link")
	wantRefused(t, filepath.Dir(path), "is not a regular file")
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, path, "is open to other users")
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, 65534, 0)); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, path, "belongs to user 65534")
	}
}

func wantRefused(t *testing.T, path, says string) {
	t.Helper()
	if _, err := readPrivate(path); !errors.Is(err, plugin.ErrPermission) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v; want a refusal that says %q", err, says)
	}
}

func TestPrivateDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		if err := privateDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := privateDir(dir); !errors.Is(err, plugin.ErrPermission) {
		t.Errorf("one that others may enter: %v", err)
	}
	link := dir + "-link"
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := privateDir(link); !errors.Is(err, plugin.ErrPermission) {
		t.Errorf("a link: %v", err)
	}
}

func TestLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := lockFile(short, path); !errors.Is(err, plugin.ErrTimeout) || !strings.Contains(err.Error(), path) {
		t.Errorf("a lock that is held: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		again, err := lockFile(t.Context(), path)
		if err == nil {
			again()
		}
		got <- err
	}()
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
}
