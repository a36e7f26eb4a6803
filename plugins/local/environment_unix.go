//go:build unix

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// environment is this machine, with a default directory.
type environment struct {
	backend *backend
	id      string
	dir     string // of commands and files that name none, or a relative one

	ctx  context.Context // ends at Close
	stop context.CancelCauseFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

var (
	_ sdk.Environment = (*environment)(nil)
	_ sdk.Dialer      = (*environment)(nil)
	_ sdk.Files       = (*environment)(nil)
)

var capabilities = append([]sdk.Capability{
	sdk.CapStdin,
	sdk.CapStream,
	sdk.CapSignal,
	sdk.CapTTY,
	sdk.CapFiles,
	sdk.CapSocket,
	sdk.CapDetach,
}, platformCapabilities...)

func newEnvironment(ctx context.Context, b *backend, id, dir string) (*environment, error) {
	if dir == "" {
		var err error
		if dir, err = home(); err != nil {
			return nil, err
		}
	}
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	e := &environment{backend: b, id: id, dir: dir}
	e.ctx, e.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	return e, nil
}

// home returns the user's home directory; one without any works in the root directory, as after a login.
func home() (string, error) {
	if dir := os.Getenv("HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	if u, err := user.Current(); err == nil && filepath.IsAbs(u.HomeDir) {
		return u.HomeDir, nil
	}
	return "/", nil
}

// checkDir says in a sentence of its own what is wrong with a working directory: an exec that fails for it looks like a missing program.
func checkDir(dir string) error {
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "working directory %s does not exist", dir)
	case err != nil:
		return sdk.Errorf(sdk.AsError(err, sdk.NotStarted).Code, sdk.NotStarted, "working directory %s: %w", dir, err)
	case !fi.IsDir():
		return sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "working directory %s is not a directory", dir)
	}
	return nil
}

// begin counts one call in; the caller calls e.running.Done.
func (e *environment) begin() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return sdk.Errorf(sdk.CodeClosed, sdk.NotStarted, "environment %s is closed", e.id)
	}
	e.running.Add(1)
	return nil
}

// Close implements sdk.Environment: it stops the commands that still run. Processes that a command left behind when it ended by itself stay.
func (e *environment) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.stop(sdk.ErrClosed)

	ended := make(chan struct{})
	go func() { // ends with the commands, each of which is bounded
		e.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		return sdk.Errorf(sdk.CodeTimeout, sdk.Ran, "close: a command is still being stopped: %w", context.Cause(ctx))
	}
	return e.backend.environments.Close(ctx, e.id, func(context.Context, *environment) error { return nil })
}

// path returns where a relative path of a file or directory is.
func (e *environment) path(p string) string {
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(e.dir, p)
}

// inherited are the variables of this process that commands with InheritEnv get: what a login has, nothing of the plugin's.
var inherited = []string{"HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR"}

func inherits(key string) bool {
	return strings.HasPrefix(key, "LC_") || strings.HasPrefix(key, "XDG_") || slices.Contains(inherited, key)
}

// commandEnv returns the environment of a command in dir: each variable once, the last one given wins.
func commandEnv(cmd sdk.Command, dir string) ([]string, error) {
	var base []string
	if cmd.InheritEnv {
		for _, kv := range os.Environ() {
			if key, _, _ := strings.Cut(kv, "="); inherits(key) {
				base = append(base, kv)
			}
		}
		base = append(base, "PWD="+dir)
	}
	for _, kv := range cmd.Env {
		if key, _, ok := strings.Cut(kv, "="); !ok || key == "" || strings.IndexByte(kv, 0) >= 0 {
			return nil, sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "environment variable %q is not of the form NAME=value", key)
		}
	}
	return unique(append(base, cmd.Env...)), nil
}

func unique(env []string) []string {
	last := make(map[string]int, len(env))
	for i, kv := range env {
		key, _, _ := strings.Cut(kv, "=")
		last[key] = i
	}
	out := make([]string, 0, len(last)) // never nil: for os that would mean this process' own
	for i, kv := range env {
		if key, _, _ := strings.Cut(kv, "="); last[key] == i {
			out = append(out, kv)
		}
	}
	return out
}

// defaultPath is where programs are looked for without a PATH, as execvp does.
const defaultPath = "/usr/local/bin:/bin:/usr/bin"

func variable(env []string, name string) (string, bool) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// lookup finds the program name as a command with this environment and directory would.
func lookup(name, dir string, env []string) (string, error) {
	if name == "" {
		return "", sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "the command's name is empty")
	}
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, executable(name)
	}
	path, ok := variable(env, "PATH")
	if !ok {
		path = defaultPath
	}
	var denied error
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		p := filepath.Join(d, name)
		err := executable(p)
		if err == nil {
			return p, nil
		}
		if denied == nil && errors.Is(err, sdk.ErrPermission) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", sdk.Errorf(sdk.CodeNotFound, sdk.NotStarted, "%s: command not found", name).
		WithHint("it was looked for in PATH=%s", path)
}

// executable reports whether the file at path can be executed, as far as can be seen.
func executable(path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return sdk.Errorf(sdk.CodeNotFound, sdk.NotStarted, "%s: no such file", path)
	case err != nil:
		return sdk.Errorf(sdk.AsError(err, sdk.NotStarted).Code, sdk.NotStarted, "%w", err)
	case fi.IsDir():
		return sdk.Errorf(sdk.CodePermission, sdk.NotStarted, "%s: is a directory", path)
	case fi.Mode()&0o111 == 0:
		return sdk.Errorf(sdk.CodePermission, sdk.NotStarted, "%s: not executable", path).WithHint("chmod +x %s", path)
	}
	return nil
}

// startError says why a program that is there could not be started.
func startError(path string, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return sdk.Errorf(sdk.CodeInternal, sdk.NotStarted, "start %s: %w", path, err)
	}
	code, what := sdk.AsError(errno, sdk.NotStarted).Code, errno.Error()
	switch errno {
	case syscall.ENOENT:
		what = "the program that its first line (#!) or its header names is not there"
	case syscall.ENOEXEC:
		code, what = sdk.CodePermission, "not a program of this machine, and it has no first line (#!) that names one"
	case syscall.EACCES:
		what = "permission denied (its mode, or a file system that is mounted noexec)"
	case syscall.E2BIG:
		code, what = sdk.CodeInvalid, "arguments and environment are too long"
	case syscall.EAGAIN:
		what = "no more processes can be made (limit of the user or of the machine)"
	}
	return &sdk.Error{Code: code, Delivery: sdk.NotStarted, Message: fmt.Sprintf("start %s: %s", path, what), Cause: errno}
}
