package core

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hermes-framework/hermes/plugin"
)

const (
	// hostGrace is the kernel host's time between SIGINT and KILL.
	hostGrace = 2 * time.Second
	// reconnectFor is how long a broken connection to a kernel host is mended before its cells are given up.
	reconnectFor = 15 * time.Second
	// mostFutile is how many connections in a row may break without any output of a cell that is followed.
	mostFutile = 30
	// giveUpAfter is how long a cancelled cell may take to end: the host's ladder, and some room.
	giveUpAfter = hostGrace + 4*time.Second
)

// errHostGone means that nobody is left who could know what became of a cell.
var errHostGone = errors.New("the kernel host is gone")

// hostConn is one kernel host and the connection to it, mended when it breaks.
type hostConn struct {
	place *place
	info  hostInfo
	token []byte
	named bool
	gate  chan struct{} // holds one token: who has it may change link and closed
	link  *link

	closed bool
}

func newHostConn(p *place, info hostInfo, token []byte, named bool) *hostConn {
	h := &hostConn{place: p, info: info, token: token, named: named, gate: make(chan struct{}, 1)}
	h.gate <- struct{}{}
	return h
}

// connect returns a live link, a new one if need be.
func (h *hostConn) connect(ctx context.Context) (*link, error) {
	select {
	case <-h.gate:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { h.gate <- struct{}{} }()
	if h.closed {
		return nil, fmt.Errorf("%w: this engine has given it up", errHostGone)
	}
	if h.link != nil && h.link.broken() == nil {
		return h.link, nil
	}
	l, err := attachHost(ctx, h.place, h.info, h.token)
	if err != nil {
		return nil, err
	}
	if inc := l.welcome.str("inc"); inc != h.info.Incarnation {
		l.close()
		return nil, fmt.Errorf("%w: another one (%s) has taken the place of %s", errHostGone, inc, h.info.Incarnation)
	}
	if h.link != nil {
		h.link.close()
	}
	h.link = l
	return l, nil
}

// mend is connect with patience: it tries again until the host answers, is known to be gone, or reconnectFor has passed.
func (h *hostConn) mend(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, reconnectFor)
	defer cancel()
	wait := 20 * time.Millisecond
	for refusals := 0; ; {
		l, err := h.connect(ctx)
		if err == nil || errors.Is(err, errHostGone) || errors.Is(err, errWrongToken) {
			return l, err
		}
		if nobodyListens(err) {
			refusals++
		}
		if refusals >= 5 { // the socket is there and dead, or not there: a living host listens all the time
			return nil, fmt.Errorf("%w: %w", errHostGone, err)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(wait):
			wait = min(2*wait, time.Second)
		}
	}
}

// request sends one request, over a new connection if the old one is broken. Requests are idempotent.
func (h *hostConn) request(ctx context.Context, msg fields) (fields, error) {
	for attempt := 0; ; attempt++ {
		l, err := h.connect(ctx)
		if err != nil {
			return nil, err
		}
		answer, err := l.request(ctx, msg)
		if err == nil || attempt > 0 || l.broken() == nil {
			return answer, err
		}
	}
}

// open asks for a kernel. It is bounded, also when ctx has no deadline.
func (h *hostConn) open(ctx context.Context, msg fields) (fields, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the kernel was not up after %s", startTimeout))
	defer cancel()
	msg["t"] = "open"
	return h.request(ctx, msg)
}

// close ends the connection for good; an unnamed host is told to end too, also when ctx is done.
func (h *hostConn) close(ctx context.Context) {
	<-h.gate // whoever has it is bounded
	defer func() { h.gate <- struct{}{} }()
	h.closed = true
	if h.link == nil {
		return
	}
	stop := time.AfterFunc(time.Second, func() { _ = h.link.conn.Close() }) // should the host not read
	h.link.flush()
	stop.Stop()
	if !h.named {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpAfter)
		defer cancel()
		if _, err := h.link.request(ctx, fields{"t": "shutdown"}); err == nil {
			h.link.waitEnd(ctx)
		}
	}
	h.link.close()
}

// submission is one cell on its way to a kernel.
type submission struct {
	id      string
	kernel  string
	code    string
	digest  []byte
	timeout time.Duration
}

