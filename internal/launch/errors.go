package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
)

// Phase is how far a start came.
type Phase string

// The phases of a start.
const (
	PhaseDirectory Phase = "directory" // making the run directory
	PhaseVerify    Phase = "verify"    // checking and copying the binary
	PhaseExec      Phase = "exec"      // starting the process
	PhaseHandshake Phase = "handshake" // waiting for the line that names socket and version
	PhaseConnect   Phase = "connect"   // waiting for the first answer
)

// Kind classifies an Error.
type Kind string

// The kinds of failure.
const (
	KindInvalid      Kind = "invalid"      // the file is no plugin binary, or the process does not behave like a plugin
	KindNotFound     Kind = "not_found"    // there is no such file
	KindPermission   Kind = "permission"   // the file, its directories or the run directory are not as they must be
	KindUntrusted    Kind = "untrusted"    // Spec.Check said no
	KindIncompatible Kind = "incompatible" // built for another machine, or for another version of the protocol
	KindTimeout      Kind = "timeout"      // it took longer than Spec.StartTimeout
	KindCanceled     Kind = "canceled"     // the caller gave up
	KindCrashed      Kind = "crashed"      // it ended before it answered
	KindExhausted    Kind = "exhausted"    // no memory, processes, descriptors or disk space left
	KindInternal     Kind = "internal"     // everything else
)

// Error is a failed start, or a binary that was refused.
type Error struct {
	Name   string // of the backend, may be empty
	Path   string // of the binary
	Phase  Phase
	Kind   Kind
	Reason string // what happened, without name and path
	Hint   string // what can be done, may be empty
	Exit   *Exit  // how the process ended on its own; nil if it did not
	Stderr string // the last 64 KiB that it printed there, control characters escaped
	// PluginVersions and HostVersions are the protocol versions of both sides, when they do not meet.
	PluginVersions, HostVersions []int
	Err                          error // the cause, may be nil
}

func (e *Error) Error() string {
	var b strings.Builder
	switch {
	case e.Name != "" && e.Path != "":
		fmt.Fprintf(&b, "plugin %s (%s): ", e.Name, e.Path)
	case e.Path != "":
		fmt.Fprintf(&b, "plugin %s: ", e.Path)
	case e.Name != "":
		fmt.Fprintf(&b, "plugin %s: ", e.Name)
	}
	b.WriteString(e.Reason)
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// Exit is how a plugin's process ended.
type Exit struct {
	Code        int    // exit status; -1 if a signal ended it
	Signal      string // "KILL" and so on; empty if it exited
	Killed      bool   // we had sent it TERM or KILL
	OutOfMemory bool   // probably killed by the kernel for want of memory
	Stderr      string // the last 64 KiB that it printed there, control characters escaped
	Panic       string // its panic or fatal error, up to 100 lines; empty if there was none
}

// String says it in a few words: "exit status 2 (panic: boom)".
func (e Exit) String() string {
	s := fmt.Sprintf("exit status %d", e.Code)
	switch {
	case e.OutOfMemory:
		s = "killed, probably because memory ran out"
	case e.Signal != "":
		s = "signal " + e.Signal
	}
	if first, _, _ := strings.Cut(e.Panic, "\n"); first != "" {
		s += " (" + clip(first, 300) + ")"
	}
	return s
}

// gaveUpError is the end of the context of a start.
type gaveUpError struct{ cause error }

func (e *gaveUpError) Error() string { return e.cause.Error() }
func (e *gaveUpError) Unwrap() error { return e.cause }

func isGaveUp(err error) bool {
	_, ok := errors.AsType[*gaveUpError](err)
	return ok
}

var errStartTimeout = errors.New("start timeout")

// fail builds an Error from a cause.
func (s Spec) fail(phase Phase, kind Kind, reason string, cause error) *Error {
	return &Error{Name: s.Name, Path: s.Path, Phase: phase, Kind: kind, Reason: reason, Err: cause}
}

// kindOf classifies an error of the operating system.
func kindOf(err error) Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return KindNotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return KindPermission
	case errors.Is(err, syscall.ENOEXEC):
		return KindIncompatible
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.ENOMEM),
		errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return KindExhausted
	}
	return KindInternal
}

