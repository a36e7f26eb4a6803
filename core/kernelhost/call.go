package kernelhost

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/lockdown"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// attachCalls attaches by commands that each carry a few frames there and back: for backends whose commands cannot be talked to while they run.
func (h *Host) attachCalls(ctx context.Context, _ cell.Fields) (io.ReadWriteCloser, cell.Fields, error) {
	conn := newCallConn(ctx, h.Place, h.Info, h.Token)
	welcome, err := firstCall(ctx, conn)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, welcome, nil
}

// firstRequest is a request number that no client of the connection comes to.
const firstRequest = 1 << 52

// firstCall sees that the host is there, by a ping: the command brings the host's welcome back, then the answer.
func firstCall(ctx context.Context, conn *callConn) (welcome cell.Fields, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if !stop() {
			err = context.Cause(ctx)
		}
	}()
	if _, err := conn.Write(cell.EncodeMessage(cell.Fields{"t": "ping", "req": int64(firstRequest)})); err != nil {
		return nil, err
	}
	for {
		f, err := cell.ReadFrame(conn, cell.MaxFrame)
		if err != nil {
			return nil, err
		}
		if f.Msg.Text("t") == "welcome" {
			welcome = f.Msg
		}
		if f.Msg.Int("req") == firstRequest {
			return welcome, nil
		}
	}
}

// callConn looks like a connection to the kernel host. Each frame written to it starts one command, which brings back the frames that answer it;
// a cell that outlasts its command is followed by the next one from where the last one was.
type callConn struct {
	p      *Place
	python string
	config cell.Fields
	ctx    context.Context // of the commands, ended by Close; the connection is what owns them
	cancel context.CancelFunc
	r      *io.PipeReader
	w      *io.PipeWriter
	wg     sync.WaitGroup

	mu     sync.Mutex // one frame at a time into w
	closed bool       // no command may start
	cells  map[uint32]*calledCell
	asked  map[int64]bool // the requests that have no answer yet
}

// calledCell is a cell that some command submitted and none has seen end.
type calledCell struct {
	id       string
	out, err int64
	ended    bool
}

func newCallConn(ctx context.Context, p *Place, info Info, token []byte) *callConn {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r, w := io.Pipe()
	return &callConn{
		p: p, python: info.Executable, ctx: ctx, cancel: cancel, r: r, w: w, cells: map[uint32]*calledCell{}, asked: map[int64]bool{},
		config: cell.Fields{"sock": info.Socket, "token": token, "poll": pollTimeout.Seconds()},
	}
}

