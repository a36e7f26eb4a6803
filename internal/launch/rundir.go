package launch

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// OwnerPrefix begins the names of directories that MakeDir makes for a whole program, with run directories in them.
	OwnerPrefix = "hermes-engine-"

	// fallbackBase is where run directories go that find no room under Spec.RuntimeDir.
	fallbackBase   = "/tmp"
	runPrefix      = "run-"
	newPrefix      = ".hermes-new-" // not yet locked
	fallbackPrefix = "hermes-run-"
	recordName     = "process"
	copyName       = "plugin"
	// socketName is the longest name that go-plugin gives a socket: "plugin" and a random uint32.
	socketName = len("/plugin4294967295")
)

// maxSocketPath is the longest path that fits sockaddr_un, without its final NUL.
var maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// Dir is a directory that its maker has to itself, 0700: one launch's run directory, or a program's. Its lock is held until it is
// removed, and the kernel frees it when this process dies: a directory whose lock is free is a leftover.
type Dir struct {
	path string
	lock *os.File // the directory itself
}

// Path is the directory's path.
func (d *Dir) Path() string { return d.path }

// newRunDir makes a run directory: under base if a socket path fits there and, for a copy, programs can run there.
func newRunDir(base string, forCopy bool) (*Dir, error) {
	var problems []error
	for _, c := range []struct{ base, prefix string }{{base, runPrefix}, {fallbackBase, fallbackPrefix}} {
		if err := usableBase(c.base, c.prefix, forCopy); err != nil {
			problems = append(problems, err)
			continue
		}
		d, err := MakeDir(c.base, c.prefix)
		if err == nil {
			return d, nil
		}
		problems = append(problems, err)
	}
	return nil, errors.Join(problems...)
}

func usableBase(base, prefix string, forCopy bool) error {
	if n := len(base) + 1 + len(prefix) + 8 + socketName; n > maxSocketPath {
		return fmt.Errorf("%s: too long for a socket, by %d bytes", base, n-maxSocketPath)
	}
	if forCopy && noexec(base) {
		return fmt.Errorf("%s: its file system is mounted noexec", base)
	}
	return nil
}

// MakeDir makes a directory in base, named by prefix and a random number, and locks it. Its first name is one that no sweep looks
// at; it gets its own once it is locked.
func MakeDir(base, prefix string) (*Dir, error) {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	name := hex.EncodeToString(random[:])
	path, unborn := filepath.Join(base, prefix+name), filepath.Join(base, newPrefix+name)

	if err := os.Mkdir(unborn, 0o700); err != nil {
		return nil, err
	}
	lock, err := lockAndName(unborn, path)
	if err != nil {
		_ = os.Remove(unborn) // the first error tells more
		return nil, err
	}
	return &Dir{path: path, lock: lock}, nil
}

func lockAndName(unborn, path string) (*os.File, error) {
	lock, err := os.Open(unborn)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = os.Rename(unborn, path)
	}
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("%s: %w", unborn, err)
	}
	return lock, nil
}

// record notes which process lives here, for the sweep of a later host. A pid alone would not identify it.
func (d *Dir) record(pid int) {
	id, err := identify(pid)
	if err != nil {
		return // it is gone already
	}
	b, err := json.Marshal(id)
	if err != nil {
		return
	}
	_ = os.WriteFile(filepath.Join(d.path, recordName), b, 0o600) // without it only the sweep's kill is lost; the parent-death signal comes first
}

// Remove removes the directory with what is in it.
func (d *Dir) Remove() error { return errors.Join(os.RemoveAll(d.path), d.lock.Close()) }

// identity identifies a process beyond the reuse of its pid.
type identity struct {
	PID   int    `json:"pid"`
	Start string `json:"start"`
	Boot  string `json:"boot"`
}

// Sweep removes what programs that died have left in base and in the fallback directory: plugins that are still alive are
// killed, directories removed. It returns the directories that it removed.
func Sweep(base string) []string {
	return append(sweepBase(base, runPrefix, OwnerPrefix), sweepBase(fallbackBase, fallbackPrefix, OwnerPrefix)...)
}

func sweepBase(base string, prefixes ...string) []string {
	entries, err := os.ReadDir(base)
	if err != nil {
		return nil
	}
	var swept []string
	for _, e := range entries {
		has := func(prefix string) bool { return strings.HasPrefix(e.Name(), prefix) }
		if !e.IsDir() {
			continue
		}
		path := filepath.Join(base, e.Name())
		if (slices.ContainsFunc(prefixes, has) && sweepOne(path, 0)) || (has(newPrefix) && sweepOne(path, time.Minute)) {
			swept = append(swept, path)
		}
	}
	return swept
}

// sweepOne removes a directory of ours that is at least so old and whose lock is free.
func sweepOne(path string, age time.Duration) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	dir := os.NewFile(uintptr(fd), path)
	defer func() { _ = dir.Close() }() // only locked

	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || int(st.Uid) != os.Geteuid() || time.Since(time.Unix(st.Mtim.Unix())) < age {
		return false
	}
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	killRecorded(filepath.Join(path, recordName))
	if inner, err := os.ReadDir(path); err == nil { // a program's: the launches in it have died with it
		for _, e := range inner {
			killRecorded(filepath.Join(path, e.Name(), recordName))
		}
	}
	return os.RemoveAll(path) == nil
}

// killRecorded kills the process group that a record names, if it is still that process.
func killRecorded(record string) {
	b, err := os.ReadFile(record)
	if err != nil {
		return
	}
	var want identity
	if json.Unmarshal(b, &want) != nil || want.PID <= 1 || want.Start == "" || want.Boot == "" {
		return
	}
	if got, err := identify(want.PID); err == nil && got == want {
		signalGroup(want.PID, syscall.SIGKILL)
	}
}