func digest(session string, lang Language, code string) []byte {
	h := sha256.New()
	for _, part := range []string{session, string(lang), code} {
		h.Write(strconv.AppendInt(nil, int64(len(part)), 10))
		h.Write([]byte(":" + part))
	}
	return h.Sum(nil)
}

// run submits the cell and follows it to its end through broken connections. sink gets each frame, in order, none twice.
// Cancelling ctx interrupts the cell by the host's ladder; its end is still waited for. An error means that its end is not known,
// unless it is errNotSubmitted or errNeverSent.
func (h *hostConn) run(ctx context.Context, sub submission, sink func(frame)) (fields, error) {
	r := &cellRun{host: h, sub: sub, sink: sink}
	end, err := r.follow(ctx)
	switch {
	case err == nil:
		return end, nil
	case !r.sent && ctx.Err() != nil:
		return nil, errNotSubmitted
	case !r.sent:
		return nil, fmt.Errorf("%w: %w", errNeverSent, err)
	case ctx.Err() == nil:
		return nil, err
	}
	// Cancelled: the cell is still there.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), giveUpAfter, errors.New("the interrupted cell did not end in time"))
	defer cancel()
	if _, err := h.request(ctx, fields{"t": "cancel", "cell": sub.id}); err != nil && !errors.Is(err, plugin.ErrNotFound) {
		return nil, err
	}
	return r.follow(ctx)
}

var (
	// errNotSubmitted means that a cell was cancelled before it was on its way.
	errNotSubmitted = errors.New("cancelled before the cell was submitted")
	// errNeverSent means that the kernel host could not be reached before the cell was on its way.
	errNeverSent = errors.New("the cell was not submitted")
)

// cellRun is the state of following one cell over several connections.
type cellRun struct {
	host     *hostConn
	sub      submission
	sink     func(frame)
	stream   *cellStream
	sent     bool  // a submit may have arrived
	out, err int64 // what the sink has
}

func (r *cellRun) follow(ctx context.Context) (fields, error) {
	for futile := 0; ; futile++ {
		had := r.out + r.err
		if r.stream == nil {
			if err := r.open(ctx); err != nil {
				return nil, err
			}
		}
		end, err := r.drain(ctx)
		if err == nil || ctx.Err() != nil {
			return end, err
		}
		r.stream.drop()
		r.stream = nil
		if r.out+r.err > had {
			futile = 0
		}
		if futile >= mostFutile || errors.Is(err, errMalformed) {
			return nil, err
		}
	}
}

// open submits the cell, or picks it up where the last connection left it.
func (r *cellRun) open(ctx context.Context) error {
	l, err := r.host.mend(ctx)
	if err != nil {
		return err
	}
	msg := fields{
		"t": "submit", "cell": r.sub.id, "kernel": r.sub.kernel, "code": r.sub.code,
		"digest": r.sub.digest, "timeout_ms": r.sub.timeout.Milliseconds(),
	}
	if r.sent {
		state, err := l.request(ctx, fields{"t": "state", "cell": r.sub.id})
		if err != nil {
			return r.unlessBroken(l, err)
		}
		if state.str("state") != "none" {
			msg = fields{"t": "follow", "cell": r.sub.id, "out": r.out, "err": r.err}
		}
	}
	s, err := l.follow()
	if err != nil {
		return r.unlessBroken(l, err)
	}
	s.out, s.errs = r.out, r.err
	msg["ch"] = s.ch
	r.stream, r.sent = s, true
	_ = l.send(msg) // a failure breaks the link, and the stream says so
	return nil
}

// unlessBroken swallows the error of a link that broke: the next round tries another one.
func (r *cellRun) unlessBroken(l *link, err error) error {
	if l.broken() == nil {
		return err
	}
	r.stream = &cellStream{link: l, wake: make(chan struct{}, 1), err: err}
	return nil
}

func (r *cellRun) drain(ctx context.Context) (fields, error) {
	for {
		f, err := r.stream.next(ctx)
		if err != nil {
			return nil, err
		}
		r.out, r.err = r.stream.out, r.stream.errs
		if f.msg.str("t") == "end" {
			r.stream.drop()
			return f.msg, nil
		}
		r.sink(f)
		f.recycle()
	}
}