func (c *callConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// Write takes whole frames, the last of which is the one that matters; link writes them so.
func (c *callConn) Write(b []byte) (int, error) {
	last := b
	for n := binary.BigEndian.Uint32(last); int(n)+4 < len(last); n = binary.BigEndian.Uint32(last) {
		last = last[4+n:]
	}
	f, err := cell.DecodeFrame(last[4:])
	if err != nil {
		return 0, err
	}
	kind := f.Msg.Text("t")
	if kind == "seen" || kind == "pong" || kind == "ack" {
		return len(b), nil // nobody is connected between two commands
	}
	if kind == "ping" && !f.Msg.Has("req") {
		_, err := c.w.Write(cell.EncodeMessage(cell.Fields{"t": "pong"})) // the next command will tell whether the host is there
		return len(b), err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed { // Close may be waiting already, and would miss another command
		return 0, net.ErrClosed
	}
	if kind == "submit" || kind == "follow" {
		c.cells[uint32(f.Msg.Int("ch"))] = &calledCell{id: f.Msg.Text("cell"), out: f.Msg.Int("out"), err: f.Msg.Int("err")}
	}
	req := f.Msg.Int("req")
	if req > 0 {
		c.asked[req] = true
	}
	frames := bytes.Clone(b)
	c.wg.Go(func() { // ends with the command; Close waits for it
		if err := c.exchange(frames, req, uint32(f.Msg.Int("ch"))); err != nil {
			_ = c.w.CloseWithError(err)
		}
	})
	return len(b), nil
}

// exchange carries frames there and what answers them back, until the cell of channel ch (if any) has ended. A request (if any) that has no answer
// by then will not get one.
func (c *callConn) exchange(frames []byte, req int64, ch uint32) error {
	for {
		if err := c.call(frames); err != nil {
			return err
		}
		c.mu.Lock()
		called := c.cells[ch]
		if called == nil || called.ended {
			lost := c.asked[req]
			delete(c.cells, ch)
			delete(c.asked, req)
			c.mu.Unlock()
			if lost {
				return errors.New("call the kernel host: the command ended before the host had answered")
			}
			return nil
		}
		frames = cell.EncodeMessage(cell.Fields{"t": "follow", "cell": called.id, "ch": ch, "out": called.out, "err": called.err})
		c.mu.Unlock()
	}
}

// call runs one command.
func (c *callConn) call(frames []byte) error {
	config := cell.Fields{"frames": frames}
	maps.Copy(config, c.config)
	var stderr tailBuffer
	out, in := io.Pipe()
	var relayErr error
	var wg sync.WaitGroup
	wg.Go(func() { // ends with the command, whose output it reads
		relayErr = c.deliver(bufio.NewReaderSize(out, 64<<10))
		_ = out.CloseWithError(relayErr)
	})
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	silent := time.AfterFunc(callTimeout, func() {
		cancel(sdk.Errorf(sdk.CodeUnavailable, sdk.MayHaveRun, "call the kernel host: the command said nothing for %s", callTimeout))
	})
	defer silent.Stop()
	status, err := c.p.exec(ctx, loaderLaunch(c.python, "call", config, hostSource), nil, &heard{in, silent}, &stderr)
	_ = in.Close()
	wg.Wait()
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case relayErr != nil && status.Code == 1: // it said why
		return relayErr
	case status.Code != 0:
		return fmt.Errorf("call the kernel host: %s%s", status, quoteOutput(stderr.String()))
	}
	return relayErr
}

// heard is the output of a command, which gets its time anew with all it says.
type heard struct {
	io.Writer
	silent *time.Timer
}

func (h *heard) Write(b []byte) (int, error) {
	h.silent.Reset(callTimeout)
	return h.Writer.Write(b)
}

// deliver passes a command's frames on and keeps count of the cells' output.
func (c *callConn) deliver(r *bufio.Reader) error {
	for {
		line, err := r.ReadString('\n')
		if line == "hermes-call\n" {
			break
		}
		if answer, ok, _ := lockdown.ParseAnswer(line); ok && answer.Kind == lockdown.Failed {
			return c.p.explainError("call the kernel host", answer.Payload)
		}
		if err != nil {
			return errors.New("call the kernel host: it ended without an answer")
		}
	}
	for {
		f, err := cell.ReadFrame(r, cell.MaxFrame)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.pass(f); err != nil {
			return err
		}
	}
}

func (c *callConn) pass(f cell.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	raw := cell.EncodeFrame(f)
	ch := f.Channel
	if f.Msg != nil {
		ch = uint32(f.Msg.Int("ch"))
	}
	if called := c.cells[ch]; called != nil {
		called.count(f)
	}
	if f.Msg != nil {
		delete(c.asked, f.Msg.Int("req"))
	}
	_, err := c.w.Write(raw)
	return err
}

func (c *calledCell) count(f cell.Frame) {
	end := f.Offset + int64(len(f.Data))
	switch {
	case f.Msg == nil && f.Stream == cell.StreamOut:
		c.out = end
	case f.Msg == nil:
		c.err = end
	case f.Msg.Text("t") == "gap" && f.Msg.Int("stream") == cell.StreamOut:
		c.out = f.Msg.Int("to")
	case f.Msg.Text("t") == "gap":
		c.err = f.Msg.Int("to")
	case f.Msg.Text("t") == "end":
		c.ended = true
	}
}

// Ephemeral says that the connection is there only while a command is.
func (c *callConn) Ephemeral() {}

// Close ends every command and waits for it.
func (c *callConn) Close() error {
	c.cancel()
	_ = c.w.CloseWithError(net.ErrClosed)
	_ = c.r.CloseWithError(net.ErrClosed)
	c.mu.Lock() // the pipe is closed, so nobody keeps it
	c.closed = true
	c.mu.Unlock()
	c.wg.Wait()
	return nil
}
