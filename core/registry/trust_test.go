package registry

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// testBinary is a native program: this test.
func testBinary(t *testing.T, dir, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, backendPrefix+name)
	if err := os.WriteFile(path, content, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func wantError(t *testing.T, err, is error, says, hint string) {
	t.Helper()
	e, ok := errors.AsType[*sdk.Error](err)
	if !ok || !errors.Is(err, is) || !strings.Contains(err.Error(), says) || !strings.Contains(e.Hint, hint) {
		t.Errorf("got %v; want a %v that says %q and hints at %q", err, is, says, hint)
	}
}

func TestTrustOfABinary(t *testing.T) {
	dir, lock := shortDir(t), filepath.Join(t.TempDir(), "config", "plugins.lock")
	path := testBinary(t, dir, "x")
	r := testRegistry(t, Config{Dirs: []string{dir}, LockFile: lock})

	_, err := r.Backend(t.Context(), "x")
	wantError(t, err, sdk.ErrUntrusted, "is not trusted", "hermes plugin trust "+path)
	_, err = r.Backend(t.Context(), "y")
	wantError(t, err, sdk.ErrNotFound, dir, "hermes plugin install PATH")
	_, err = r.Backend(t.Context(), "../x")
	wantError(t, err, sdk.ErrInvalid, "not a name", "")

	st, err := Trust(lock, path)
	if err != nil || !st.Trusted || st.Name != "x" || len(st.SHA256) != 64 {
		t.Fatalf("Trust: %+v, %v", st, err)
	}
	if info, err := os.Stat(lock); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the lock: %v, %v", info, err)
	}
	all, err := r.List(t.Context())
	if err != nil || len(all) != 1 || !all[0].Trusted || all[0].SHA256 != st.SHA256 || all[0].Problem != "" {
		t.Errorf("list: %+v, %v", all, err)
	}

	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("changed")
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = r.Backend(t.Context(), "x")
	wantError(t, err, sdk.ErrUntrusted, "has changed", "hermes plugin trust "+path)
}

func TestInstall(t *testing.T) {
	from, dir, lock := shortDir(t), filepath.Join(shortDir(t), "plugins"), filepath.Join(t.TempDir(), "plugins.lock")
	path := testBinary(t, from, "x")
	if err := os.WriteFile(path+".json", []byte(`{"version":"1","schemes":["x+other"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also over itself
		st, err := Install(lock, dir, path)
		if err != nil || st.Path != filepath.Join(dir, "hermes-backend-x") || !st.Trusted {
			t.Fatalf("Install: %+v, %v", st, err)
		}
	}
	r := testRegistry(t, Config{Dirs: []string{dir}, LockFile: lock})
	if f, err := r.find("x+other"); err != nil || f.name != "x" {
		t.Errorf("by the manifest's scheme: %+v, %v", f, err)
	}
	trusted, err := readTrust(lock)
	if err != nil || len(trusted.Plugins) != 1 {
		t.Errorf("the lock: %+v, %v", trusted, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".install-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}

	_, err = Install(lock, dir, filepath.Join(from, "x"))
	wantError(t, err, sdk.ErrInvalid, "not called hermes-backend-NAME", "rename")
}

func TestTrustIsWrittenByManyAtOnce(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "plugins.lock")
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			e := trustEntry{Name: fmt.Sprint("p", i), Path: "/p", SHA256: strings.Repeat("a", 64)}
			if err := addTrust(lock, e); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if trusted, err := readTrust(lock); err != nil || len(trusted.Plugins) != 16 {
		t.Errorf("%d entries, %v; want 16", len(trusted.Plugins), err)
	}
}

func TestCorruptLock(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "plugins.lock")
	for _, content := range []string{"", "{", "[]", `{"plugins":[{"name":"x","sha256":"short"}]}`, "\x00\xff"} {
		if err := os.WriteFile(lock, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readTrust(lock)
		wantError(t, err, sdk.ErrInvalid, lock, "hermes plugin trust PATH")
	}
	if err := os.Chmod(lock, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err := readTrust(lock)
	if !errors.Is(err, sdk.ErrPermission) || !strings.Contains(err.Error(), lock) {
		t.Errorf("a lock that everybody may write: %v", err)
	}
}

// TestJunkDirectory: what is wrong with one file is no concern of another's.
func TestJunkDirectory(t *testing.T) {
	junk, second := shortDir(t), shortDir(t)
	good := testBinary(t, junk, "good")
	shadowed := testBinary(t, second, "good")
	lock := filepath.Join(t.TempDir(), "plugins.lock")
	if _, err := Trust(lock, good); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(junk, backendPrefix+name) }
	for _, err := range []error{
		syscall.Mkfifo(at("fifo"), 0o700),
		os.Symlink("/nowhere", at("dangling")),
		os.Mkdir(at("dir"), 0o700),
		os.WriteFile(at("empty"), nil, 0o700),
		os.WriteFile(at("script"), []byte("#!/bin/sh\ntouch "+junk+"/executed\n"), 0o700),
		os.WriteFile(at("Bad_Name"), nil, 0o700),
		os.WriteFile(at("broken.json"), []byte("{"), 0o600),
		syscall.Mkfifo(at("pipe.json"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10_000 {
		if err := os.WriteFile(filepath.Join(junk, fmt.Sprint("junk", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	r := testRegistry(t, Config{Dirs: []string{junk, second, "relative", "/nonexistent"}, LockFile: lock})
	began := time.Now()
	all, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f, err := r.find("good"); err != nil || f.path != good {
		t.Errorf("find: %+v, %v", f, err)
	}
	if _, err := r.find("unheard-of"); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("find: %v", err)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("took %s", d)
	}

	problems := map[string]string{}
	for _, st := range all {
		problems[st.Path] = st.Problem
	}
	if p, ok := problems[good]; !ok || p != "" {
		t.Errorf("the good one: %q, %v", p, ok)
	}
	for path, want := range map[string]string{
		at("fifo"): "not a regular file", at("dangling"): "symbolic link", at("dir"): "not a regular file", at("empty"): "is empty",
		at("script"): "is a script", at("Bad_Name"): "its name", shadowed: "comes first",
	} {
		if !strings.Contains(problems[path], want) {
			t.Errorf("%s: %q; want %q", path, problems[path], want)
		}
	}
	if _, err := os.Stat(filepath.Join(junk, "executed")); err == nil {
		t.Error("discovery executed something")
	}
}
