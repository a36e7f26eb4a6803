// Package kernel holds the conversation with the kernels of one kernel host.
package kernel

import (
	"context"
	"crypto/sha256"
	"io"
	"strconv"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
)

// Kernel is a kernel in a kernel host. Its methods may be called concurrently; its cells run one after the other.
type Kernel struct {
	ID   string // unique in its host's life
	Host *Host
}

// Process is a kernel host that is up somewhere, as the conversation with it needs it.
type Process interface {
	// Connect opens a connection on which both ends have proved who they are. hello, which it does not change, goes with our proof; the host's welcome names
	// in inc the incarnation that answered and in v the version of the frames (docs/protocol.md, section 2.1). An error that is
	// fs.ErrPermission will not get better by trying again. A connection that exists only while it answers has a method Ephemeral, and v 1.
	// Host calls it once at a time, and closes what it returns.
	Connect(ctx context.Context, hello cell.Fields) (conn io.ReadWriteCloser, welcome cell.Fields, err error)
	// Refused is the error of a request that the host refused, with a code of docs/protocol.md. One for not_found must be fs.ErrNotExist.
	Refused(code, message string) error
	// Recover asks what a host that is gone left behind what became of a cell: its state and, if it finished, its result, as docs/protocol.md has
	// them in the answer of the command recover. A cell is in the state "started" only if nothing of it runs any more. An error means that
	// nothing can tell. It may be called several times at once.
	Recover(ctx context.Context, id string) (cell.Fields, error)
}

// Identity tells one life of a kernel host from any other.
type Identity struct {
	Incarnation string
	Boot        string // of the machine that it runs on
	Hostname    string // of that machine, for people
	Detached    bool   // it outlives its clients: closing the conversation leaves it alone
}

// Tools answers the tool calls of a cell. One cell's calls come one after the other; several cells may share a Tools.
type Tools interface {
	// Answer returns the message that answers a call. It is called in the goroutine that runs the cell, and does not block.
	Answer(call cell.Fields) cell.Fields
}

// Submission is one cell on its way to a kernel.
type Submission struct {
	ID       string // of the cell
	Session  string // a part of what the cell is: the same id with another session is a conflict
	Language cell.Language
	Code     string
	Timeout  time.Duration // from the cell's start; 0: none
}

// Digest is what makes two cells of one id the same.
func (s Submission) Digest() []byte {
	h := sha256.New()
	for _, part := range []string{s.Session, string(s.Language), s.Code} {
		h.Write(strconv.AppendInt(nil, int64(len(part)), 10))
		h.Write([]byte(":" + part))
	}
	return h.Sum(nil)
}

// Run submits the cell and follows it to its end through broken connections. sink gets each frame, in order, none twice, in the goroutine
// that called Run; its data is valid until sink returns. Cancelling ctx interrupts the cell by the host's ladder; its end is still waited for.
// An end with the flag "host_gone" comes from what the host left behind: the host is not there any more.
// An error means that the cell's end is not known, unless it is ErrNotSubmitted or ErrNeverSent. tools and sink must not be nil.
func (k Kernel) Run(ctx context.Context, sub Submission, tools Tools, sink func(cell.Frame)) (cell.Fields, error) {
	r := &cellRun{kernel: k, sub: sub, tools: tools, sink: sink}
	return r.run(ctx)
}

// Interrupt interrupts the cell that the kernel runs; an idle one is left alone.
func (k Kernel) Interrupt(ctx context.Context) error {
	_, err := k.Host.request(ctx, cell.Fields{"t": "interrupt", "kernel": k.ID})
	return err
}

// End ends the kernel with its processes. Its error is fs.ErrNotExist if the kernel is gone.
func (k Kernel) End(ctx context.Context) error {
	_, err := k.Host.request(ctx, cell.Fields{"t": "kill", "kernel": k.ID})
	return err
}
