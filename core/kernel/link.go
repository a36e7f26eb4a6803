package kernel

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
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
	errForgotten  = errors.New("the kernel host has forgotten what was asked over an earlier connection")
	errLacking    = errors.New("output was lost with an earlier connection")
)

// link is the engine's end of the conversation with a kernel host. Where messages are numbered it goes on over another connection when one
// breaks; else it ends with its connection. Its goroutines, the runner and the heartbeat, end with it; close waits for both.
type link struct {
	id        []byte // its name at the host
	attach    attachFunc
	refused   func(code, message string) error // makes the error of a refused request
	numbered  bool
	ephemeral bool // the connection exists only while it answers
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	done      chan struct{} // closed when the link is over

	writeMu sync.Mutex    // one writer at a time; never taken while mu is held
	held    []cell.Fields // messages that wait for the next one to be sent; under writeMu

	mu    sync.Mutex // only update takes it
	state linkState
}

// attachFunc opens a connection that goes on with a link: hello says which, the host's welcome whether it does.
type attachFunc func(ctx context.Context, hello cell.Fields) (conn io.ReadWriteCloser, welcome cell.Fields, err error)

// linkState is what the goroutines of a link share.
type linkState struct {
	err     error              // why the link is over; nil while it is not
	conn    io.ReadWriteCloser // nil while there is none
	changed chan struct{}      // closed and replaced when err or conn or the room for messages changes
	leaving bool               // a broken connection is the end
	numbers numbers
	written int64 // the number of the last message of which the host may have got anything
	resumed int64 // the number of our last message that the host had heard when this connection began
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

// tell wakes up who waits for a change.
func (s *linkState) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// newLink begins a conversation. The caller must close the link.
func newLink(ctx context.Context, attach attachFunc, refused func(code, message string) error) (*link, error) {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	conn, welcome, err := attach(ctx, cell.Fields{"link": id, "heard": int64(0)})
	if err != nil {
		return nil, err
	}
	_, ephemeral := conn.(interface{ Ephemeral() })
	l := &link{
		id: id, attach: attach, refused: refused, done: make(chan struct{}), numbered: welcome.Int("v") >= 2, ephemeral: ephemeral,
		state: linkState{
			changed: make(chan struct{}), waiting: map[int64]chan cell.Fields{}, streams: map[uint32]*cellStream{},
			conn: conn, heard: time.Now(), spoke: time.Now(),
		},
	}
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx)) // the link outlives the attaching; fail ends it
	l.wg.Go(func() { l.run(ctx, conn) })                           // both end when the link is over, and close waits for them
	l.wg.Go(l.beat)
	return l, nil
}

// run serves one connection after the other until the link is over.
func (l *link) run(ctx context.Context, conn io.ReadWriteCloser) {
	var going sync.WaitGroup
	for futile := 0; ; futile++ {
		heard, err := l.read(conn)
		if heard {
			futile = 0
		}
		var over bool
		l.update(func(s *linkState) {
			if s.conn == conn {
				s.conn = nil
			}
			over = s.err != nil || s.leaving
		})
		_ = conn.Close()
		going.Wait() // it writes to conn
		// Numbers that went wrong are begun anew, with another link.
		if over || !l.numbered || futile >= mostFutile || errors.Is(err, cell.ErrMalformed) {
			l.fail(err)
			return
		}
		next, welcome, err := l.again(ctx)
		if err != nil {
			l.fail(err)
			return
		}
		going.Go(func() { l.goOn(next, welcome) }) // ends with the connection at the latest; it is read meanwhile
		conn = next
	}
}

// again opens the next connection of the link.
func (l *link) again(ctx context.Context) (conn io.ReadWriteCloser, welcome cell.Fields, err error) {
	err = persist(ctx, func(ctx context.Context) error {
		var heard int64
		l.update(func(s *linkState) { heard = s.numbers.heard })
		conn, welcome, err = l.attach(ctx, cell.Fields{"link": l.id, "heard": heard})
		return err
	})
	if err == nil && !welcome.Flag("resumed") {
		_ = conn.Close()
		err = errForgotten
	}
	return conn, welcome, err
}

