package core

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hermes-framework/hermes/plugin"
)

// frameVersion is the version of the kernel frames that this engine speaks.
const frameVersion = 1

const (
	helloLimit    = 4 << 10
	helloTimeout  = 10 * time.Second
	beatEvery     = 10 * time.Second
	vanishedAfter = 30 * time.Second
	seenEvery     = 128 << 10
	tokenSize     = 32
)

var (
	errLinkClosed = errors.New("the connection to the kernel host was closed")
	errWrongToken = errors.New("the kernel host does not know our token")
)

// link is the engine's end of one connection to a kernel host. Its goroutines, the reader and the heartbeat, end with the connection;
// close waits for both.
type link struct {
	conn    io.ReadWriteCloser
	welcome fields
	writeMu sync.Mutex // one frame at a time; never held together with mu
	held    []byte     // frames that wait for the next one to be sent; under writeMu
	wg      sync.WaitGroup
	done    chan struct{} // closed when the link is broken

	mu      sync.Mutex
	err     error
	nextReq int64
	nextCh  uint32
	waiting map[int64]chan fields
	streams map[uint32]*cellStream
	heard   time.Time
	spoke   time.Time
}

// newLink authenticates over conn and starts the link. It owns conn, also when it fails.
func newLink(ctx context.Context, conn io.ReadWriteCloser, token []byte, clientID string, remote bool) (*link, error) {
	r := bufio.NewReaderSize(conn, 256<<10)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	welcome, err := greet(conn, r, token, clientID, remote)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("hello to the kernel host: %w", err)
	}
	return startLink(conn, r, welcome), nil
}

// startLink starts the link's goroutines on a connection that needs no hello any more.
func startLink(conn io.ReadWriteCloser, r *bufio.Reader, welcome fields) *link {
	l := &link{
		conn: conn, welcome: welcome, done: make(chan struct{}),
		waiting: map[int64]chan fields{}, streams: map[uint32]*cellStream{}, heard: time.Now(), spoke: time.Now(),
	}
	l.wg.Go(func() { l.fail(l.read(r)) })
	l.wg.Go(l.beat)
	return l
}

// greet is the hello of docs/protocol.md, section 2.1: the host proves itself first.
func greet(w io.Writer, r *bufio.Reader, token []byte, clientID string, remote bool) (fields, error) {
	nonce := make([]byte, tokenSize)
	_, _ = rand.Read(nonce) // never fails
	if _, err := w.Write(encodeMessage(fields{"t": "hello", "v": []any{frameVersion}, "nonce": nonce})); err != nil {
		return nil, err
	}
	hello, err := readMessage(r, "hello")
	if err != nil {
		return nil, err
	}
	theirs := hello.bin("nonce")
	if len(theirs) != tokenSize || !hmac.Equal(hello.bin("proof"), prove(token, "hermes host v1", nonce, theirs)) {
		return nil, errWrongToken
	}
	proof := prove(token, "hermes client v1", theirs, nonce)
	if _, err := w.Write(encodeMessage(fields{"t": "proof", "proof": proof, "client": clientID, "remote": remote})); err != nil {
		return nil, err
	}
	return readMessage(r, "welcome")
}

func prove(token []byte, label string, nonces ...[]byte) []byte {
	mac := hmac.New(sha256.New, token)
	mac.Write([]byte(label))
	mac.Write(bytes.Join(nonces, nil))
	return mac.Sum(nil)
}

func readMessage(r *bufio.Reader, kind string) (fields, error) {
	f, err := readFrame(r, helloLimit)
	switch {
	case err != nil:
		return nil, noEOF(err)
	case f.msg.str("t") == "error" && f.msg.str("code") == "version":
		return nil, fmt.Errorf("it speaks frame versions %v, this program speaks %d: use the version of hermes that started it, or end it with that version's `hermes kernels prune`", f.msg.list("v"), frameVersion)
	case f.msg.str("t") == "error":
		return nil, fmt.Errorf("it answered %s: %s", f.msg.str("code"), f.msg.str("msg"))
	case f.msg.str("t") != kind:
		return nil, fmt.Errorf("%w: %q where %q was expected", errMalformed, f.msg.str("t"), kind)
	}
	return f.msg, nil
}

// read dispatches frames until the connection breaks.
func (l *link) read(r *bufio.Reader) error {
	for {
		f, err := readFrame(r, maxFrame)
		if err != nil {
			return noEOF(err)
		}
		l.mu.Lock()
		l.heard = time.Now()
		l.mu.Unlock()
		if f.msg == nil {
			l.stream(f.channel).push(f)
			continue
		}
		l.dispatch(f)
	}
}

func (l *link) dispatch(f frame) {
	switch kind := f.msg.str("t"); {
	case kind == "ping":
		_ = l.send(fields{"t": "pong", "req": f.msg.int("req")})
	case f.msg.has("req"):
		l.answer(f.msg)
	case f.msg.has("ch"):
		l.stream(uint32(f.msg.int("ch"))).push(f)
	}
}

