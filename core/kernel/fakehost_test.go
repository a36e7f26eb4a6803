package core

import (
	"bufio"
	"context"
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/hermes-framework/hermes/plugin"
)

// fakeHost speaks the kernel host's end of docs/protocol.md over pipes, so that a test can cut the connection where it likes.
type fakeHost struct {
	t     *testing.T
	token []byte
	inc   string

	mu      sync.Mutex
	dead    bool
	conns   []net.Conn
	submits []string // ids, in order of arrival
	follows []fields
	cells   map[string]*fakeCell
	cut     func(sent int) bool // asked before each output frame of a cell; true closes the connection instead
	sent    int
	done    chan struct{}
	wg      sync.WaitGroup
}

// fakeCell ends when it is told to; its output is there from the start.
type fakeCell struct {
	output []byte
	end    chan fields
}

func newFakeHost(t *testing.T) *fakeHost {
	h := &fakeHost{t: t, token: newToken(), inc: "inc-1", cells: map[string]*fakeCell{}, done: make(chan struct{})}
	t.Cleanup(func() {
		h.kill()
		h.wg.Wait()
	})
	return h
}

func (h *fakeHost) cell(id, output string) *fakeCell {
	c := &fakeCell{output: []byte(output), end: make(chan fields, 1)}
	h.cells[id] = c
	return c
}

// conn is a hostConn to this host.
func (h *fakeHost) conn(t *testing.T) *hostConn {
	p := &place{name: "fake:", env: h, caps: []plugin.Capability{plugin.CapSocket, plugin.CapStdin}}
	c := newHostConn(p, hostInfo{Incarnation: h.inc, Socket: "sock"}, h.token, true)
	t.Cleanup(func() { c.close(t.Context()) })
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

func (h *fakeHost) Exec(context.Context, plugin.Command, plugin.IO) (plugin.ExitStatus, error) {
	return plugin.ExitStatus{}, plugin.ErrUnsupported
}

func (h *fakeHost) Close(context.Context) error { return nil }

func (h *fakeHost) Dial(context.Context, plugin.DialRequest) (plugin.Endpoint, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead {
		return plugin.Endpoint{}, syscall.ECONNREFUSED
	}
	here, there := net.Pipe()
	h.conns = append(h.conns, there)
	h.wg.Go(func() { h.serve(there) })
	return plugin.Endpoint{Conn: here}, nil
}

func (h *fakeHost) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	if !h.hello(conn, r) {
		return
	}
	for {
		f, err := readFrame(r, maxFrame)
		if err != nil {
			return
		}
		if !h.handle(conn, f.msg) {
			return
		}
	}
}

func (h *fakeHost) hello(conn net.Conn, r *bufio.Reader) bool {
	f, err := readFrame(r, maxFrame)
	if err != nil {
		return false
	}
	mine, theirs := newToken(), f.msg.bin("nonce")
	h.send(conn, fields{"t": "hello", "v": 1, "nonce": mine, "inc": h.inc, "proof": prove(h.token, "hermes host v1", theirs, mine)})
	f, err = readFrame(r, maxFrame)
	if err != nil || string(f.msg.bin("proof")) != string(prove(h.token, "hermes client v1", mine, theirs)) {
		return false
	}
	h.send(conn, fields{"t": "welcome", "inc": h.inc})
	return true
}

func (h *fakeHost) send(conn net.Conn, msg fields) { _, _ = conn.Write(encodeMessage(msg)) }

// handle answers one message and reports whether the connection is still to be served.
func (h *fakeHost) handle(conn net.Conn, msg fields) bool {
	h.mu.Lock()
	cell := h.cells[msg.str("cell")]
	h.mu.Unlock()
	switch msg.str("t") {
	case "state":
		state := "none"
		h.mu.Lock()
		for _, id := range h.submits {
			if id == msg.str("cell") {
				state = "running"
			}
		}
		h.mu.Unlock()
		h.send(conn, fields{"t": "state", "req": msg.int("req"), "state": state})
	case "cancel":
		h.send(conn, fields{"t": "ok", "req": msg.int("req")})
		cell.end <- fields{"outcome": "interrupted"}
	case "submit":
		h.mu.Lock()
		h.submits = append(h.submits, msg.str("cell"))
		h.mu.Unlock()
		h.send(conn, fields{"t": "accepted", "cell": msg.str("cell"), "ch": msg.int("ch")})
		return h.output(conn, cell, msg.int("ch"), 0)
	case "follow":
		h.mu.Lock()
		h.follows = append(h.follows, msg)
		h.mu.Unlock()
		return h.output(conn, cell, msg.int("ch"), msg.int("out"))
	}
	return true
}

// output sends the cell's output one byte a frame, and its end when it comes.
func (h *fakeHost) output(conn net.Conn, cell *fakeCell, ch, from int64) bool {
	for off := from; off < int64(len(cell.output)); off++ {
		h.mu.Lock()
		h.sent++
		cut := h.cut != nil && h.cut(h.sent)
		h.mu.Unlock()
		if cut {
			return false
		}
		_, _ = conn.Write(encodeFrame(frame{channel: uint32(ch), stream: streamOut, offset: off, data: cell.output[off : off+1]}))
	}
	h.wg.Go(func() {
		var end fields
		select {
		case end = <-cell.end:
			cell.end <- end // for the next follower
		case <-h.done:
			return
		}
		end = fields{"t": "end", "ch": ch, "outcome": end.str("outcome"), "kernel_alive": true}
		h.send(conn, end)
	})
	return true
}
