package main

import (
	"os"
	"path/filepath"
	"syscall"
)

// maxRuntimeDir is the longest runtime directory in which the sockets below it still fit a socket address (104 bytes on
// some systems). A longer one is not used.
const maxRuntimeDir = 48

// paths are the places the program keeps things in. An empty one cannot be had, because neither its XDG variable nor HOME is set.
type paths struct {
	config  string // config.yaml
	lock    string // plugins.lock
	state   string // records of named sessions, history of the repl
	data    string // installed plugins
	runtime string // sockets; empty: a fresh private directory
}

func (a *app) paths() paths {
	p := paths{
		config:  a.xdg("XDG_CONFIG_HOME", ".config", "hermes/config.yaml"),
		lock:    a.xdg("XDG_CONFIG_HOME", ".config", "hermes/plugins.lock"),
		state:   a.xdg("XDG_STATE_HOME", ".local/state", "hermes"),
		data:    a.xdg("XDG_DATA_HOME", ".local/share", "hermes/plugins"),
		runtime: a.xdg("XDG_RUNTIME_DIR", "", "hermes"),
	}
	if p.runtime != "" && runtimeProblem(p.runtime) != "" {
		p.runtime = ""
	}

	return p
}

// xdg returns name in the directory of an XDG variable, or of its default below HOME. A relative value counts as unset, as
// the specification says.
func (a *app) xdg(variable, fallback, name string) string {
	if dir := a.getenv(variable); filepath.IsAbs(dir) {
		return filepath.Join(dir, name)
	}
	if home := a.getenv("HOME"); fallback != "" && filepath.IsAbs(home) {
		return filepath.Join(home, fallback, name)
	}

	return ""
}

// writable is access's W_OK.
const writable = 2

// runtimeProblem says why dir cannot hold sockets, or nothing. The directory above it must be there, ours and private.
func runtimeProblem(dir string) string {
	if len(dir) > maxRuntimeDir {
		return "its path is too long for sockets"
	}
	for _, d := range []string{filepath.Dir(dir), dir} {
		info, err := os.Lstat(d)
		switch {
		case os.IsNotExist(err) && d == dir:
			return ""
		case os.IsNotExist(err):
			return d + " is not there"
		case err != nil:
			return err.Error()
		case !info.IsDir():
			return d + " is no directory"
		case info.Mode().Perm() != 0o700:
			return d + " has mode " + info.Mode().Perm().String() + ", not 0700"
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Getuid() {
			return d + " belongs to another user"
		}
		if err := syscall.Access(d, writable); err != nil {
			return d + " cannot be written: " + err.Error()
		}
	}

	return ""
}

// pluginDirs are searched in order: what the user configured, what was installed, what lies beside this program.
func (p paths) pluginDirs(configured []string) []string {
	dirs := append([]string(nil), configured...)
	if p.data != "" {
		dirs = append(dirs, p.data)
	}
	if exe, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(exe))
	}

	return dirs
}
