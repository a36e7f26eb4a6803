// Package secfile keeps files that only their owner can read.
//
// Its errors are *sdk.Error: CodePermission for what others could read or change, with what to do; else as the file system says.
package secfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Files that only their owner can read: session records, locks, the list of trusted plugins.

const (
	maxPrivateFile = 16 << 20
	lockPollMin    = 5 * time.Millisecond
	lockPollMax    = 100 * time.Millisecond
)

// MakeDir makes the directory at path, 0700, and those above it that are missing. One that is there must be a
// directory of ours that nobody else can enter; it is not changed.
func MakeDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Explain(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return Explain(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Explain(&fs.PathError{Op: "lstat", Path: path, Err: err})
	}
	if uint32(st.Mode)&unix.S_IFMT != unix.S_IFDIR { //nolint:unconvert // 16 bits on macOS
		return insecure(path, "is not a directory", "move it away, or name another directory")
	}
	return checkPrivate(path, st, 0o077, "chmod 700")
}

// Read reads the file at path. It refuses one that is a link, that belongs to somebody else, or that others may read or write.
func Read(path string) ([]byte, error) { return ReadOwned(path, 0o077) }

// ReadOwned is Read for a file on which others may have the rights that are not in forbidden.
func ReadOwned(path string, forbidden uint32) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, insecure(path, "is a symbolic link", "remove it")
	}
	if err != nil {
		return nil, Explain(&fs.PathError{Op: "open", Path: path, Err: err})
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }() // only read from

	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, Explain(&fs.PathError{Op: "fstat", Path: path, Err: err})
	}
	if uint32(st.Mode)&unix.S_IFMT != unix.S_IFREG { //nolint:unconvert // 16 bits on macOS
		return nil, insecure(path, "is not a regular file", "remove it")
	}
	if err := checkPrivate(path, st, forbidden, "chmod 600"); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxPrivateFile+1))
	switch {
	case err != nil:
		return nil, Explain(err)
	case len(data) > maxPrivateFile:
		return nil, sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "%s: larger than %d bytes", path, maxPrivateFile)
	}
	return data, nil
}

func checkPrivate(path string, st unix.Stat_t, forbidden uint32, chmod string) error {
	if me := os.Geteuid(); int(st.Uid) != me {
		return insecure(path, fmt.Sprintf("belongs to user %d, not to you (%d)", st.Uid, me), "remove it or name another place")
	}
	if mode := uint32(st.Mode) & 0o777; mode&forbidden != 0 { //nolint:unconvert // 16 bits on macOS
		return insecure(path, fmt.Sprintf("is open to other users (mode %04o)", mode), fmt.Sprintf("%s %s", chmod, path))
	}
	return nil
}

// Write replaces the file at path with data: readers see the old content or the new, and nobody but the owner sees either.
func Write(path string, data []byte) error {
	// CreateTemp makes the file 0600 from the start.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return Explain(err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync() // after a crash the name must not lead to an empty file
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error tells more
		return Explain(err)
	}
	return nil
}

// Lock takes an exclusive lock on the file at path, which it makes (0600) if need be, and waits for whoever has it until ctx is done.
// The file stays; the lock goes with unlock or with the process.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, insecure(path, "is a symbolic link", "remove it")
	}
	if err != nil {
		return nil, Explain(&fs.PathError{Op: "open", Path: path, Err: err})
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = f.Close() // nothing was written
		return nil, Explain(&fs.PathError{Op: "fstat", Path: path, Err: err})
	}
	if err := checkPrivate(path, st, 0o022, "chmod 600"); err != nil { // who can write could hold the lock for ever
		_ = f.Close()
		return nil, err
	}

	for wait := lockPollMin; ; wait = min(2*wait, lockPollMax) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing unlocks
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close() // nothing was written
			return nil, Explain(&fs.PathError{Op: "flock", Path: path, Err: err})
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			_ = f.Close()
			err := context.Cause(ctx)
			return nil, sdk.Errorf(sdk.AsError(ctx.Err(), sdk.NotStarted).Code, sdk.NotStarted,
				"%s: somebody else holds the lock: %w", path, err)
		}
	}
}

// insecure is the error about a file that cannot be relied on.
func insecure(path, what, hint string) error {
	return sdk.Errorf(sdk.CodePermission, sdk.NotStarted, "%s %s", path, what).WithHint("%s", hint)
}

// Explain classifies an error of the file system, whose text names the file, and says what to do where that is known. Nil stays nil.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	classified := sdk.AsError(err, sdk.NotStarted)
	if classified.Hint != "" {
		return classified
	}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return classified.WithHint("free some space there, or name another directory")
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return classified.WithHint("give yourself access to it, or name another directory")
	}
	return classified
}
