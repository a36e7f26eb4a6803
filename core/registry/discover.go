package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hermes-framework/hermes/internal/launch"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Discovery looks at names and reads files. It executes nothing, and what is wrong with one file is no concern of another's.

// backendPrefix begins the name of every backend binary.
const backendPrefix = "hermes-backend-"

// maxManifest bounds hermes-backend-NAME.json.
const maxManifest = 64 << 10

var backendName = regexp.MustCompile(`^[a-z0-9][a-z0-9+-]{0,62}$`)

// manifest is hermes-backend-NAME.json, which may stand beside a binary.
type manifest struct {
	Version     string   `json:"version"`
	Description string   `json:"description"`
	Schemes     []string `json:"schemes"`
}

// found is a backend that find has found.
type found struct {
	name    string
	path    string   // of the binary; empty for the running program
	builtin *Builtin // nil for a binary in a directory
}

// find looks for the backend called name, then for one whose manifest claims name as a scheme.
func (r *Registry) find(name string) (found, error) {
	if !backendName.MatchString(name) {
		return found{}, sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "backend %q: not a name of a backend", name).
			WithHint("a name has lower-case letters, digits, '-' and '+'")
	}
	if f, ok := r.findNamed(name); ok {
		return f, nil
	}
	for _, dir := range r.cfg.Dirs {
		if claimant := schemeOwner(dir, name); claimant != "" {
			if f, ok := r.findNamed(claimant); ok {
				return f, nil
			}
		}
	}
	return found{}, r.notInstalled(name)
}

func (r *Registry) findNamed(name string) (found, bool) {
	for i := range r.cfg.Builtin {
		if b := &r.cfg.Builtin[i]; b.Name == name {
			return found{name: name, path: b.Path, builtin: b}, true
		}
	}
	for _, dir := range r.cfg.Dirs {
		if dir == "" || !filepath.IsAbs(dir) {
			continue // a relative one would depend on the working directory
		}
		path := filepath.Join(dir, backendPrefix+name)
		if _, err := os.Lstat(path); err == nil {
			return found{name: name, path: path}, true
		}
	}
	return found{}, false
}

// fingerprint changes when the binary of a backend does. It is for noticing, not for trusting.
func (r *Registry) fingerprint(name string) string {
	f, ok := r.findNamed(name)
	if !ok {
		return ""
	}
	info, err := os.Stat(f.path)
	if err != nil {
		return f.path
	}
	return fmt.Sprint(f.path, info.Size(), info.ModTime().UnixNano())
}

func (r *Registry) notInstalled(name string) error {
	where := "no plugin directory is configured"
	if len(r.cfg.Dirs) > 0 {
		where = fmt.Sprintf("no %s%s in %s", backendPrefix, name, strings.Join(r.cfg.Dirs, ", "))
	}
	hint := fmt.Sprintf("hermes plugin install PATH, with the path of the %s%s that you built or downloaded", backendPrefix, name)
	if names := r.builtinNames(); names != "" {
		hint += "; built in: " + names
	}
	return sdk.Errorf(sdk.CodeNotFound, sdk.NotStarted, "backend %s: not installed: %s", name, where).WithHint("%s", hint)
}

func (r *Registry) builtinNames() string {
	names := make([]string, len(r.cfg.Builtin))
	for i, b := range r.cfg.Builtin {
		names[i] = b.Name
	}
	return strings.Join(names, ", ")
}

// schemeOwner is the name of the backend in dir whose manifest claims the scheme.
func schemeOwner(dir, scheme string) string {
	if !filepath.IsAbs(dir) {
		return ""
	}
	for _, e := range readDir(dir) {
		name, ok := manifestName(e.Name())
		if !ok || !e.Type().IsRegular() {
			continue
		}
		if m, err := readManifest(filepath.Join(dir, e.Name())); err == nil && slices.Contains(m.Schemes, scheme) {
			return name
		}
	}
	return ""
}

// manifestName is NAME in hermes-backend-NAME.json.
func manifestName(file string) (string, bool) {
	name, ok := strings.CutPrefix(file, backendPrefix)
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, ".json")
	return name, ok && backendName.MatchString(name)
}

func readManifest(path string) (manifest, error) {
	var m manifest
	info, err := os.Lstat(path)
	if err != nil {
		return m, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxManifest {
		return m, fmt.Errorf("%s: not a regular file of at most %d bytes", path, maxManifest)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// readDir is what is in dir, by name; nothing if it cannot be read.
func readDir(dir string) []fs.DirEntry {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	return entries
}

// List tells about every backend there is, usable or not: first those that are built in, then the directories in order.
func (r *Registry) List(ctx context.Context) ([]PluginStatus, error) {
	trusted, err := readTrust(r.cfg.LockFile)
	if err != nil {
		return nil, err
	}
	var out []PluginStatus
	first := make(map[string]string) // name to where it was seen first
	for _, b := range r.cfg.Builtin {
		if _, twice := first[b.Name]; twice {
			continue
		}
		first[b.Name] = "the built-in one"
		out = append(out, PluginStatus{Name: b.Name, Path: b.Path, Builtin: true, Trusted: true, State: r.state(b.Name)})
	}
	for _, dir := range r.cfg.Dirs {
		for _, e := range readDir(dir) {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			name, ok := strings.CutPrefix(e.Name(), backendPrefix)
			if !ok || strings.HasSuffix(name, ".json") {
				continue
			}
			path := filepath.Join(dir, e.Name())
			st := inspect(name, path, trusted)
			if where, twice := first[name]; twice {
				st.Problem, st.State = "not used: "+where+" of this name comes first", stateStopped
			} else {
				first[name] = path
				st.State = r.state(name)
			}
			out = append(out, st)
		}
	}
	return out, nil
}

// inspect says what is known of a file that is called like a backend. It reads the whole of it only if the lock knows a file of this size.
func inspect(name, path string, trusted trust) PluginStatus {
	st := PluginStatus{Name: name, Path: path}
	if !backendName.MatchString(name) {
		st.Problem = "its name has something other than lower-case letters, digits, '-' and '+'"
		return st
	}
	if err := launch.Glance(path); err != nil {
		st.Problem = problem(err)
		return st
	}
	info, err := os.Lstat(path)
	if err != nil {
		st.Problem = problem(err)
		return st
	}
	if !trusted.knows(name, info.Size()) {
		st.Problem = problem(untrusted(path))
		return st
	}
	bin, err := launch.Inspect(path)
	if err != nil {
		st.Problem = problem(err)
		return st
	}
	st.SHA256 = bin.SHA256
	if err := trusted.check(name, path, bin.SHA256); err != nil {
		st.Problem = problem(err)
		return st
	}
	st.Trusted = true
	return st
}

// problem is an error as a sentence, with what can be done.
func problem(err error) string {
	if e, ok := errors.AsType[*launch.Error](err); ok {
		return strings.TrimRight(e.Reason+"; "+e.Hint, "; ")
	}
	e := sdk.AsError(err, sdk.NotStarted)
	return strings.TrimRight(e.Error()+"; "+e.Hint, "; ")
}

// The states of a plugin.
const (
	stateStopped     = "stopped"
	stateRunning     = "running"
	stateBackoff     = "backoff"
	stateQuarantined = "quarantined"
)

func (r *Registry) state(name string) string {
	r.mu.Lock()
	b := r.backends[name]
	r.mu.Unlock()
	if b == nil {
		return stateStopped
	}
	return b.state()
}

// byPath orders entries of the lock.
func byPath(a, b trustEntry) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Path, b.Path))
}