func (l *link) answer(msg fields) {
	l.mu.Lock()
	ch := l.waiting[msg.int("req")]
	delete(l.waiting, msg.int("req"))
	l.mu.Unlock()
	if ch != nil {
		ch <- msg // has room for its one answer
	}
}

func (l *link) stream(ch uint32) *cellStream {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.streams[ch]
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
		l.mu.Lock()
		heard, spoke := time.Since(l.heard), time.Since(l.spoke)
		l.mu.Unlock()
		if heard > vanishedAfter {
			l.fail(fmt.Errorf("the kernel host was silent for %s", heard.Round(time.Second)))
			return
		}
		quiet := max(heard, spoke)
		if quiet >= beatEvery {
			_ = l.send(fields{"t": "ping"})
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
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	close(l.done)
	streams := l.streams
	l.streams = map[uint32]*cellStream{}
	l.mu.Unlock()
	for _, s := range streams {
		s.fail(err)
	}
	_ = l.conn.Close()
}

// broken returns why the link is broken, or nil.
func (l *link) broken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// waitEnd waits until a host that was told to end has closed the connection, which it does when its directory is gone.
func (l *link) waitEnd(ctx context.Context) {
	if _, calls := l.conn.(*callConn); calls {
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
func (l *link) sendLater(msg fields) {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	l.held = append(l.held, encodeMessage(msg)...)
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

func (l *link) send(msg fields) error {
	l.writeMu.Lock()
	stop := time.AfterFunc(vanishedAfter, func() { _ = l.conn.Close() }) // should the host not read
	_, err := l.conn.Write(append(l.held, encodeMessage(msg)...))
	stop.Stop()
	l.held = l.held[:0]
	l.writeMu.Unlock()
	if err != nil {
		l.fail(err)
		return l.broken()
	}
	l.mu.Lock()
	l.spoke = time.Now()
	l.mu.Unlock()
	return nil
}

// request sends msg and waits for its answer. An answer of kind error becomes a *plugin.Error.
func (l *link) request(ctx context.Context, msg fields) (fields, error) {
	ch := make(chan fields, 1)
	l.mu.Lock()
	l.nextReq++
	req := l.nextReq
	l.waiting[req] = ch
	l.mu.Unlock()
	defer l.forget(req)

	msg["req"] = req
	if err := l.send(msg); err != nil {
		return nil, err
	}
	select {
	case answer := <-ch:
		return answer, hostError(answer)
	case <-l.done:
		return nil, l.broken()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (l *link) forget(req int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, req)
}

// hostError turns an error answer into an error that callers can act on.
func hostError(msg fields) error {
	if msg.str("t") != "error" {
		return nil
	}
	code := plugin.Code(msg.str("code"))
	if code == "" {
		code = plugin.CodeInternal
	}
	return &plugin.Error{Code: code, Delivery: plugin.NotStarted, Message: "kernel host: " + msg.str("msg")}
}

// follow opens a channel for one cell. The caller must end it with drop.
func (l *link) follow() (*cellStream, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	l.nextCh++
	s := &cellStream{ch: l.nextCh, link: l, wake: make(chan struct{}, 1)}
	l.streams[s.ch] = s
	return s, nil
}

// cellStream queues what arrives for one cell until the goroutine that runs it takes it. The host sends at most 1 MiB
// beyond what was acknowledged as seen, which bounds the queue. A nil cellStream swallows what is pushed.
type cellStream struct {
	ch   uint32
	link *link
	wake chan struct{} // a token: there is something to take

	mu    sync.Mutex
	queue []frame
	err   error

	// Only the taking goroutine uses these.
	taken []frame
	out   int64 // the offsets up to which output was taken
	errs  int64
	told  int64
}

func (s *cellStream) push(f frame) {
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
func (s *cellStream) next(ctx context.Context) (frame, error) {
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
			return frame{}, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return frame{}, context.Cause(ctx)
		}
	}
}

// saw tells the host now and then how far we are, so that it goes on sending.
func (s *cellStream) saw(f frame) {
	switch {
	case f.msg == nil && f.stream == streamOut:
		s.out = f.offset + int64(len(f.data))
	case f.msg == nil:
		s.errs = f.offset + int64(len(f.data))
	case f.msg.str("t") == "gap" && f.msg.int("stream") == streamOut:
		s.out = f.msg.int("to")
	case f.msg.str("t") == "gap":
		s.errs = f.msg.int("to")
	}
	if s.out+s.errs-s.told >= seenEvery {
		s.told = s.out + s.errs
		_ = s.link.send(fields{"t": "seen", "ch": s.ch, "out": s.out, "err": s.errs})
	}
}

// drop ends the channel; what still arrives for it is thrown away.
func (s *cellStream) drop() {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	delete(s.link.streams, s.ch)
}
