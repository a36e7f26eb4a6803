package core

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"

	"github.com/hermes-framework/hermes/plugin"
)

// attachCalls attaches by commands that each carry a few frames there and back: for backends whose commands cannot be talked to while they run.
func attachCalls(ctx context.Context, p *place, info hostInfo, token []byte) (*link, error) {
	c := newCallConn(ctx, p, info, token)
	welcome := fields{"t": "welcome", "inc": info.Incarnation, "hostname": info.Hostname}
	l := startLink(c, bufio.NewReaderSize(c, 64<<10), welcome)
	if _, err := l.request(ctx, fields{"t": "ping"}); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// callConn looks like a connection to the kernel host. Each frame written to it starts one command, which brings back the frames that answer it;
// a cell that outlasts its command is followed by the next one from where the last one was.
type callConn struct {
	p      *place
	python string
	config fields
	ctx    context.Context // of the commands, ended by Close; the connection is what owns them
	cancel context.CancelFunc
	r      *io.PipeReader
	w      *io.PipeWriter
	wg     sync.WaitGroup

	mu    sync.Mutex // one frame at a time into w
	cells map[uint32]*calledCell
}

// calledCell is a cell that some command submitted and none has seen end.
type calledCell struct {
	id       string
	out, err int64
	ended    bool
}

func newCallConn(ctx context.Context, p *place, info hostInfo, token []byte) *callConn {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r, w := io.Pipe()
	return &callConn{
		p: p, python: info.Executable, ctx: ctx, cancel: cancel, r: r, w: w, cells: map[uint32]*calledCell{},
		config: fields{"sock": info.Socket, "token": token, "poll": pollTimeout.Seconds()},
	}
}

func (c *callConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// Write takes whole frames, the last of which is the one that matters; link writes them so.
func (c *callConn) Write(b []byte) (int, error) {
	last := b
	for n := binary.BigEndian.Uint32(last); int(n)+4 < len(last); n = binary.BigEndian.Uint32(last) {
		last = last[4+n:]
	}
	f, err := decodeFrame(last[4:])
	if err != nil {
		return 0, err
	}
	kind := f.msg.str("t")
	if kind == "seen" || kind == "pong" || kind == "ack" {
		return len(b), nil // nobody is connected between two commands
	}
	if kind == "ping" && !f.msg.has("req") {
		_, err := c.w.Write(encodeMessage(fields{"t": "pong"})) // the next command will tell whether the host is there
		return len(b), err
	}
	if kind == "submit" || kind == "follow" {
		c.mu.Lock()
		c.cells[uint32(f.msg.int("ch"))] = &calledCell{id: f.msg.str("cell"), out: f.msg.int("out"), err: f.msg.int("err")}
		c.mu.Unlock()
	}
	frames := bytes.Clone(b)
	c.wg.Go(func() {
		if err := c.exchange(frames, uint32(f.msg.int("ch"))); err != nil {
			_ = c.w.CloseWithError(err)
		}
	})
	return len(b), nil
}

// exchange carries frames there and what answers them back, until the cell of channel ch (if any) has ended.
func (c *callConn) exchange(frames []byte, ch uint32) error {
	for {
		if err := c.call(frames); err != nil {
			return err
		}
		c.mu.Lock()
		cell := c.cells[ch]
		if cell == nil || cell.ended {
			delete(c.cells, ch)
			c.mu.Unlock()
			return nil
		}
		frames = encodeMessage(fields{"t": "follow", "cell": cell.id, "ch": ch, "out": cell.out, "err": cell.err})
		c.mu.Unlock()
	}
}

// call runs one command.
func (c *callConn) call(frames []byte) error {
	config := fields{"frames": frames}
	maps.Copy(config, c.config)
	var stderr tailBuffer
	out, in := io.Pipe()
	var relayErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		relayErr = c.deliver(bufio.NewReaderSize(out, 64<<10))
		_ = out.CloseWithError(relayErr)
	})
	status, err := c.p.env.Exec(c.ctx, command(c.python, "call"), plugin.IO{Stdin: bytes.NewReader(payload(config, hostSource)), Stdout: in, Stderr: &stderr})
	_ = in.Close()
	wg.Wait()
	switch {
	case err != nil:
		return err
	case relayErr != nil && status.Code == 1: // it said why
		return relayErr
	case status.Code != 0:
		return fmt.Errorf("call the kernel host: %s%s", describeStatus(status), quoteOutput(stderr.String()))
	}
	return relayErr
}

// deliver passes a command's frames on and keeps count of the cells' output.
func (c *callConn) deliver(r *bufio.Reader) error {
	for {
		line, err := r.ReadString('\n')
		if line == "hermes-call\n" {
			break
		}
		if hexed, ok := strings.CutPrefix(strings.TrimSpace(line), "hermes-error "); ok {
			return c.p.explainError("call the kernel host", hexed)
		}
		if err != nil {
			return fmt.Errorf("call the kernel host: it ended without an answer: %w", noEOF(err))
		}
	}
	for {
		f, err := readFrame(r, maxFrame)
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

func (c *callConn) pass(f frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	raw := encodeFrame(f)
	ch := f.channel
	if f.msg != nil {
		ch = uint32(f.msg.int("ch"))
	}
	if cell := c.cells[ch]; cell != nil {
		cell.count(f)
	}
	_, err := c.w.Write(raw)
	return err
}

func (cell *calledCell) count(f frame) {
	end := f.offset + int64(len(f.data))
	switch {
	case f.msg == nil && f.stream == streamOut:
		cell.out = end
	case f.msg == nil:
		cell.err = end
	case f.msg.str("t") == "gap" && f.msg.int("stream") == streamOut:
		cell.out = f.msg.int("to")
	case f.msg.str("t") == "gap":
		cell.err = f.msg.int("to")
	case f.msg.str("t") == "end":
		cell.ended = true
	}
}

// encodeFrame is the inverse of readFrame.
func encodeFrame(f frame) []byte {
	if f.msg != nil {
		return encodeMessage(f.msg)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(1+outputHead+len(f.data)))
	b = append(b, frameOutput)
	b = binary.BigEndian.AppendUint32(b, f.channel)
	b = append(b, f.stream)
	b = binary.BigEndian.AppendUint64(b, uint64(f.offset))
	return append(b, f.data...)
}

// Close ends every command and waits for it.
func (c *callConn) Close() error {
	c.cancel()
	_ = c.w.CloseWithError(errLinkClosed)
	_ = c.r.CloseWithError(errLinkClosed)
	c.wg.Wait()
	return nil
}