// goOn says over a new connection what the host has not heard. Whoever sends something meanwhile waits.
func (l *link) goOn(conn io.ReadWriteCloser, welcome cell.Fields) {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	var frames [][]byte
	var err error
	l.update(func(s *linkState) {
		if err = s.err; err != nil {
			return
		}
		chs := []any{}
		for ch, stream := range s.streams {
			out, errs := stream.got()
			chs = append(chs, []any{int64(ch), out, errs})
		}
		if frames, err = s.numbers.resume(welcome.Int("heard")); err != nil {
			return
		}
		frames = slices.Insert(frames, 0, cell.EncodeMessage(cell.Fields{"t": "resume", "chs": chs}))
		s.resumed, s.written = welcome.Int("heard"), s.numbers.sent
		s.conn, s.heard, s.spoke = conn, time.Now(), time.Now()
		s.tell()
	})
	if err == nil {
		_, err = l.write(conn, slices.Concat(frames...))
	}
	if errors.Is(err, cell.ErrMalformed) { // the numbers went wrong, and no other connection puts them right
		l.fail(err)
	}
	if err != nil {
		_ = conn.Close() // the runner reads it and finds out
	}
}

// write writes with a bound, should the host not read. The caller holds writeMu.
func (l *link) write(conn io.ReadWriteCloser, data []byte) (int, error) {
	stop := time.AfterFunc(vanishedAfter, func() { _ = conn.Close() })
	defer stop.Stop()
	return conn.Write(data)
}

// read dispatches frames until the connection breaks. It says whether there were any.
func (l *link) read(conn io.Reader) (some bool, err error) {
	r := bufio.NewReaderSize(conn, 256<<10)
	for {
		f, err := cell.ReadFrame(r, cell.MaxFrame)
		if errors.Is(err, io.EOF) {
			return some, errEnded
		}
		if err != nil {
			return some, err
		}
		some = true
		fresh, due, err := l.take(f)
		if err != nil {
			return some, err
		}
		switch {
		case f.Msg == nil:
			l.stream(f.Channel).push(f)
		case fresh:
			l.dispatch(f)
		}
		if due {
			l.sendLoose(cell.Fields{"t": "heard"})
		}
	}
}

// take notes what has come. fresh is false for a message that came before, due says that the host should be told what was heard.
func (l *link) take(f cell.Frame) (fresh, due bool, err error) {
	fresh = true
	l.update(func(s *linkState) {
		s.heard = time.Now()
		full := s.numbers.size >= mostKept
		switch {
		case f.Number > 0 && !l.numbered:
			err = fmt.Errorf("%w: a numbered message on a link without numbers", cell.ErrMalformed)
		case f.Number > 0:
			fresh, err = s.numbers.take(f.Number, f.Heard)
			due = s.numbers.heard-s.numbers.told >= tellEvery
		case f.Msg != nil && l.numbered && f.Msg.Has("heard"):
			err = s.numbers.acknowledge(f.Msg.Int("heard"))
		}
		if full && s.numbers.size < mostKept {
			s.tell()
		}
	})
	return fresh, due, err
}

func (l *link) dispatch(f cell.Frame) {
	switch kind := f.Msg.Text("t"); {
	case kind == "ping":
		l.sendLoose(cell.Fields{"t": "pong", "req": f.Msg.Int("req")})
	case kind == "resumed":
		l.forgetChannels(f.Msg.List("chs"))
	case f.Msg.Has("req"):
		l.answer(f.Msg)
	case f.Msg.Has("ch"):
		l.stream(uint32(f.Msg.Int("ch"))).push(f)
	}
}

