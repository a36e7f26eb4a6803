// Package farside makes an environment's commands and files of what SSH, a container engine and their like can do: start a command line on the
// far side and carry its three streams. A Transport does that; an Env does the rest over it, with nothing there but a POSIX shell and the
// commands of busybox: exact arguments, environment and directory that no other user there can see, signals that overtake stdin, a process
// tree that ends when the command is cancelled or its client is lost, and files that are whole or not there.
package farside

import (
	"context"
	"io"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Transport starts command lines on the far side. Its methods may be called concurrently.
type Transport interface {
	// Start starts a command in the environment that a login there would have, in a session (see setsid(2)) of its own, and returns when it has
	// been asked for; stdin may be written at once. Its arguments hold no secret: other users can see them. An error that is no *sdk.Error
	// with another delivery means that nothing has started. ctx is for the start only.
	Start(ctx context.Context, req Request) (Session, error)
}

// Request is a command line to start.
type Request struct {
	Argv []string    // exact; a transport that has only a shell on the far side quotes them for any of sh, csh and fish
	TTY  *sdk.Window // non-nil asks for a terminal: stdout carries it, and stderr is at its end
}

// Session is a command line that was started. Stdin, stdout and stderr may be used at once, each by one goroutine.
type Session interface {
	Stdin() io.WriteCloser // closing it is end-of-file for the command
	Stdout() io.Reader
	Stderr() io.Reader // nil if there is none
	// Resize changes the size of the terminal.
	Resize(w sdk.Window) error
	// Wait returns when the command has ended, whoever still holds its pipes, and says how. It fails with sdk.CodeUnavailable when the connection
	// is lost. What was printed can be read after it, but if others hold the pipes only what is there comes at once.
	Wait() (sdk.ExitStatus, error)
	// Close lets go of the session's streams, which unblocks reads, writes and Wait. The command gets end-of-file, and no signal. It is idempotent.
	Close() error
}
