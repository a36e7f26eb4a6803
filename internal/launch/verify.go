package launch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Binary is a plugin's binary as it was found.
type Binary struct {
	Path   string // absolute, the links in its directory resolved
	SHA256 string // lower-case hex
	Size   int64
}

// Inspect reads the binary at path and checks all that Start would check. It executes nothing.
func Inspect(path string) (Binary, error) {
	return Copy(path, io.Discard)
}

// Copy is Inspect that also writes what it read to w: the hash is that of the bytes written.
func Copy(path string, w io.Writer) (Binary, error) {
	s := Spec{Path: path}
	f, resolved, err := s.openBinary()
	if err != nil {
		return Binary{}, err
	}
	defer func() { _ = f.Close() }() // only read from
	sum, size, err := copyHash(w, f)
	if err != nil {
		return Binary{}, s.fail(PhaseVerify, kindOf(err), err.Error(), err)
	}
	return Binary{Path: resolved, SHA256: sum, Size: size}, nil
}

// Glance makes the checks of Inspect without reading more than the beginning of the file.
func Glance(path string) error {
	f, _, err := Spec{Path: path}.openBinary()
	if err != nil {
		return err
	}
	return f.Close()
}

// prepare makes the run directory and, in it, the verified copy that will be executed.
func prepare(spec Spec) (*Dir, string, error) {
	if spec.Trusted {
		return prepareTrusted(spec)
	}

	f, _, err := spec.openBinary()
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = f.Close() }() // only read from
	dir, err := spec.newRunDir(true)
	if err != nil {
		return nil, "", err
	}

	binary := filepath.Join(dir.path, copyName)
	sum, err := writeCopy(binary, f)
	if err != nil {
		_ = dir.Remove() // the first error tells more
		e := spec.fail(PhaseDirectory, kindOf(err), "cannot be copied: "+err.Error(), err)
		if e.Kind == KindExhausted {
			e.Hint = "make room there, or set XDG_RUNTIME_DIR or TMPDIR to a directory with more"
		}
		return nil, "", e
	}
	if err := spec.check(sum); err != nil {
		_ = dir.Remove() // the first error tells more
		return nil, "", spec.fail(PhaseVerify, KindUntrusted, err.Error(), err)
	}
	return dir, binary, nil
}

func (s Spec) check(sum string) error {
	if s.Check == nil {
		return errors.New("nothing says that it may run")
	}
	return s.Check(sum)
}

func prepareTrusted(spec Spec) (*Dir, string, error) {
	binary := spec.Path
	if binary == "" {
		self, err := selfExecutable()
		if err != nil {
			return nil, "", spec.fail(PhaseVerify, kindOf(err), "the running program cannot be found: "+err.Error(), err)
		}
		binary = self
	}
	dir, err := spec.newRunDir(false)
	if err != nil {
		return nil, "", err
	}
	return dir, binary, nil
}

func (s Spec) newRunDir(forCopy bool) (*Dir, error) {
	dir, err := newRunDir(s.RuntimeDir, forCopy)
	if err == nil {
		return dir, nil
	}
	e := s.fail(PhaseDirectory, kindOf(err), "no run directory for it: "+oneLine(err), err)
	e.Hint = limitHint(err, "set XDG_RUNTIME_DIR or TMPDIR to a short, writable directory of yours where programs may run")
	return nil, e
}

// selfExecutable is the program that is running, even if its file has been replaced since.
func selfExecutable() (string, error) {
	if runtime.GOOS == "linux" {
		if _, err := os.Stat("/proc/self/exe"); err == nil {
			return "/proc/self/exe", nil
		}
	}
	return os.Executable()
}

