package core

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/core/kernelhost"
	"github.com/hermes-framework/hermes/core/secfile"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// sessionRecord is what the engine keeps of a named session, in StateDir/sessions, so that the next program finds it.
type sessionRecord struct {
	Name        string                          `json:"name"`
	Environment string                          `json:"environment"` // the target, as the session was made with
	Dir         string                          `json:"dir"`
	Interpreter string                          `json:"interpreter"`
	Created     time.Time                       `json:"created"`
	Kernels     map[cell.Language]sessionKernel `json:"kernels"`
}

// sessionKernel is a session's kernel as it was last seen.
type sessionKernel struct {
	Kernel      string    `json:"kernel"`
	Incarnation string    `json:"incarnation"`
	Boot        string    `json:"boot"`
	Cells       int       `json:"cells"`
	Lost        string    `json:"lost,omitempty"` // why it ended, when an engine saw it end
	LastUsed    time.Time `json:"last_used"`
}

// hostRecord is a named kernel host and the token that opens it, in StateDir/hosts.
type hostRecord struct {
	Environment string          `json:"environment"`
	Interpreter string          `json:"interpreter"`
	Token       []byte          `json:"token"`
	Host        kernelhost.Info `json:"host"`
	Earlier     []earlierHost   `json:"earlier,omitempty"` // oldest first
}

// earlierHost is a kernel host that is gone, and may have left a journal.
type earlierHost struct {
	Host kernelhost.Info `json:"host"`
	Gone time.Time       `json:"gone"` // when that was noticed
}

const (
	mostEarlier  = 8
	earlierAfter = 24 * time.Hour // a journal that nobody writes to is kept for so long
)

// retired is the earlier hosts once that of the record is gone, too.
func (rec hostRecord) retired(now time.Time) []earlierHost {
	var kept []earlierHost
	for _, h := range rec.Earlier {
		if now.Sub(h.Gone) < earlierAfter {
			kept = append(kept, h)
		}
	}
	if rec.Host.Incarnation != "" {
		kept = append(kept, earlierHost{rec.Host, now.UTC()})
	}
	return kept[max(0, len(kept)-mostEarlier):]
}

// retireHost writes down that the host of an incarnation is gone, unless somebody is about to replace it. The next start writes another record.
func (e *Engine) retireHost(ctx context.Context, path, incarnation string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	unlock, err := secfile.Lock(ctx, path+".lock")
	if err != nil {
		return
	}
	defer unlock()
	rec, known, err := loadHost(path)
	if err != nil || !known || rec.Host.Incarnation != incarnation {
		return
	}
	rec.Earlier, rec.Host = rec.retired(time.Now()), kernelhost.Info{}
	if err := save(path, rec); err != nil {
		e.log.Debug("write down that a kernel host is gone", "path", path, "error", err)
	}
}

var sessionName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._@+-]{0,63}$`)

// checkSession refuses names that could be mistaken for something else where they are used: in paths, tables and messages.
func checkSession(name string) error {
	if sessionName.MatchString(name) && !strings.Contains(name, "..") {
		return nil
	}
	return &sdk.Error{
		Code: sdk.CodeInvalid, Delivery: sdk.NotStarted, Message: fmt.Sprintf("session name %q: not a name", name),
		Hint: "use 1 to 64 letters, digits and . _ @ + -, beginning with a letter or digit",
	}
}

// store keeps records under one directory. The zero store keeps none.
type store struct{ dir string }

func (s store) path(kind, name string) (string, error) {
	if s.dir == "" {
		return "", &sdk.Error{
			Code: sdk.CodeInvalid, Delivery: sdk.NotStarted, Message: "named sessions need a state directory, and there is none",
			Hint: "set HOME or XDG_STATE_HOME to a directory of yours (a program sets Config.StateDir)",
		}
	}
	dir := filepath.Join(s.dir, kind)
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o700); err != nil {
		return "", fmt.Errorf("state directory: %w", secfile.Explain(err))
	}
	for _, d := range []string{s.dir, dir} {
		if err := secfile.MakeDir(d); err != nil {
			return "", fmt.Errorf("state directory: %w", err)
		}
	}
	return filepath.Join(dir, name+".json"), nil
}

func (s store) session(name string) (string, error) { return s.path("sessions", name) }

func (s store) host(environment, interpreter string) (string, error) {
	sum := sha256.Sum256([]byte(environment + "\x00" + interpreter))
	return s.path("hosts", fmt.Sprintf("%x", sum[:8]))
}

// load reads the record at path into v and reports whether there is one. A damaged record is an error that says what to do.
func load(path string, v any) (bool, error) {
	data, err := secfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, damaged(path, err)
	}
	return true, nil
}

var errDamaged = errors.New("a damaged record")

func damaged(path string, err error) error {
	return &sdk.Error{
		Code: sdk.CodeInvalid, Delivery: sdk.NotStarted, Cause: errors.Join(errDamaged, err),
		Message: fmt.Sprintf("the record %s is damaged: %v", path, err),
		Hint:    "remove that file; a kernel that it names ends by itself when it has been idle for " + kernelhost.IdleDetached.String(),
	}
}

func save(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return secfile.Write(path, append(data, '\n'))
}

// withHint is err with another hint.
func withHint(err error, hint string) error {
	e := *sdk.AsError(err, sdk.NotStarted)
	e.Hint = hint
	return &e
}

// loadSession is load for a session's record.
func loadSession(path, name string, rec *sessionRecord) (bool, error) {
	known, err := load(path, rec)
	if err == nil && known && (rec.Name != name || rec.Environment == "") {
		return false, damaged(path, fmt.Errorf("it is not the record of a session %s", name))
	}
	return known, err
}

// loadHost is load for a named kernel host's record.
func loadHost(path string) (hostRecord, bool, error) {
	var rec hostRecord
	known, err := load(path, &rec)
	if errors.Is(err, errDamaged) {
		err = withHint(err, "remove that file and end the kernel host that it named: `pgrep -f hermes-kernel-host` finds those that run")
	}
	return rec, known, err
}

// records lists the paths of all records of a kind.
func (s store) records(kind string) []string {
	if s.dir == "" {
		return nil
	}
	paths, _ := filepath.Glob(filepath.Join(globEscape(s.dir), kind, "*.json")) // the pattern is well-formed
	return paths
}

// tokenOf is the token of the host of an incarnation, as far as a record names it.
func (s store) tokenOf(incarnation string, otherwise []byte) []byte {
	for _, path := range s.records("hosts") {
		var rec hostRecord
		if known, err := load(path, &rec); err == nil && known && rec.Host.Incarnation == incarnation {
			return rec.Token
		}
	}
	return otherwise
}

func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// lostReason says why the kernel that old describes is gone, now that the host is another incarnation.
func (old sessionKernel) lostReason(now kernel.Identity, idle time.Duration) string {
	switch {
	case old.Lost != "":
		return old.Lost
	case old.Cells == 0:
		return ""
	case old.Boot != now.Boot:
		return "restarted"
	case time.Since(old.LastUsed) >= idle:
		return "idle"
	}
	return "died"
}
