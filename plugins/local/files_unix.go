//go:build unix

package local

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Put implements sdk.Files: the content goes to a new file beside the target, which is then renamed. Directories are neither made nor changed.
func (e *environment) Put(ctx context.Context, req sdk.PutRequest) (err error) {
	path := e.path(req.Path)
	defer func() { err = fileError(err, "put", path) }()
	if err := checkTarget(path); err != nil {
		return err
	}
	r := req.Content
	if req.Source != "" {
		f, _, err := openRegular(req.Source)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		r = f
	}
	if r == nil {
		return sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "neither a source nor content is given")
	}
	return writeFile(ctx, path, fileMode(req.Mode), r)
}

// fileMode turns permission bits (0: 0600) into a mode.
func fileMode(bits uint32) os.FileMode {
	if bits == 0 {
		return 0o600
	}
	return os.FileMode(bits & 0o777)
}

func checkTarget(path string) error {
	fi, err := os.Lstat(path)
	switch {
	case path == "":
		return sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "no path is given")
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case fi.IsDir():
		return sdk.Errorf(sdk.CodeConflict, sdk.NotStarted, "a directory is there")
	case !fi.Mode().IsRegular() && fi.Mode().Type() != os.ModeSymlink:
		return sdk.Errorf(sdk.CodeConflict, sdk.NotStarted, "something that is not a file is there")
	}
	return nil
}

func writeFile(ctx context.Context, path string, mode os.FileMode, r io.Reader) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".hermes-put-*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, &ctxReader{ctx, r}, make([]byte, sdk.MaxChunk))
	if err == nil {
		err = f.Chmod(mode)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// ctxReader is a reader that ends with ctx.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

// Get implements sdk.Files.
func (e *environment) Get(ctx context.Context, path string, w io.Writer) (info sdk.FileInfo, err error) {
	path = e.path(path)
	defer func() { err = fileError(err, "get", path) }()
	f, mode, err := openRegular(path)
	if err != nil {
		return sdk.FileInfo{}, err
	}
	defer func() { _ = f.Close() }()
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, &ctxReader{ctx, f}, make([]byte, sdk.MaxChunk))
	if err != nil {
		return sdk.FileInfo{}, err
	}
	return sdk.FileInfo{Size: n, Mode: uint32(mode.Perm())}, nil
}

// openRegular opens a file for reading; a pipe or a device, on which that could wait for ever, is refused.
func openRegular(path string) (*os.File, os.FileMode, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "%s is not a regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, fi.Mode(), nil
}

// fileError names what was done with which file. Nothing of a Put that failed is left.
func fileError(err error, what, path string) error {
	if err == nil {
		return nil
	}
	return sdk.Errorf(sdk.AsError(err, sdk.NotStarted).Code, sdk.NotStarted, "%s %s: %w", what, path, unwrapPath(err))
}

// unwrapPath leaves the path out that the operating system's errors name again.
func unwrapPath(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}
