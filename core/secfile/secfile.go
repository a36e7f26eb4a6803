package core

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

	"github.com/hermes-framework/hermes/plugin"
)

// Files that only their owner can read: session records, locks, the list of trusted plugins.

const (
	maxPrivateFile = 16 << 20
	lockPollMin    = 5 * time.Millisecond
	lockPollMax    = 100 * time.Millisecond
)

// privateDir makes the directory at path, 0700, and those above it that are missing. One that is there must be a
// directory of ours that nobody else can enter; it is not changed.
func privateDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fileError(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fileError(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fileError(&fs.PathError{Op: "lstat", Path: path, Err: err})
	}
	if uint32(st.Mode)&unix.S_IFMT != unix.S_IFDIR { //nolint:unconvert // 16 bits on macOS
		return insecure(path, "is not a directory", "move it away, or name another directory")
	}
	return checkPrivate(path, st, 0o077, "chmod 700")
}

// readPrivate reads the file at path. It refuses one that is a link, that belongs to somebody else, or that others may read or write.
func readPrivate(path string) ([]byte, error) { return readOwned(path, 0o077) }

// readOwned is readPrivate for a file on which others may have the rights that are not in forbidden.
func readOwned(path string, forbidden uint32) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, insecure(path, "is a symbolic link", "remove it")
	}
	if err != nil {
		return nil, fileError(&fs.PathError{Op: "open", Path: path, Err: err})
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }() // only read from

	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fileError(&fs.PathError{Op: "fstat", Path: path, Err: err})
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
		return nil, fileError(err)
	case len(data) > maxPrivateFile:
		return nil, plugin.Errorf(plugin.CodeInvalid, plugin.NotStarted, "%s: larger than %d bytes", path, maxPrivateFile)
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

// writePrivate replaces the file at path with data: readers see the old content or the new, and nobody but the owner sees either.
func writePrivate(path string, data []byte) error {
	// CreateTemp makes the file 0600 from the start.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fileError(err)
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
		return fileError(err)
	}
	return nil
}

// lockFile takes an exclusive lock on the file at path, which it makes (0600) if need be, and waits for whoever has it until ctx is done.
// The file stays; the lock goes with unlock or with the process.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, insecure(path, "is a symbolic link", "remove it")
	}
	if err != nil {
		return nil, fileError(&fs.PathError{Op: "open", Path: path, Err: err})
	}
	f := os.NewFile(uintptr(fd), path)

	for wait := lockPollMin; ; wait = min(2*wait, lockPollMax) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing unlocks
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close() // nothing was written
			return nil, fileError(&fs.PathError{Op: "flock", Path: path, Err: err})
		}
		if err := sleep(ctx, wait); err != nil {
			_ = f.Close()
			return nil, plugin.Errorf(plugin.AsError(err, plugin.NotStarted).Code, plugin.NotStarted,
				"%s: somebody else holds the lock: %w", path, err)
		}
	}
}

// sleep waits for d, or less if ctx is done first; then it returns the cause.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// insecure is the error about a file that cannot be relied on.
func insecure(path, what, hint string) error {
	return plugin.Errorf(plugin.CodePermission, plugin.NotStarted, "%s %s", path, what).WithHint("%s", hint)
}

// fileError classifies an error of the file system, whose text names the file, and says what to do where that is known.
func fileError(err error) error {
	classified := plugin.AsError(err, plugin.NotStarted)
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
