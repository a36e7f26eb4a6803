package launch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	goplugin "github.com/hashicorp/go-plugin"

	"github.com/hermes-framework/hermes/internal/mustrun"
)

// pluginDir is a directory as a user's plugin directory is: nobody else can write on the way to it, but for sticky /tmp.
func pluginDir(t *testing.T) string {
	t.Helper()
	dir := shortDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// placed is a copy of the bad plugin in dir.
func placed(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(badplugin)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "hermes-backend-bad")
	writeFile(t, path, b, 0o755)
	return path
}

func writeFile(t *testing.T, path string, content []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestBinaryThatMustNotRun(t *testing.T) {
	elf := func(machine uint16) []byte {
		h := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 57)...)
		h[16], h[18], h[19] = 2, byte(machine), byte(machine>>8)
		return h
	}
	foreign, name := elf(183), "linux/arm64"
	if strings.Contains(thisPlatform, "arm64") {
		foreign, name = elf(62), "linux/amd64"
	}
	content := func(b []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) { writeFile(t, path, b, 0o755) }
	}
	tests := []struct {
		name string
		make func(t *testing.T, path string)
		kind Kind
		says string
	}{
		{"missing", func(*testing.T, string) {}, KindNotFound, "no such file"},
		{"empty", content(nil), KindInvalid, "is empty"},
		{"script", content([]byte("#!/bin/sh\necho 1\n")), KindInvalid, "is a script"},
		{"text", content([]byte("hello")), KindInvalid, "is not a native binary"},
		{"foreign", content(foreign), KindIncompatible, name + ", this machine is " + thisPlatform},
		{"windows", content([]byte("MZ\x90\x00")), KindIncompatible, "windows"},
		{"directory", func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o755)) }, KindInvalid, "is not a regular file"},
		{"fifo", func(t *testing.T, path string) { must(t, syscall.Mkfifo(path, 0o755)) }, KindInvalid, "is not a regular file"},
		{"dangling link", func(t *testing.T, path string) { must(t, os.Symlink("/nowhere", path)) }, KindInvalid, "is a symbolic link"},
		{"link", func(t *testing.T, path string) { must(t, os.Symlink(badplugin, path)) }, KindInvalid, "is a symbolic link"},
		{"not executable", func(t *testing.T, path string) { must(t, os.Chmod(placed(t, filepath.Dir(path)), 0o644)) }, KindPermission, "is not executable"},
		{"writable by all", func(t *testing.T, path string) { must(t, os.Chmod(placed(t, filepath.Dir(path)), 0o757)) }, KindPermission, "can be written by everybody"},
		{"directory writable by all", func(t *testing.T, path string) {
			placed(t, filepath.Dir(path))
			must(t, os.Chmod(filepath.Dir(path), 0o777))
		}, KindPermission, "its directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(pluginDir(t), "hermes-backend-bad")
			tt.make(t, path)
			spec := badSpec(t, "ok")
			spec.Path = path
			e := startFails(t, spec)
			if e.Phase != PhaseVerify || e.Kind != tt.kind || !strings.Contains(e.Error(), tt.says) {
				t.Errorf("got %q, %q, %v; want %q and %q", e.Phase, e.Kind, e, tt.kind, tt.says)
			}
			if _, err := Inspect(path); err == nil {
				t.Error("Inspect finds nothing wrong with it")
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBinaryOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		mustrun.Skip(t, "root", "only root can give a file to another user")
	}
	const nobody = 65534
	spec := badSpec(t, "ok")
	spec.Path = placed(t, pluginDir(t))
	must(t, os.Chown(spec.Path, nobody, nobody))
	if e := startFails(t, spec); e.Kind != KindPermission || !strings.Contains(e.Error(), "belongs to user 65534") {
		t.Errorf("their file: %v", e)
	}

	must(t, os.Chown(spec.Path, 0, nobody))
	must(t, os.Chmod(spec.Path, 0o775))
	if e := startFails(t, spec); e.Kind != KindPermission || !strings.Contains(e.Error(), "written by group 65534") {
		t.Errorf("their group's file: %v", e)
	}

	must(t, os.Chown(spec.Path, 0, 0))
	must(t, os.Chmod(spec.Path, 0o775)) // root's own group: a umask of 002
	must(t, os.Chown(filepath.Dir(spec.Path), nobody, 0))
	if e := startFails(t, spec); e.Kind != KindPermission || !strings.Contains(e.Error(), "its directory") {
		t.Errorf("their directory: %v", e)
	}
	must(t, os.Chown(filepath.Dir(spec.Path), 0, 0))
	start(t, spec)
}

// TestStickyDirectoryIsAccepted: /tmp is root's and sticky, so that nobody can replace another's files in it.
func TestStickyDirectoryIsAccepted(t *testing.T) {
	if os.Geteuid() != 0 {
		mustrun.Skip(t, "root", "a sticky directory counts if it is root's")
	}
	spec := badSpec(t, "ok")
	dir := pluginDir(t)
	spec.Path = placed(t, dir)
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	start(t, spec)
}