// forgetChannels ends the streams that the host has no channel for any more: they ended while nobody was there.
func (l *link) forgetChannels(known []any) {
	var gone []*cellStream
	l.update(func(s *linkState) {
		for ch, stream := range s.streams {
			if stream.number > 0 && stream.number <= s.resumed && !slices.Contains(known, any(int64(ch))) {
				gone = append(gone, stream)
				delete(s.streams, ch)
			}
		}
	})
	for _, stream := range gone {
		stream.fail(errLacking)
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

// beat speaks after a silence of our own, and breaks the connection after one of theirs.
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
		var conn io.ReadWriteCloser
		l.update(func(s *linkState) { heard, spoke, conn = time.Since(s.heard), time.Since(s.spoke), s.conn })
		if conn == nil { // the runner sees to it
			timer.Reset(beatEvery)
			continue
		}
		if heard > vanishedAfter {
			_ = conn.Close() // the runner finds out
			l.unlessNumbered(fmt.Errorf("the kernel host was silent for %s", heard.Round(time.Second)))
			timer.Reset(beatEvery)
			continue
		}
		quiet := max(heard, spoke)
		if quiet >= beatEvery {
			l.sendLoose(cell.Fields{"t": "ping"})
			quiet = heard // one ping is enough until an answer is overdue
			if quiet >= beatEvery {
				quiet = 0
			}
		}
		timer.Reset(beatEvery - quiet)
	}
}

// unlessNumbered is fail for a link that ends with its connection.
func (l *link) unlessNumbered(err error) {
	if !l.numbered {
		l.fail(err)
	}
}

// fail ends the link; only the first reason counts.
func (l *link) fail(err error) {
	first, streams, conn := false, map[uint32]*cellStream(nil), io.Closer(nil)
	l.update(func(s *linkState) {
		if first = s.err == nil; first {
			s.err = err
			streams, s.streams = s.streams, map[uint32]*cellStream{}
			if s.conn != nil {
				conn, s.conn = s.conn, nil
			}
			s.tell()
		}
	})
	if !first {
		return
	}
	close(l.done)
	l.cancel()
	for _, s := range streams {
		s.fail(err)
	}
	if conn != nil {
		_ = conn.Close()
	}
}

// broken returns why the link is over, or nil.
func (l *link) broken() (why error) {
	l.update(func(s *linkState) { why = s.err })
	return why
}

// leave makes a broken connection the end of the link, for a host that is told to end.
func (l *link) leave() {
	l.update(func(s *linkState) { s.leaving = true })
}

