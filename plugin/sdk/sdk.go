// Package sdk is what the author of a Hermes backend imports: the contract of a backend, and Serve, which turns an
// implementation into a plugin binary.
package sdk

import (
	"context"
	"io"
	"strconv"
)

// Backend is a kind of place in which commands can be run. Its methods may be called concurrently.
type Backend interface {
	// Info describes the backend. It does no I/O and always gives the same answer.
	Info(ctx context.Context) (Info, error)
	// Open opens the environment that req.Target names. The same req.ID again gives the same environment: Open is retried
	// after a lost connection, so it must be idempotent by ID (Environments does that for you).
	Open(ctx context.Context, req OpenRequest) (Environment, error)
}

// Environment is one opened target. Its methods may be called concurrently.
// Optional abilities (Dialer, Files) are further interfaces that an Environment may implement; a backend announces them in Info.Capabilities.
type Environment interface {
	// Exec runs cmd and returns when the process has ended, see ExitStatus. A non-zero exit is a status, not an error.
	// Cancelling ctx stops the process tree, also on a far machine: TERM, Grace, KILL; Exec then returns ctx's cause.
	Exec(ctx context.Context, cmd Command, stdio IO) (ExitStatus, error)
	// Close ends the commands that still run and frees the environment. What a command left behind when it ended stays. It is idempotent and bounded.
	Close(ctx context.Context) error
}

// Dialer is an Environment with the capability CapSocket.
type Dialer interface {
	// Dial connects to the Unix socket at req.Path in the environment. Either Endpoint.Addr is a path that a process on the
	// engine's machine can connect to itself (Conn is nil then), or Conn is the connection.
	Dial(ctx context.Context, req DialRequest) (Endpoint, error)
}

// DialRequest names the socket to connect to.
type DialRequest struct {
	Path   string
	Stream bool // answer with a connection, not with an address
}

// Endpoint is the answer to a Dial.
type Endpoint struct {
	Addr string
	Conn io.ReadWriteCloser
}

// Files is an Environment with the capability CapFiles.
type Files interface {
	// Put writes a file atomically, with exactly the mode asked for.
	Put(ctx context.Context, req PutRequest) error
	// Get writes the content of the file at path to w and returns its mode and size.
	Get(ctx context.Context, path string, w io.Writer) (FileInfo, error)
}

// PutRequest describes a Put. Exactly one of Source (a path on the engine's machine that the plugin can read) and Content is set.
type PutRequest struct {
	Path    string
	Mode    uint32 // permission bits; 0 means 0600
	Source  string
	Content io.Reader
}

// FileInfo is what Get says about a file.
type FileInfo struct {
	Size int64
	Mode uint32
}

// Capability names an optional ability of a backend.
type Capability string

// The capabilities.
const (
	CapStdin   Capability = "stdin"   // Exec passes stdin, byte for byte, through a pipe
	CapStream  Capability = "stream"  // output arrives while the command runs
	CapSignal  Capability = "signal"  // IO.Control delivers signals
	CapTTY     Capability = "tty"     // Command.TTY is honoured
	CapFiles   Capability = "files"   // Environment implements Files
	CapSocket  Capability = "socket"  // Environment implements Dialer
	CapDetach  Capability = "detach"  // a process that detaches outlives the connection
	CapReap    Capability = "reap"    // cancelling leaves no process of the tree behind, daemonised ones included
	CapPrivate Capability = "private" // stdin travels where no other user can see it, though not by a pipe
)

// Info describes a backend.
type Info struct {
	Name         string       // as in hermes-backend-NAME and the scheme of its targets: lower-case letters, digits, '-', '+'
	Version      string       // the backend's own version
	Description  string       // one line
	Schemes      []string     // URL schemes of its targets; empty means Name
	Capabilities []Capability // what it can do beyond running a command
	ConfigSchema string       // JSON schema of OpenRequest.Config; empty means no config
}

// OpenRequest names the environment to open.
type OpenRequest struct {
	ID     string // unique, made by the caller
	Target string // a URL, such as "local:" or "ssh://user@host/dir"
	Config []byte // JSON object, may be empty; see Decode
}

// Command is a command to run.
type Command struct {
	Argv []string // exact, no shell; Argv[0] without a slash is looked up in the PATH of the command's environment
	// Env holds "K=V" entries. With InheritEnv they are added to the environment's own base (what a login there would have,
	// never the plugin's own); without it they are the whole environment, exactly.
	Env        []string
	InheritEnv bool
	Dir        string  // working directory; empty means the home directory
	TTY        *Window // non-nil asks for a terminal of that size (CapTTY): stdout carries it, stderr stays empty
}

// Window is the size of a terminal in characters.
type Window struct{ Rows, Cols uint16 }

// IO connects a command to its caller. Nil Stdin is end-of-file at once; nil Stdout and Stderr discard.
// Writers are called from goroutines that Exec waits for, one call at a time for each writer.
type IO struct {
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Control <-chan Control // signals and window sizes; never queued behind stdin. The sender may close it or leave it open
	Started func()         // called at most once, when the process exists
}

// Control is a signal ("INT", "TERM", "KILL", "HUP", "QUIT", "USR1", "USR2") or, with Resize, a new window size.
type Control struct {
	Signal string
	Resize *Window
}

// ExitStatus is how a command ended.
type ExitStatus struct {
	Code   int    // exit code; -1 when a signal ended it
	Signal string // "KILL" and so on; empty when it exited
}

// String is "status 3" or "signal KILL".
func (s ExitStatus) String() string {
	if s.Signal != "" {
		return "signal " + s.Signal
	}
	return "status " + strconv.Itoa(s.Code)
}
