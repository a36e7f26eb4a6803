package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/hermes-framework/hermes/core/cell"
)

var (
	// ErrNotSubmitted means that a cell was cancelled before it was on its way.
	ErrNotSubmitted = errors.New("cancelled before the cell was submitted")
	// ErrNeverSent means that the kernel host could not be reached before the cell was on its way.
	ErrNeverSent = errors.New("the cell was not submitted")
)

// cellRun is the state of following one cell over several connections.
type cellRun struct {
	kernel   Kernel
	sub      Submission
	tools    Tools
	sink     func(cell.Frame)
	stream   *cellStream
	sent     bool     // a submit may have arrived
	joins    *Joining // nil: the cell is submitted if it is not there
	first    bool     // none but that of stream has been sent
	out, err int64    // what the sink has
}

func (r *cellRun) run(ctx context.Context) (cell.Fields, error) {
	end, err := r.toTheEnd(ctx)
	switch {
	case err == nil || !r.sent:
		return end, err
	case IsGone(err):
		return r.recover(ctx, err)
	case r.joins != nil: // who only asks for a cell does not revoke it
		return nil, err
	}
	if r.stream != nil {
		r.stream.drop()
		r.stream = nil
	}
	return r.settle(ctx, err)
}

// toTheEnd follows the cell as long as its host is there.
func (r *cellRun) toTheEnd(ctx context.Context) (cell.Fields, error) {
	end, err := r.follow(ctx)
	switch {
	case err == nil:
		return end, nil
	case !r.sent && ctx.Err() != nil:
		return nil, ErrNotSubmitted
	case !r.sent:
		return nil, fmt.Errorf("%w: %w", ErrNeverSent, err)
	case ctx.Err() == nil:
		return nil, err
	case r.joins != nil && !r.joins.Stop:
		return nil, context.Cause(ctx)
	}
	// Cancelled: the cell is still there.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), GiveUpAfter, errors.New("the interrupted cell did not end in time"))
	defer cancel()
	if _, err := r.kernel.Host.request(ctx, cell.Fields{"t": "cancel", "cell": r.sub.ID}); err != nil && (!refused(err) || !errors.Is(err, fs.ErrNotExist)) {
		return nil, err
	}
	return r.follow(ctx)
}

func (r *cellRun) follow(ctx context.Context) (cell.Fields, error) {
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
		if r.first && r.stream.link.neverLeft(r.stream) {
			r.sent = false
		}
		r.stream.drop()
		r.stream = nil
		if r.out+r.err > had {
			futile = 0
		}
		if futile >= mostFutile {
			return nil, err
		}
	}
}

// open submits the cell, or picks it up where the last connection left it.
func (r *cellRun) open(ctx context.Context) error {
	l, err := r.kernel.Host.mend(ctx)
	if err != nil {
		return err
	}
	msg := cell.Fields{
		"t": "submit", "cell": r.sub.ID, "kernel": r.kernel.ID, "code": r.sub.Code,
		"digest": r.sub.Digest(), "timeout_ms": r.sub.Timeout.Milliseconds(),
	}
	if r.sent {
		state, err := l.request(ctx, cell.Fields{"t": "state", "cell": r.sub.ID})
		if err != nil {
			return r.unlessBroken(l, err)
		}
		switch known := state.Bytes("digest"); {
		case r.joins != nil && state.Text("state") == "none":
			return ErrNoCell
		case r.joins != nil && len(known) > 0 && !r.means(known):
			return errConflict
		case state.Text("state") != "none":
			msg = cell.Fields{"t": "follow", "cell": r.sub.ID, "out": r.out, "err": r.err}
		}
	}
	s, err := l.follow(r.out, r.err)
	if err != nil {
		return r.unlessBroken(l, err)
	}
	msg["ch"] = int64(s.ch)
	mayHave, err := l.send(ctx, msg, s)
	r.first = !r.sent
	r.sent = r.sent || mayHave
	if err != nil {
		s.drop()
		return r.unlessBroken(l, err)
	}
	r.stream = s
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

func (r *cellRun) drain(ctx context.Context) (cell.Fields, error) {
	for {
		f, err := r.stream.next(ctx)
		if err != nil {
			return nil, err
		}
		r.out, r.err = r.stream.out, r.stream.errs
		switch f.Msg.Text("t") {
		case "end":
			r.stream.drop()
			return f.Msg, nil
		case "tool":
			_, _ = r.stream.link.send(ctx, r.tools.Answer(f.Msg), nil) // a failure ends the link, and the stream says so
		default:
			r.sink(f)
			f.Recycle()
		}
	}
}