// waitEnd waits until a host that was told to end has closed the connection, which it does when its directory is gone.
func (l *link) waitEnd(ctx context.Context) {
	if l.ephemeral {
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
	l.held = append(l.held, msg)
}

// flush sends what sendLater holds.
func (l *link) flush() {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	if len(l.held) > 0 {
		_, _ = l.post(nil, nil) // what was not urgent may get lost with the link
	}
}

// sendLoose sends what need not arrive, if there is a connection: without a number.
func (l *link) sendLoose(msg cell.Fields) {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	var conn io.ReadWriteCloser
	l.update(func(s *linkState) {
		conn, s.spoke = s.conn, time.Now()
		if l.numbered && !msg.Has("ch") {
			s.numbers.hearing(msg)
		}
	})
	if conn == nil {
		return
	}
	if _, err := l.write(conn, cell.EncodeMessage(msg)); err != nil {
		_ = conn.Close() // the runner finds out
	}
}

// send sends msg, which arrives once unless the link ends. It waits for a connection, and for room. mayHave says whether the host may have got any of it,
// now or later: a connection to a host that has died takes nothing. The message of a stream names it; others pass nil.
func (l *link) send(ctx context.Context, msg cell.Fields, stream *cellStream) (mayHave bool, err error) {
	if err := l.ready(ctx); err != nil {
		return false, err
	}
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	return l.post(msg, stream)
}

// ready waits until there is a connection, and room for a message.
func (l *link) ready(ctx context.Context) error {
	for {
		var err error
		var ready bool
		var changed chan struct{}
		l.update(func(s *linkState) {
			err, ready, changed = s.err, s.conn != nil && s.numbers.size < mostKept, s.changed
		})
		if err != nil || ready {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// post numbers what is held and msg, if it is not nil, and writes both. The caller holds writeMu.
func (l *link) post(msg cell.Fields, stream *cellStream) (mayHave bool, err error) {
	msgs := l.held
	if msg != nil {
		msgs = append(msgs, msg)
	}
	var data []byte
	var conn io.ReadWriteCloser
	l.update(func(s *linkState) {
		if err = s.err; err != nil || s.conn == nil && !l.numbered {
			return
		}
		for _, m := range msgs {
			if l.numbered {
				data = append(data, s.numbers.send(m)...)
			} else {
				data = append(data, cell.EncodeMessage(m)...)
			}
		}
		if stream != nil {
			stream.number = s.numbers.sent
		}
		conn, s.spoke = s.conn, time.Now()
	})
	if err != nil {
		return false, err
	}
	l.held = l.held[:0]
	if conn == nil { // the runner brings it, or nobody
		return l.numbered, nil
	}
	n, err := l.write(conn, data)
	if n > 0 {
		l.update(func(s *linkState) { s.written = max(s.written, s.numbers.sent) })
	}
	switch {
	case err == nil:
		return true, nil
	case l.numbered:
		_ = conn.Close() // the runner goes on over another one
		return true, nil
	}
	l.fail(err)
	return n > 0, l.broken()
}

// neverLeft says of a link that is over whether the host got nothing of the stream's message.
func (l *link) neverLeft(stream *cellStream) (never bool) {
	l.update(func(s *linkState) { never = l.numbered && s.err != nil && stream.number > s.written })
	return never
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
	if _, err := l.send(ctx, msg, nil); err != nil {
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

// follow opens a channel for one cell whose output is there up to two offsets. The caller must end it with drop.
func (l *link) follow(out, errs int64) (stream *cellStream, err error) {
	l.update(func(s *linkState) {
		if err = s.err; err != nil {
			return
		}
		s.nextCh++
		stream = &cellStream{ch: s.nextCh, link: l, wake: make(chan struct{}, 1), came: [2]int64{out, errs}, out: out, errs: errs}
		s.streams[stream.ch] = stream
	})
	return stream, err
}

// cellStream queues what arrives for one cell until the goroutine that runs it takes it. The host sends at most 1 MiB
// beyond what was acknowledged as seen, which bounds the queue. A nil cellStream swallows what is pushed.
type cellStream struct {
	ch     uint32
	link   *link
	number int64         // of the message that asked for it; the link's state
	wake   chan struct{} // a token: there is something to take

	mu    sync.Mutex
	queue []cell.Frame
	came  [2]int64 // the offsets up to which output has come
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
	if s.err == nil && s.accept(&f) {
		s.queue = append(s.queue, f)
	}
	s.mu.Unlock()
	s.signal()
}

// accept counts what has come, and refuses what leaves a hole: the cell is then followed anew, from what was taken.
func (s *cellStream) accept(f *cell.Frame) bool {
	switch {
	case f.Msg == nil:
		came := &s.came[f.Stream-1]
		if f.Offset != *came {
			s.err = errLacking
			return false
		}
		*came += int64(len(f.Data))
	case f.Msg.Text("t") == "gap":
		n := f.Msg.Int("stream")
		if n != cell.StreamOut && n != cell.StreamErr || f.Msg.Int("from") != s.came[n-1] || f.Msg.Int("to") <= s.came[n-1] {
			s.err = errLacking
			return false
		}
		s.came[n-1] = f.Msg.Int("to")
	case f.Msg.Text("t") == "end":
		if f.Msg.Int("out") > s.came[0] || f.Msg.Int("err") > s.came[1] {
			s.err = errLacking
			return false
		}
	}
	return true
}

// got returns the offsets up to which output has come.
func (s *cellStream) got() (out, errs int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.came[0], s.came[1]
}

func (s *cellStream) fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
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
		s.link.sendLoose(cell.Fields{"t": "seen", "ch": int64(s.ch), "out": s.out, "err": s.errs})
	}
}

// drop ends the channel; what still arrives for it is thrown away.
func (s *cellStream) drop() {
	s.link.update(func(state *linkState) { delete(state.streams, s.ch) })
}
