package kernel

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/hermes-framework/hermes/core/cell"
)

// flow is one direction of a connection that breaks after a number of bytes.
type flow struct {
	mu     sync.Mutex
	cond   *sync.Cond
	buf    []byte
	budget int  // bytes that still pass; negative: all
	closed bool // nothing more goes in
	late   bool // what went in before comes out all the same
	cut    func()
}

func newFlow(budget int, late bool) *flow {
	f := &flow{budget: budget, late: late}
	f.cond = sync.NewCond(&f.mu)
	return f
}

func (f *flow) Write(p []byte) (int, error) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return 0, io.ErrClosedPipe
	}
	n := len(p)
	if f.budget >= 0 {
		n = min(n, f.budget)
		f.budget -= n
	}
	f.buf = append(f.buf, p[:n]...)
	f.cond.Broadcast()
	f.mu.Unlock()
	if n < len(p) {
		f.cut()
		return n, io.ErrClosedPipe
	}
	return n, nil
}

func (f *flow) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.buf) == 0 && !f.closed {
		f.cond.Wait()
	}
	if f.closed && (len(f.buf) == 0 || !f.late) {
		return 0, io.EOF
	}
	n := copy(p, f.buf)
	f.buf = f.buf[n:]
	return n, nil
}

func (f *flow) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.cond.Broadcast()
}

// duplex is one end of a connection.
type duplex struct{ in, out *flow }

func (d duplex) Read(p []byte) (int, error)  { return d.in.Read(p) }
func (d duplex) Write(p []byte) (int, error) { return d.out.Write(p) }

func (d duplex) Close() error {
	d.in.close()
	d.out.close()
	return nil
}

// fate is when a connection breaks: after so many bytes in either direction, and whether what was on its way to the host still arrives.
type fate struct {
	up, down int
	late     bool
}

// modelHost is a kernel host of numbered links, made from the same numbers. Its cells are done at once: their output is there.
type modelHost struct {
	forgets bool   // no link goes on
	fates   []fate // of the connections, one after the other; those that follow do not break
	wg      sync.WaitGroup

	mu      sync.Mutex
	links   map[string]*modelLink
	opens   int            // requests that were handled
	submits map[string]int // by cell
	outputs map[string][]byte
	conns   int
	most    int // bytes that were kept for the client at a time
}

type modelLink struct {
	numbers numbers
	conn    io.ReadWriteCloser
	listens bool
	chs     map[int64]*modelFollower
}

type modelFollower struct {
	cell string
	at   int64
}

func newModelHost(fates ...fate) *modelHost {
	return &modelHost{fates: fates, links: map[string]*modelLink{}, submits: map[string]int{}, outputs: map[string][]byte{}}
}

var _ Process = (*modelHost)(nil)

// Connect implements Process.
func (h *modelHost) Connect(_ context.Context, hello cell.Fields) (io.ReadWriteCloser, cell.Fields, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	its := fate{-1, -1, false}
	if h.conns < len(h.fates) {
		its = h.fates[h.conns]
	}
	h.conns++
	up, down := newFlow(its.up, its.late), newFlow(its.down, its.late)
	up.cut = func() { down.close(); up.close() }
	down.cut = up.cut
	here, there := duplex{down, up}, duplex{up, down}

	name := string(hello.Bytes("link"))
	link := h.links[name]
	heard := hello.Int("heard")
	if link != nil && h.forgets {
		_ = link.conn.Close()
		link.conn = nil // what it still brings is not read
		link, heard = nil, 0
	}
	resumed := link != nil
	if link == nil {
		link = &modelLink{chs: map[int64]*modelFollower{}, listens: true}
		h.links[name] = link
	} else {
		_ = link.conn.Close()
		link.listens = link.numbers.sent == 0
	}
	link.conn = there
	again, err := link.numbers.resume(heard)
	if err != nil {
		return nil, nil, err
	}
	welcome := cell.Fields{"v": int64(2), "inc": "inc-1", "resumed": resumed, "heard": link.numbers.heard}
	for _, frame := range again {
		_, _ = there.Write(frame)
	}
	h.wg.Go(func() { h.serve(link, there) })
	return here, welcome, nil
}

