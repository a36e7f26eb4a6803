package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hermes-framework/hermes/core/secfile"
	"github.com/hermes-framework/hermes/internal/launch"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// trust is plugins.lock: the binaries that its owner lets run.
type trust struct {
	file    string
	Plugins []trustEntry `json:"plugins"`
}

// trustEntry is one binary: these bytes, under this name, at this path.
type trustEntry struct {
	Name    string    `json:"name"`
	Path    string    `json:"path,omitempty"` // empty: wherever it is
	SHA256  string    `json:"sha256"`
	Size    int64     `json:"size"`
	Trusted time.Time `json:"trusted"`
}

// trustWait bounds the wait for another program that writes the lock.
const trustWait = 10 * time.Second

// readTrust reads the lock. One that is not there trusts nothing; a file name that is empty likewise.
func readTrust(file string) (trust, error) {
	t := trust{file: file}
	if file == "" {
		return t, nil
	}
	data, err := secfile.ReadOwned(file, 0o022)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, fmt.Errorf("plugins.lock: %w", err)
	}
	if err := json.Unmarshal(data, &t); err != nil {
		return t, corruptTrust(file, err.Error())
	}
	for _, e := range t.Plugins {
		if !backendName.MatchString(e.Name) || len(e.SHA256) != 64 || strings.Trim(e.SHA256, "0123456789abcdef") != "" {
			return t, corruptTrust(file, fmt.Sprintf("the entry for %q is incomplete", e.Name))
		}
	}
	return t, nil
}

func corruptTrust(file, what string) error {
	return sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "plugins.lock: %s is corrupt: %s", file, what).
		WithHint("move it away and trust the plugins again: hermes plugin trust PATH")
}

// check says whether the bytes with this hash may run as the backend called name that was found at path.
func (t trust) check(name, path, sum string) error {
	known := false
	for _, e := range t.Plugins {
		if e.Name != name || (e.Path != "" && !samePath(e.Path, path)) {
			continue
		}
		if e.SHA256 == sum {
			return nil
		}
		known = true
	}
	if known {
		return sdk.Errorf(sdk.CodeUntrusted, sdk.NotStarted, "has changed since it was trusted").
			WithHint("if you know why: hermes plugin trust %s", path)
	}
	return untrusted(path)
}

func untrusted(path string) *sdk.Error {
	return sdk.Errorf(sdk.CodeUntrusted, sdk.NotStarted, "is not trusted").
		WithHint("hermes plugin trust %s", path)
}

// knows says whether check could say yes to a file of this size.
func (t trust) knows(name string, size int64) bool {
	return slices.ContainsFunc(t.Plugins, func(e trustEntry) bool {
		return e.Name == name && (e.Size == 0 || e.Size == size)
	})
}

// samePath compares two paths of binaries; the directories may be reached through links.
func samePath(a, b string) bool {
	return a == b || resolveDir(a) == resolveDir(b)
}

func resolveDir(path string) string {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return path
	}
	return filepath.Join(dir, filepath.Base(path))
}

// Trust lets the backend binary at path run: it writes its name, path and hash to lockFile. Several programs may do so at once. The file must be called
// hermes-backend-NAME, and only its owner and root may be able to change it. It is read, not executed.
func Trust(lockFile, path string) (PluginStatus, error) {
	name, err := nameOf(path)
	if err != nil {
		return PluginStatus{}, err
	}
	bin, err := launch.Inspect(path)
	if err != nil {
		return PluginStatus{}, startError(err)
	}
	return recordTrust(lockFile, name, bin)
}

// Install copies the backend binary at path into dir, which it makes if need be, and trusts the copy. A manifest beside it
// (hermes-backend-NAME.json) is copied too. An older one of the same name is replaced.
func Install(lockFile, dir, path string) (PluginStatus, error) {
	name, err := nameOf(path)
	if err != nil {
		return PluginStatus{}, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return PluginStatus{}, secfile.Explain(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // what is in it is no secret
		return PluginStatus{}, secfile.Explain(err)
	}
	bin, err := copyPlugin(path, filepath.Join(dir, backendPrefix+name))
	if err != nil {
		return PluginStatus{}, err
	}
	if err := copyManifest(path, bin.Path); err != nil {
		return PluginStatus{}, err
	}
	return recordTrust(lockFile, name, bin)
}

// nameOf is NAME of a path that ends in hermes-backend-NAME.
func nameOf(path string) (string, error) {
	name, ok := strings.CutPrefix(filepath.Base(path), backendPrefix)
	if !ok || !backendName.MatchString(name) {
		return "", sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "%s: not called %sNAME", path, backendPrefix).
			WithHint("rename it; NAME has lower-case letters, digits, '-' and '+'")
	}
	return name, nil
}

// copyPlugin copies a binary, hashing what it writes, and puts it in its place whole.
func copyPlugin(from, to string) (launch.Binary, error) {
	tmp, err := os.CreateTemp(filepath.Dir(to), ".install-*")
	if err != nil {
		return launch.Binary{}, secfile.Explain(err)
	}
	bin, err := launch.Copy(from, tmp)
	if err != nil {
		err = startError(err)
	} else {
		err = errors.Join(tmp.Chmod(0o755), tmp.Sync())
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), to)
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // the first error tells more
		return launch.Binary{}, secfile.Explain(err)
	}
	bin.Path = resolveDir(to)
	return bin, nil
}

// copyManifest copies the manifest that stands beside from, if one does.
func copyManifest(from, to string) error {
	data, err := os.ReadFile(from + ".json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return secfile.Explain(err)
	}
	if err := os.WriteFile(to+".json", data, 0o644); err != nil { //nolint:gosec // no secret
		return secfile.Explain(err)
	}
	return nil
}

func recordTrust(lockFile, name string, bin launch.Binary) (PluginStatus, error) {
	entry := trustEntry{Name: name, Path: bin.Path, SHA256: bin.SHA256, Size: bin.Size, Trusted: time.Now().UTC().Truncate(time.Second)}
	if err := addTrust(lockFile, entry); err != nil {
		return PluginStatus{}, err
	}
	return PluginStatus{Name: name, Path: bin.Path, Trusted: true, SHA256: bin.SHA256, State: stateStopped}, nil
}

// addTrust puts an entry in the lock, in place of the one for the same name and path.
func addTrust(file string, entry trustEntry) error {
	if file == "" {
		return sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "no plugins.lock is configured")
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return secfile.Explain(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), trustWait) //nolint:forbidigo // a short wait that nobody needs to cut shorter
	defer cancel()
	unlock, err := secfile.Lock(ctx, filepath.Join(dir, ".plugins.lock.lock"))
	if err != nil {
		return err
	}
	defer unlock()

	t, err := readTrust(file)
	if err != nil {
		return err
	}
	t.Plugins = slices.DeleteFunc(t.Plugins, func(e trustEntry) bool {
		return e.Name == entry.Name && (e.Path == entry.Path || e.Path == "")
	})
	t.Plugins = append(t.Plugins, entry)
	slices.SortFunc(t.Plugins, byPath)
	data, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}
	return secfile.Write(file, append(data, '\n'))
}
