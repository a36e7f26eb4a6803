package kernel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
)

const (
	beatEvery     = 10 * time.Second
	vanishedAfter = 30 * time.Second
	seenEvery     = 128 << 10
)

var (
	errLinkClosed = errors.New("the connection to the kernel host was closed")
	errEnded      = errors.New("the kernel host closed the connection")
)

// link is the engine's end of one connection to a kernel host. Its goroutines, the reader and the heartbeat, end with the connection;
// close waits for both.
type link struct {
	conn    io.ReadWriteCloser
	refused func(code, message string) error // makes the error of a refused request
	writeMu sync.Mutex                       // one frame at a time; never held together with mu
	held    []byte                           // frames that wait for the next one to be sent; under writeMu
	wg      sync.WaitGroup
	done    chan struct{} // closed when the link is broken

	mu    sync.Mutex // only update takes it
	state linkState
}

// linkState is what the goroutines of a link share.
type linkState struct {
	err     error // why the link is broken; nil while it is not
	nextReq int64
	nextCh  uint32
	waiting map[int64]chan cell.Fields
	streams map[uint32]*cellStream
	heard   time.Time // the last frame of theirs
	spoke   time.Time // the last frame of ours
}

// update changes or reads the state. It is the only place that does; f must not block.
func (l *link) update(f func(*linkState)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.state)
}

// newLink starts the link on a connection that is greeted already. It owns conn.
func newLink(conn io.ReadWriteCloser, refused func(code, message string) error) *link {
	l := &link{
		conn: conn, refused: refused, done: make(chan struct{}),
		state: linkState{waiting: map[int64]chan cell.Fields{}, streams: map[uint32]*cellStream{}, heard: time.Now(), spoke: time.Now()},
	}
	r := bufio.NewReaderSize(conn, 256<<10)
	l.wg.Go(func() { l.fail(l.read(r)) }) // both end when the link fails, and close waits for them
	l.wg.Go(l.beat)
	return l
}

// read dispatches frames until the connection breaks.
func (l *link) read(r *bufio.Reader) error {
	for {
		f, err := cell.ReadFrame(r, cell.MaxFrame)
		if errors.Is(err, io.EOF) {
			return errEnded
		}
		if err != nil {
			return err
		}
		l.update(func(s *linkState) { s.heard = time.Now() })
		if f.Msg == nil {
			l.stream(f.Channel).push(f)
			continue
		}
		l.dispatch(f)
	}
}

func (l *link) dispatch(f cell.Frame) {
	switch kind := f.Msg.Text("t"); {
	case kind == "ping":
		_ = l.send(cell.Fields{"t": "pong", "req": f.Msg.Int("req")})
	case f.Msg.Has("req"):
		l.answer(f.Msg)
	case f.Msg.Has("ch"):
		l.stream(uint32(f.Msg.Int("ch"))).push(f)
	}
}

func (l *link) answer(msg cell.Fields) {
	var ch chan cell.Fields
	l.update(func(s *linkState) {
		ch = s.waiting[msg.Int("req")]
		delete(s.waiting, msg.Int("req"))
	})
	if ch != nil {
		ch <- msg // has room for its one answer
	}
}

func (l *link) stream(ch uint32) (found *cellStream) {
	l.update(func(s *linkState) { found = s.streams[ch] })
	return found
}

// beat speaks after a silence of our own, and ends the link after one of theirs.
func (l *link) beat() {
	timer := time.NewTimer(beatEvery)
	defer timer.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-timer.C:
		}
		var heard, spoke time.Duration
		l.update(func(s *linkState) { heard, spoke = time.Since(s.heard), time.Since(s.spoke) })
		if heard > vanishedAfter {
			l.fail(fmt.Errorf("the kernel host was silent for %s", heard.Round(time.Second)))
			return
		}
		quiet := max(heard, spoke)
		if quiet >= beatEvery {
			_ = l.send(cell.Fields{"t": "ping"})
			quiet = heard // one ping is enough until an answer is overdue
			if quiet >= beatEvery {
				quiet = 0
			}
		}
		timer.Reset(beatEvery - quiet)
	}
}

// fail breaks the link; only the first reason counts.
func (l *link) fail(err error) {
	first, streams := false, map[uint32]*cellStream(nil)
	l.update(func(s *linkState) {
		if first = s.err == nil; first {
			s.err = err
			streams, s.streams = s.streams, map[uint32]*cellStream{}
		}
	})
	if !first {
		return
	}
	close(l.done)
	for _, s := range streams {
		s.fail(err)
	}
	_ = l.conn.Close()
}

// broken returns why the link is broken, or nil.
func (l *link) broken() (why error) {
	l.update(func(s *linkState) { why = s.err })
	return why
}

// waitEnd waits until a host that was told to end has closed the connection, which it does when its directory is gone.
func (l *link) waitEnd(ctx context.Context) {
	if _, commands := l.conn.(interface{ Ephemeral() }); commands {
		return // each command ends by itself, whether the host is there or not
	}
	select {
	case <-l.done:
	case <-ctx.Done():
	}
}

func (l *link) close() {
	l.fail(errLinkClosed)
	l.wg.Wait()
}