func TestLinkInTheDirectoryIsFollowed(t *testing.T) {
	real := pluginDir(t)
	placed(t, real)
	link := filepath.Join(pluginDir(t), "link")
	must(t, os.Symlink(real, link))
	spec := badSpec(t, "ok")
	spec.Path = filepath.Join(link, "hermes-backend-bad")
	start(t, spec)
}

// TestVerifiedBytesRun changes the file between the check and the execution.
func TestVerifiedBytesRun(t *testing.T) {
	path, evil := placed(t, pluginDir(t)), placed(t, pluginDir(t))
	f, err := os.OpenFile(evil, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString("evil")
	must(t, errors.Join(err, f.Close()))

	good, err := os.ReadFile(path)
	must(t, err)
	want := sha256.Sum256(good)
	ran := filepath.Join(t.TempDir(), "ran")
	config := plainConfig("rewritten", ran)
	config.Cmd = exec.Command(path, "rewritten", ran)
	config.SecureConfig = &goplugin.SecureConfig{Checksum: want[:], Hash: &trapHash{sha256.New(), func() { must(t, os.Rename(evil, path)) }}}
	plainStart(t, config)
	if sum := sumOf(t, ran); sum == hex.EncodeToString(want[:]) {
		t.Error("control: the bytes that were checked ran; go-plugin has been mended")
	}

	path, evil = placed(t, pluginDir(t)), placed(t, pluginDir(t))
	ran = filepath.Join(t.TempDir(), "ran")
	spec := badSpec(t, "rewritten", ran)
	spec.Path = path
	spec.Check = func(sum string) error {
		if sum != hex.EncodeToString(want[:]) {
			return fmt.Errorf("hash %s", sum)
		}
		b, err := os.ReadFile(evil)
		must(t, err)
		must(t, os.WriteFile(path, append(b, "evil"...), 0o755)) // in place
		return os.Rename(evil, path)                             // and by another file
	}
	start(t, spec)
	if sum := sumOf(t, ran); sum != hex.EncodeToString(want[:]) {
		t.Error("something other than the checked bytes ran")
	}
}

// trapHash does something once the file has been hashed.
type trapHash struct {
	hash.Hash
	spring func()
}

func (h *trapHash) Sum(b []byte) []byte {
	h.spring()
	return h.Hash.Sum(b)
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	eventually(t, path, func() bool { return exists(path) })
	b, err := os.ReadFile(path)
	must(t, err)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestCheckDecides(t *testing.T) {
	spec := badSpec(t, "ok")
	cause := errors.New("is not on the list")
	spec.Check = func(string) error { return cause }
	if e := startFails(t, spec); e.Kind != KindUntrusted || !errors.Is(e, cause) {
		t.Errorf("refused: %v", e)
	}
	spec.Check = nil
	if e := startFails(t, spec); e.Kind != KindUntrusted {
		t.Errorf("nobody asked: %v", e)
	}
}

func TestInspect(t *testing.T) {
	path := placed(t, pluginDir(t))
	b, err := os.ReadFile(path)
	must(t, err)
	sum := sha256.Sum256(b)
	got, err := Inspect(path)
	if want := (Binary{Path: path, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(b))}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestPlatform(t *testing.T) {
	tests := []struct{ head, goos, arch string }{
		{"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00", "linux", "amd64"},
		{"\x7fELF\x02\x01\x01\x09\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00", "freebsd", "amd64"},
		{"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00\xb7\x00", "linux", "arm64"},
		{"\x7fELF\x02\x02\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x16", "linux", "s390x"},
		{"\xcf\xfa\xed\xfe\x0c\x00\x00\x01", "darwin", "arm64"},
		{"\xca\xfe\xba\xbe\x00\x00\x00\x02", "darwin", universal},
	}
	for _, tt := range tests {
		goos, arch, err := platform([]byte(tt.head))
		if err != nil || goos != tt.goos || arch != tt.arch {
			t.Errorf("%q: %s/%s, %v; want %s/%s", tt.head, goos, arch, err, tt.goos, tt.arch)
		}
	}
	for _, head := range []string{"\x7fELF", "\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x3e\x00", "\xca\xfe\xba\xbe\x00\x00\x00\x34"} {
		if goos, arch, err := platform([]byte(head)); err == nil {
			t.Errorf("%q: %s/%s; want an error: no program", head, goos, arch)
		}
	}
}

func FuzzPlatform(f *testing.F) {
	f.Add([]byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00"))
	f.Add([]byte("\xcf\xfa\xed\xfe\x0c\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, head []byte) {
		goos, arch, err := platform(head)
		if (err == nil) != (goos != "" && arch != "") {
			t.Errorf("%s/%s, %v", goos, arch, err)
		}
	})
}

const thisPlatform = runtime.GOOS + "/" + runtime.GOARCH
