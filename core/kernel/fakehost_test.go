package kernel

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/hermes-framework/hermes/core/cell"
)

// fakeHost speaks the kernel host's end of docs/protocol.md over pipes, so that a test can cut the connection where it likes.
type fakeHost struct {
	t      *testing.T
	inc    string
	denied error                                // what Connect fails with
	left   func(id string) (cell.Fields, error) // what Recover answers; nil: there is no journal

	mu       sync.Mutex
	dead     bool
	conns    []net.Conn
	dials    int
	submits  []string // ids, in order of arrival
	follows  []cell.Fields
	answers  []cell.Fields // to tool calls
	cells    map[string]*fakeCell
	cut      func(sent int) bool // asked before each output frame of a cell; true closes the connection instead
	rubbish  []byte              // sent before a connection is cut
	sent     int
	swallows int // submits that get lost with their connection
	revokes  int
	done     chan struct{}
	wg       sync.WaitGroup
}

// fakeCell ends when it is told to; its output is there from the start.
type fakeCell struct {
	output []byte
	end    chan cell.Fields
	call   cell.Fields // a tool call between the two halves of the output; the second one waits for its answer
}

func newFakeHost(t *testing.T) *fakeHost {
	h := &fakeHost{t: t, inc: "inc-1", cells: map[string]*fakeCell{}, done: make(chan struct{})}
	t.Cleanup(func() {
		h.kill()
		h.wg.Wait()
	})
	return h
}

func (h *fakeHost) cell(id, output string) *fakeCell {
	c := &fakeCell{output: []byte(output), end: make(chan cell.Fields, 1)}
	h.cells[id] = c
	return c
}

var _ Process = (*fakeHost)(nil)

// conn is a Host to this host.
func (h *fakeHost) conn(t *testing.T) *Host {
	c := NewHost(h, Identity{Incarnation: h.inc, Detached: true})
	t.Cleanup(func() { c.Close(t.Context()) })
	return c
}

// kill is the end of the host.
func (h *fakeHost) kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.dead {
		close(h.done)
	}
	h.dead = true
	for _, c := range h.conns {
		_ = c.Close()
	}
}

// Connect implements Process.
func (h *fakeHost) Connect(context.Context, cell.Fields) (io.ReadWriteCloser, cell.Fields, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dials++
	if h.denied != nil {
		return nil, nil, h.denied
	}
	if h.dead {
		return nil, nil, syscall.ECONNREFUSED
	}
	here, there := net.Pipe()
	h.conns = append(h.conns, there)
	h.wg.Go(func() { h.serve(there) })
	return here, cell.Fields{"inc": h.inc}, nil
}

// Refused implements Process.
func (h *fakeHost) Refused(code, message string) error {
	if code == "not_found" {
		return fmt.Errorf("%s: %w", message, fs.ErrNotExist)
	}
	return fmt.Errorf("%s: %s", code, message)
}

// Recover implements Process.
func (h *fakeHost) Recover(_ context.Context, id string) (cell.Fields, error) {
	if h.left == nil {
		return nil, errNoJournal
	}
	return h.left(id)
}

var errNoJournal = fmt.Errorf("no journal: %w", fs.ErrNotExist)

func (h *fakeHost) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	for {
		f, err := cell.ReadFrame(r, cell.MaxFrame)
		if err != nil {
			return
		}
		if !h.handle(conn, f.Msg) {
			return
		}
	}
}

func (h *fakeHost) send(conn net.Conn, msg cell.Fields) { _, _ = conn.Write(cell.EncodeMessage(msg)) }

// handle answers one message and reports whether the connection is still to be served.
func (h *fakeHost) handle(conn net.Conn, msg cell.Fields) bool {
	h.mu.Lock()
	asked := h.cells[msg.Text("cell")]
	h.mu.Unlock()
	switch msg.Text("t") {
	case "state":
		state := "none"
		h.mu.Lock()
		for _, id := range h.submits {
			if id == msg.Text("cell") {
				state = "running"
			}
		}
		h.mu.Unlock()
		h.send(conn, cell.Fields{"t": "state", "req": msg.Int("req"), "state": state})
	case "revoke":
		state := "running"
		h.mu.Lock()
		if len(h.submits) == 0 {
			state = "revoked"
		}
		h.revokes++
		h.mu.Unlock()
		h.send(conn, cell.Fields{"t": "ok", "req": msg.Int("req"), "state": state})
	case "kill":
		h.send(conn, cell.Fields{"t": "error", "req": msg.Int("req"), "code": "not_found", "msg": "no kernel " + msg.Text("kernel")})
	case "cancel":
		h.send(conn, cell.Fields{"t": "ok", "req": msg.Int("req")})
		asked.end <- cell.Fields{"outcome": "interrupted"}
	case "submit":
		if h.swallows > 0 {
			h.swallows--
			return false
		}
		h.mu.Lock()
		h.submits = append(h.submits, msg.Text("cell"))
		h.mu.Unlock()
		if asked == nil {
			h.send(conn, cell.Fields{"t": "end", "ch": msg.Int("ch"), "outcome": "refused", "reason": "no_cell"})
			return true
		}
		h.send(conn, cell.Fields{"t": "accepted", "cell": msg.Text("cell"), "ch": msg.Int("ch")})
		return h.output(conn, asked, msg.Int("ch"), 0)
	case "follow":
		h.mu.Lock()
		h.follows = append(h.follows, msg)
		h.mu.Unlock()
		return h.output(conn, asked, msg.Int("ch"), msg.Int("out"))
	case "tool_refused":
		h.mu.Lock()
		h.answers = append(h.answers, msg)
		h.mu.Unlock()
		if asked == nil || asked.call == nil {
			return true
		}
		ch := asked.call.Int("ch")
		asked.call = nil
		return h.output(conn, asked, ch, int64(len(asked.output)/2))
	}
	return true
}

// output sends the cell's output one byte a frame, and its end when it comes.
func (h *fakeHost) output(conn net.Conn, c *fakeCell, ch, from int64) bool {
	for off := from; off < int64(len(c.output)); off++ {
		if c.call != nil && off == int64(len(c.output)/2) {
			c.call["ch"] = ch
			h.send(conn, c.call)
			return true // goes on when the answer is here
		}
		h.mu.Lock()
		h.sent++
		cut := h.cut != nil && h.cut(h.sent)
		h.mu.Unlock()
		if cut {
			_, _ = conn.Write(h.rubbish)
			return false
		}
		_, _ = conn.Write(cell.EncodeFrame(cell.Frame{Channel: uint32(ch), Stream: cell.StreamOut, Offset: off, Data: c.output[off : off+1]}))
	}
	h.wg.Go(func() {
		var end cell.Fields
		select {
		case end = <-c.end:
			c.end <- end // for the next follower
		case <-h.done:
			return
		}
		end = cell.Fields{"t": "end", "ch": ch, "outcome": end.Text("outcome"), "kernel_alive": true}
		h.send(conn, end)
	})
	return true
}