// sendLater sends msg together with the next message: it spares the host a wake-up.
func (l *link) sendLater(msg cell.Fields) {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	l.held = append(l.held, cell.EncodeMessage(msg)...)
}

// flush sends what sendLater holds.
func (l *link) flush() {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	if len(l.held) > 0 {
		_, _ = l.conn.Write(l.held) // what was not urgent may get lost with the connection
		l.held = nil
	}
}

func (l *link) send(msg cell.Fields) error {
	_, err := l.trySend(msg)
	return err
}

// trySend is send that also says whether the host may have got any of it: a connection to a host that has died takes nothing.
func (l *link) trySend(msg cell.Fields) (mayHave bool, err error) {
	l.writeMu.Lock()
	stop := time.AfterFunc(vanishedAfter, func() { _ = l.conn.Close() }) // should the host not read
	n, err := l.conn.Write(append(l.held, cell.EncodeMessage(msg)...))
	stop.Stop()
	l.held = l.held[:0]
	l.writeMu.Unlock()
	if err != nil {
		l.fail(err)
		return n > 0, l.broken()
	}
	l.update(func(s *linkState) { s.spoke = time.Now() })
	return true, nil
}

// request sends msg and waits for its answer. An answer of kind error becomes an error.
func (l *link) request(ctx context.Context, msg cell.Fields) (cell.Fields, error) {
	ch := make(chan cell.Fields, 1)
	var req int64
	l.update(func(s *linkState) {
		s.nextReq++
		req = s.nextReq
		s.waiting[req] = ch
	})
	defer l.forget(req)

	msg["req"] = req
	if err := l.send(msg); err != nil {
		return nil, err
	}
	select {
	case answer := <-ch:
		return answer, l.refusal(answer)
	case <-l.done:
		return nil, l.broken()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (l *link) forget(req int64) {
	l.update(func(s *linkState) { delete(s.waiting, req) })
}

// refusal is the error of an answer that refuses; nil for any other.
func (l *link) refusal(answer cell.Fields) error {
	if answer.Text("t") != "error" {
		return nil
	}
	return &refusalError{l.refused(answer.Text("code"), answer.Text("msg"))}
}

// refusalError tells what a living host refused from what kept us from asking it.
type refusalError struct{ error }

// Unwrap returns what the Process made of the refusal.
func (e *refusalError) Unwrap() error { return e.error }

func refused(err error) bool {
	_, ok := errors.AsType[*refusalError](err)
	return ok
}

// follow opens a channel for one cell. The caller must end it with drop.
func (l *link) follow() (stream *cellStream, err error) {
	l.update(func(s *linkState) {
		if err = s.err; err != nil {
			return
		}
		s.nextCh++
		stream = &cellStream{ch: s.nextCh, link: l, wake: make(chan struct{}, 1)}
		s.streams[stream.ch] = stream
	})
	return stream, err
}

// cellStream queues what arrives for one cell until the goroutine that runs it takes it. The host sends at most 1 MiB
// beyond what was acknowledged as seen, which bounds the queue. A nil cellStream swallows what is pushed.
type cellStream struct {
	ch   uint32
	link *link
	wake chan struct{} // a token: there is something to take

	mu    sync.Mutex
	queue []cell.Frame
	err   error

	// Only the taking goroutine uses these.
	taken []cell.Frame
	out   int64 // the offsets up to which output was taken
	errs  int64
	told  int64
}

func (s *cellStream) push(f cell.Frame) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.queue = append(s.queue, f)
	s.mu.Unlock()
	s.signal()
}

func (s *cellStream) fail(err error) {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	s.signal()
}

func (s *cellStream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// next returns the next frame, or why there will be none. Frames that arrived before the link broke come first.
func (s *cellStream) next(ctx context.Context) (cell.Frame, error) {
	for {
		if len(s.taken) > 0 {
			f := s.taken[0]
			s.taken = s.taken[1:]
			s.saw(f)
			return f, nil
		}
		s.mu.Lock()
		s.taken, s.queue = s.queue, nil
		err := s.err
		s.mu.Unlock()
		if len(s.taken) > 0 {
			continue
		}
		if err != nil {
			return cell.Frame{}, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return cell.Frame{}, context.Cause(ctx)
		}
	}
}

// saw tells the host now and then how far we are, so that it goes on sending.
func (s *cellStream) saw(f cell.Frame) {
	switch {
	case f.Msg == nil && f.Stream == cell.StreamOut:
		s.out = f.Offset + int64(len(f.Data))
	case f.Msg == nil:
		s.errs = f.Offset + int64(len(f.Data))
	case f.Msg.Text("t") == "gap" && f.Msg.Int("stream") == cell.StreamOut:
		s.out = f.Msg.Int("to")
	case f.Msg.Text("t") == "gap":
		s.errs = f.Msg.Int("to")
	}
	if s.out+s.errs-s.told >= seenEvery {
		s.told = s.out + s.errs
		_ = s.link.send(cell.Fields{"t": "seen", "ch": s.ch, "out": s.out, "err": s.errs})
	}
}

// drop ends the channel; what still arrives for it is thrown away.
func (s *cellStream) drop() {
	s.link.update(func(state *linkState) { delete(state.streams, s.ch) })
}
