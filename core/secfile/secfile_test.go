package secfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

func TestPrivateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	for _, content := range []string{"one", "two"} {
		if err := Write(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path); err != nil || string(got) != content {
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
	if _, err := Read(path); !errors.Is(err, sdk.ErrPermission) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v; want a refusal that says %q", err, says)
	}
}

func TestPrivateDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		if err := MakeDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := MakeDir(dir); !errors.Is(err, sdk.ErrPermission) {
		t.Errorf("one that others may enter: %v", err)
	}
	link := dir + "-link"
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := MakeDir(link); !errors.Is(err, sdk.ErrPermission) {
		t.Errorf("a link: %v", err)
	}
}

func TestLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Lock(short, path); !errors.Is(err, sdk.ErrTimeout) || !strings.Contains(err.Error(), path) {
		t.Errorf("a lock that is held: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		again, err := Lock(t.Context(), path)
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

// TestErrorsSayWhatIsWrong: by errors.Is in the words of the standard library and of the SDK, and nothing was begun.
func TestErrorsSayWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.Symlink(dir, at("link")),
		os.WriteFile(at("open"), nil, 0o644),
		os.WriteFile(at("file"), nil, 0o600),
		os.WriteFile(at("large"), make([]byte, maxPrivateFile+1), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(path string) error { _, err := Read(path); return err }
	lock := func(path string) error { _, err := Lock(t.Context(), path); return err }
	write := func(dir string) error { return Write(filepath.Join(dir, "file"), nil) }
	for _, c := range []struct {
		name string
		do   func(string) error
		path string
		is   []error
	}{
		{"read nothing", read, at("missing"), []error{fs.ErrNotExist, sdk.ErrNotFound}},
		{"read what others may", read, at("open"), []error{fs.ErrPermission, sdk.ErrPermission}},
		{"read a link", read, at("link"), []error{fs.ErrPermission, sdk.ErrPermission}},
		{"read too much", read, at("large"), []error{sdk.ErrInvalid}},
		{"write into nothing", write, at("missing"), []error{fs.ErrNotExist, sdk.ErrNotFound}},
		{"lock in nothing", lock, at("missing/lock"), []error{fs.ErrNotExist, sdk.ErrNotFound}},
		{"lock a link", lock, at("link"), []error{fs.ErrPermission, sdk.ErrPermission}},
		{"a directory at a link", MakeDir, at("link"), []error{fs.ErrPermission, sdk.ErrPermission}},
		{"a directory at a file", MakeDir, at("file"), []error{fs.ErrPermission, sdk.ErrPermission}},
	} {
		err := c.do(c.path)
		for _, is := range c.is {
			if !errors.Is(err, is) {
				t.Errorf("%s: got %v, want %v", c.name, err, is)
			}
		}
		if err == nil {
			continue
		}
		if e := sdk.AsError(err, sdk.Ran); e.Delivery != sdk.NotStarted || !strings.Contains(e.Message, c.path) {
			t.Errorf("%s: %s, and the text is %q", c.name, e.Delivery, e.Message)
		}
	}
}

func TestExplain(t *testing.T) {
	if err := Explain(nil); err != nil {
		t.Errorf("of nothing: %v", err)
	}
	for _, c := range []struct {
		err  error
		is   error
		hint string
	}{
		{unix.ENOENT, sdk.ErrNotFound, ""},
		{unix.EACCES, sdk.ErrPermission, "give yourself access"},
		{unix.EPERM, sdk.ErrPermission, "give yourself access"},
		{unix.ENOSPC, sdk.ErrExhausted, "free some space"},
		{unix.EDQUOT, sdk.ErrExhausted, "free some space"},
		{unix.EROFS, unix.EROFS, "name another directory"},
		{unix.EIO, sdk.ErrInternal, ""},
		{sdk.Errorf(sdk.CodeConflict, sdk.NotStarted, "x").WithHint("its own"), sdk.ErrConflict, "its own"},
	} {
		err := Explain(fmt.Errorf("write /f: %w", c.err))
		e := sdk.AsError(err, sdk.Ran)
		if !errors.Is(err, c.err) || !errors.Is(err, c.is) || e.Delivery != sdk.NotStarted {
			t.Errorf("%v: got %v, %s; want %v", c.err, err, e.Delivery, c.is)
		}
		if !strings.Contains(e.Hint, c.hint) || (e.Hint == "") != (c.hint == "") || !strings.HasPrefix(e.Message, "write /f: ") {
			t.Errorf("%v: got %q, hint %q; want the hint %q", c.err, e.Message, e.Hint, c.hint)
		}
	}
}

// TestACancelledWaitForALock says why it was cancelled.
func TestACancelledWaitForALock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
	why := errors.New("the caller is tired")
	for _, cause := range []error{context.Canceled, why} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if _, err := Lock(ctx, path); !errors.Is(err, cause) {
			t.Errorf("got %v, want %v", err, cause)
		}
	}
}