// explain turns whatever go-plugin said about a failed start into what happened.
func (c *child) explain(err error) *Error {
	if !c.started() {
		return c.explainExec(err)
	}
	e := c.spec.fail(PhaseHandshake, KindInvalid, "", err)
	e.Stderr = c.exit.Stderr
	seen, stray := c.stdout.state()
	if seen != nil {
		e.Phase = PhaseConnect
	}

	switch {
	case seen != nil && c.mismatch(*seen) != nil:
		m := c.mismatch(*seen)
		m.Stderr = e.Stderr
		return m
	case c.alone:
		exit := c.exit
		e.Exit, e.Kind = &exit, KindCrashed
		e.Reason = "it ended and " + e.awaited() + " came: " + exit.String()
		if exit.Panic == "" {
			e.Reason += lastLine(exit.Stderr, stray)
		}
	case errors.Is(err, errStartTimeout):
		e.Kind = KindTimeout
		e.Reason = fmt.Sprintf("%s came within %s", e.awaited(), c.spec.StartTimeout) + lastLine(e.Stderr, stray)
	case isGaveUp(err):
		e.Kind = KindCanceled
		if errors.Is(err, context.DeadlineExceeded) {
			e.Kind = KindTimeout
		}
		e.Reason = "the start was given up: " + err.Error()
	case seen == nil:
		e.Reason = "it closed its stdout without a handshake" + lastLine(e.Stderr, stray)
		e.Hint = "check that the file is a Hermes backend plugin: sdk.Serve prints the handshake"
	default:
		e.Reason = "no connection: " + err.Error()
	}
	return e
}

// awaited is what a start waited for in vain.
func (e *Error) awaited() string {
	if e.Phase == PhaseConnect {
		return "no answer"
	}
	return "no handshake"
}

// oneLine is err's text in one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// lastLine quotes the last thing that a process printed.
func lastLine(stderr, stray string) string {
	stderr = strings.TrimRight(stderr, "\n \t")
	if i := strings.LastIndexByte(stderr, '\n'); i >= 0 {
		stderr = stderr[i+1:]
	}
	switch {
	case stderr != "":
		return fmt.Sprintf("; its last line on stderr: %s", clip(stderr, 500))
	case stray != "":
		return fmt.Sprintf("; it printed on stdout: %s", stray)
	}
	return ""
}

func (c *child) explainExec(err error) *Error {
	e := c.spec.fail(PhaseExec, kindOf(err), "cannot be started: "+err.Error(), err)
	switch {
	case isGaveUp(err):
		e.Kind, e.Reason = KindCanceled, "the start was given up: "+err.Error()
	case errors.Is(err, fs.ErrNotExist):
		if _, statErr := os.Stat(c.binary); statErr == nil {
			e.Kind = KindIncompatible
			e.Reason = "cannot be started: the dynamic loader that it names is not on this machine"
			e.Hint = "build it with CGO_ENABLED=0, or install the C library it was built for"
		}
	}
	e.Hint = limitHint(err, e.Hint)
	return e
}

// limitHint says what to do when a limit was reached; otherwise it is the given hint.
func limitHint(err error, otherwise string) string {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return "raise the limit of open files (ulimit -n)"
	case errors.Is(err, syscall.EAGAIN):
		return "end some of this user's processes, or raise their limit (ulimit -u)"
	}
	return otherwise
}

// mismatch says why a handshake is not for us; nil if it is.
func (c *child) mismatch(h handshake) *Error {
	ours := c.spec.Handshake.Versions
	e := c.spec.fail(PhaseHandshake, KindIncompatible, "", nil)
	switch {
	case h.core != 1:
		e.Reason = fmt.Sprintf("it speaks version %d of go-plugin's own protocol, this program version 1", h.core)
		e.Hint = "rebuild the plugin with the go-plugin release that Hermes uses"
	case !slices.Contains(ours, h.version):
		e.PluginVersions, e.HostVersions = []int{h.version}, ours
		e.Reason = fmt.Sprintf("it speaks version %d of the backend protocol, this program %s", h.version, joinVersions(ours))
		if len(ours) > 0 && h.version > ours[len(ours)-1] {
			e.Hint = "upgrade hermes, or install a build of the plugin for this version: hermes plugin install PATH"
		} else {
			e.Hint = "install a newer build of the plugin: hermes plugin install PATH"
		}
	case h.proto != "grpc":
		e.Reason = fmt.Sprintf("it speaks %q where a backend speaks grpc", h.proto)
		e.Hint = "check that the file is a Hermes backend plugin"
	case len(h.cert) < 50:
		e.Reason = "its handshake has no certificate, so it would answer anybody"
		e.Hint = "rebuild the plugin with a go-plugin that knows AutoMTLS (PLUGIN_CLIENT_CERT)"
	default:
		return nil
	}
	return e
}
