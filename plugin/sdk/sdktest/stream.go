package sdktest

import (
	"context"
	"io"
	"sync"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// wire is a connection or a command between its near and its far end, where faults happen to what passes.
type wire struct {
	out, in flow   // towards the far end, and from there
	end     func() // closes the connection, or stops the command; idempotent

	over     chan struct{} // closed when nothing passes any more
	overOnce sync.Once

	mu      sync.Mutex
	hung    bool
	lost    bool // cut
	noReply bool // the next byte that comes is lost, with the connection
	garble  bool // the next chunk that comes is rubbish
}

func newWire(f *Faults, out, in Step, call int, argv []string, end func()) *wire {
	return &wire{out: newFlow(f, out, call, argv), in: newFlow(f, in, call, argv), end: end, over: make(chan struct{})}
}

func errCut() error {
	return sdk.Errorf(sdk.CodeUnavailable, sdk.MayHaveRun, "a fault of the test cut the connection")
}

// finish frees whoever hangs.
func (w *wire) finish() { w.overOnce.Do(func() { close(w.over) }) }

func (w *wire) cut() {
	w.mu.Lock()
	w.lost = true
	w.mu.Unlock()
	w.finish()
	w.end()
}

func (w *wire) is(state *bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *state
}

func (w *wire) set(state *bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*state = true
}

// take clears a state and reports whether it was set.
func (w *wire) take(state *bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := *state
	*state = false
	return was
}

// send decides about a chunk that goes to the far end: what of it passes, and whether the wire is cut then. A wire that hangs is
// waited for by the caller.
func (w *wire) send(p []byte) (pass []byte, cut bool) {
	if w.is(&w.lost) {
		return nil, true
	}
	if w.is(&w.hung) {
		return nil, false
	}
	switch w.out.next(p) {
	case FailBefore:
		return nil, true
	case Hang:
		w.set(&w.hung)
		return nil, false
	case FailAfter:
		w.set(&w.noReply)
	case Rubbish:
		w.set(&w.garble)
	}
	return w.out.limit(p)
}

// receive is send for a chunk from the far end. What hangs is dropped.
func (w *wire) receive(p []byte) (pass []byte, cut bool) {
	if w.is(&w.lost) || len(p) > 0 && w.is(&w.noReply) {
		return nil, true
	}
	if w.is(&w.hung) {
		return nil, false
	}
	do := w.in.next(p)
	if len(p) > 0 && w.take(&w.garble) {
		do = Rubbish
	}
	switch do {
	case FailBefore:
		return nil, true
	case Hang:
		w.set(&w.hung)
		return nil, false
	case FailAfter:
		return p, true
	case Rubbish:
		p = rubbish(len(p))
	}
	return w.in.limit(p)
}

// limit applies the cut of w, if there is one.
func (w *flow) limit(p []byte) (pass []byte, cut bool) {
	switch {
	case w.left < 0:
		return p, false
	case int64(len(p)) >= w.left:
		return p[:w.left], true
	}
	w.left -= int64(len(p))
	return p, false
}

func rubbish(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = 0xff
	}
	return p
}

// wiredConn is a connection to a socket with faults. It has no goroutine of its own. There may be one Read and one Write at a time.
type wiredConn struct {
	io.ReadWriteCloser

	wire *wire
	env  context.Context // ends with the environment
	once sync.Once
}

// hang has the end of the environment end the connection, should nobody close it.
func (c *wiredConn) hang() {
	c.once.Do(func() { context.AfterFunc(c.env, c.wire.cut) })
}

// Read implements io.Reader. When the connection hangs it reads on, to see the far end close.
func (c *wiredConn) Read(p []byte) (int, error) {
	for {
		n, err := c.ReadWriteCloser.Read(p)
		pass, cut := c.wire.receive(p[:n])
		copy(p, pass)
		if cut {
			c.wire.cut()
			if len(pass) == 0 {
				return 0, errCut()
			}
			return len(pass), nil
		}
		if err != nil {
			c.wire.finish()
		}
		if c.wire.is(&c.wire.hung) {
			c.hang()
		}
		if len(pass) > 0 || err != nil || len(p) == 0 {
			return len(pass), err
		}
	}
}

// Write implements io.Writer. When the connection hangs it waits for its end.
func (c *wiredConn) Write(p []byte) (int, error) {
	pass, cut := c.wire.send(p)
	n := 0
	if len(pass) > 0 {
		var err error
		if n, err = c.ReadWriteCloser.Write(pass); err != nil {
			return n, err
		}
	}
	if c.wire.is(&c.wire.hung) && len(pass) < len(p) {
		c.hang()
		<-c.wire.over
		return n, errCut()
	}
	if cut {
		c.wire.cut()
		return n, errCut()
	}
	return n, nil
}

// CloseWrite tells the far side that no more follows, if the connection can.
func (c *wiredConn) CloseWrite() error {
	if half, ok := c.ReadWriteCloser.(interface{ CloseWrite() error }); ok && !c.wire.is(&c.wire.hung) {
		return half.CloseWrite()
	}
	return nil
}

// Close implements io.Closer.
func (c *wiredConn) Close() error {
	c.wire.finish()
	return c.ReadWriteCloser.Close()
}

// wiredStdin is the stdin of a command with faults.
type wiredStdin struct {
	io.Reader

	wire *wire
	ctx  context.Context // of the command
}

// Read implements io.Reader. When the command hangs it waits for its end.
func (r *wiredStdin) Read(p []byte) (int, error) {
	if r.wire.is(&r.wire.lost) {
		return 0, errCut()
	}
	n, err := r.Reader.Read(p)
	pass, cut := r.wire.send(p[:n])
	switch {
	case cut:
		r.wire.cut()
		if len(pass) == 0 {
			return 0, errCut()
		}
		return len(pass), nil // the next Read fails
	case len(pass) < n || n == 0 && r.wire.is(&r.wire.hung): // it hangs
		<-r.ctx.Done()
		return 0, context.Cause(r.ctx)
	}
	return n, err
}

// wiredStdout is the stdout of a command with faults. What is lost is swallowed, so that the command comes to its end.
type wiredStdout struct {
	io.Writer

	wire *wire
}

// Write implements io.Writer.
func (w *wiredStdout) Write(p []byte) (int, error) {
	pass, cut := w.wire.receive(p)
	if len(pass) > 0 {
		if _, err := w.Writer.Write(pass); err != nil {
			return 0, err
		}
	}
	if cut {
		w.wire.cut()
	}
	return len(p), nil
}