// Recover implements Process: this host does not die.
func (h *modelHost) Recover(context.Context, string) (cell.Fields, error) { return nil, errGone }

// Refused implements Process.
func (h *modelHost) Refused(code, message string) error { return fmt.Errorf("%s: %s", code, message) }

func (h *modelHost) serve(link *modelLink, conn io.ReadWriteCloser) {
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	for {
		f, err := cell.ReadFrame(r, cell.MaxFrame)
		if err != nil || !h.take(link, conn, f) {
			return
		}
	}
}

// take handles one frame; false once another connection has taken the place of this one.
func (h *modelHost) take(link *modelLink, conn io.ReadWriteCloser, f cell.Frame) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if link.conn != conn {
		return false
	}
	if f.Number > 0 {
		fresh, err := link.numbers.take(f.Number, f.Heard)
		if err != nil {
			panic(err)
		}
		if fresh {
			h.handle(link, f.Msg)
		}
		return true
	}
	if f.Msg.Has("heard") {
		if err := link.numbers.acknowledge(f.Msg.Int("heard")); err != nil {
			panic(err)
		}
	}
	if f.Msg.Text("t") == "resume" {
		h.resume(link, f.Msg)
	}
	return true
}

func (h *modelHost) say(link *modelLink, msg cell.Fields) {
	_, _ = link.conn.Write(link.numbers.send(msg))
	h.most = max(h.most, link.numbers.size)
}

func (h *modelHost) handle(link *modelLink, msg cell.Fields) {
	switch msg.Text("t") {
	case "open":
		h.opens++
		h.say(link, cell.Fields{"t": "kernel", "req": msg.Int("req"), "kernel": fmt.Sprint("k", h.opens)})
	case "state":
		state := "none"
		if h.submits[msg.Text("cell")] > 0 {
			state = "finished"
		}
		h.say(link, cell.Fields{"t": "state", "req": msg.Int("req"), "state": state})
	case "submit":
		h.submits[msg.Text("cell")]++
		h.say(link, cell.Fields{"t": "accepted", "ch": msg.Int("ch"), "cell": msg.Text("cell")})
		h.follow(link, msg.Int("ch"), &modelFollower{cell: msg.Text("cell")})
	case "follow":
		h.follow(link, msg.Int("ch"), &modelFollower{cell: msg.Text("cell"), at: msg.Int("out")})
	}
}

func (h *modelHost) follow(link *modelLink, ch int64, f *modelFollower) {
	link.chs[ch] = f
	if !link.listens {
		return
	}
	data := h.outputs[f.cell]
	for f.at < int64(len(data)) {
		n := min(f.at+7, int64(len(data)))
		_, _ = link.conn.Write(cell.EncodeFrame(cell.Frame{Channel: uint32(ch), Stream: cell.StreamOut, Offset: f.at, Data: data[f.at:n]}))
		f.at = n
	}
	delete(link.chs, ch)
	h.say(link, cell.Fields{"t": "end", "ch": ch, "outcome": "ok", "out": int64(len(data)), "kernel_alive": true})
}

func (h *modelHost) resume(link *modelLink, msg cell.Fields) {
	known := []any{}
	for ch := range link.chs {
		known = append(known, ch)
	}
	_, _ = link.conn.Write(cell.EncodeMessage(cell.Fields{"t": "resumed", "chs": known}))
	link.listens = true
	for _, asked := range msg.List("chs") {
		at := asked.([]any)
		if f := link.chs[at[0].(int64)]; f != nil {
			f.at = at[1].(int64)
			h.follow(link, at[0].(int64), f)
		}
	}
}