// openBinary opens the file, once, and checks what was opened: that nobody else can have written it or put it there, and that this
// machine can run it.
func (s Spec) openBinary() (*os.File, string, error) {
	abs, err := filepath.Abs(s.Path)
	if err != nil {
		return nil, "", s.fail(PhaseVerify, KindInternal, err.Error(), err)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return nil, "", s.fail(PhaseVerify, kindOf(err), reason(err), err)
	}
	if err := checkParents(dir); err != nil {
		e := s.fail(PhaseVerify, KindPermission, err.Error(), nil)
		e.Hint = "install a copy where only you can write: hermes plugin install " + s.Path
		return nil, "", e
	}

	path := filepath.Join(dir, filepath.Base(abs))
	f, err := openRegular(path)
	if err != nil {
		return nil, "", s.openError(err)
	}
	if err := s.checkOpened(f); err != nil {
		_ = f.Close() // only read from
		return nil, "", err
	}
	return f, path, nil
}

// openRegular opens without following a link and without waiting for the other end of a FIFO.
func openRegular(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (s Spec) openError(err error) *Error {
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) {
		e := s.fail(PhaseVerify, KindInvalid, "is a symbolic link", err)
		e.Hint = "name the file itself"
		return e
	}
	return s.fail(PhaseVerify, kindOf(err), reason(err), err)
}

func (s Spec) checkOpened(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return s.fail(PhaseVerify, KindInternal, err.Error(), err)
	}
	mode := uint32(st.Mode) //nolint:unconvert // 16 bits on macOS
	if mode&unix.S_IFMT != unix.S_IFREG {
		return s.fail(PhaseVerify, KindInvalid, "is not a regular file", nil)
	}
	if err := checkOwner(mode, st.Uid, st.Gid); err != nil {
		e := s.fail(PhaseVerify, KindPermission, err.Error(), nil)
		e.Hint = "chown it to yourself, chmod go-w, and look at what it is before you trust it"
		return e
	}
	if mode&0o111 == 0 {
		e := s.fail(PhaseVerify, KindPermission, "is not executable", nil)
		e.Hint = "chmod +x " + s.Path
		return e
	}

	head := make([]byte, 64)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return s.fail(PhaseVerify, kindOf(err), err.Error(), err)
	}
	if kind, err := checkNative(head[:n]); err != nil {
		e := s.fail(PhaseVerify, kind, err.Error(), nil)
		e.Hint = "a plugin is a native binary for " + runtime.GOOS + "/" + runtime.GOARCH
		return e
	}
	return nil
}

// checkParents checks that nobody else can replace something on the way to a file in dir, whose links are resolved.
func checkParents(dir string) error {
	for {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: dir, Err: err}
		}
		mode := uint32(st.Mode) //nolint:unconvert // 16 bits on macOS
		sticky := mode&unix.S_ISVTX != 0 && st.Uid == 0
		if err := checkOwner(mode, st.Uid, st.Gid); err != nil && !sticky {
			return fmt.Errorf("its directory %s %w", dir, err)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return nil
		}
		dir = parent
	}
}

// checkOwner checks that only root and we can write something. A group may if it is the user's private one, which has
// his number and no other member; on Debian every user has one, and a umask of 002.
func checkOwner(mode, uid, gid uint32) error {
	me := uint32(os.Geteuid())
	if uid != 0 && uid != me {
		return fmt.Errorf("belongs to user %d, neither to you nor to root", uid)
	}
	if mode&0o002 != 0 {
		return errors.New("can be written by everybody")
	}
	if private := gid == uid && (gid == 0 || gid == me); mode&0o020 != 0 && !private {
		return fmt.Errorf("can be written by group %d", gid)
	}
	return nil
}

// writeCopy writes what f holds to a new file at path and returns its hash.
func writeCopy(path string, f io.Reader) (string, error) {
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700) //nolint:gosec // a program
	if err != nil {
		return "", err
	}
	sum, _, err := copyHash(w, f)
	return sum, errors.Join(err, w.Close())
}

func copyHash(w io.Writer, r io.Reader) (sum string, size int64, err error) {
	h := sha256.New()
	size, err = io.CopyBuffer(io.MultiWriter(h, w), onlyReader{r}, make([]byte, 1<<20))
	return hex.EncodeToString(h.Sum(nil)), size, err
}

// onlyReader hides WriterTo, which would undo the large buffer.
type onlyReader struct{ io.Reader }

// reason is err without the path, which the message has already.
func reason(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}
