package kernel

import (
	"context"
	"crypto/rand" // the key makes a second open, should the answer get lost, the same one
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
)

const (
	// openTimeout is how long a kernel may take to be up.
	openTimeout = 60 * time.Second
	// requestTimeout is how long anything that a host is asked may take. It is enough for asking again when a command that carries the request hangs.
	requestTimeout = 60 * time.Second
	// hostGrace is the kernel host's time between SIGINT and KILL.
	hostGrace = 2 * time.Second
	// reconnectFor is how long a broken connection to a kernel host is mended before its cells are given up.
	reconnectFor = 15 * time.Second
	// mostFutile is how many connections in a row may break without any output of a cell that is followed.
	mostFutile = 30
	// GiveUpAfter is how long a cancelled cell may take to end: the host's ladder, and some room.
	GiveUpAfter = hostGrace + 4*time.Second
)

// errGone means that nobody is left who could know what became of a cell.
var errGone = errors.New("the kernel host is gone")

// IsGone says whether err means that the host is not there any more: it is another one now, or nobody listens. What a living host refuses
// is no sign of that.
func IsGone(err error) bool {
	return !refused(err) && (errors.Is(err, errGone) || nobodyListens(err))
}

// nobodyListens reports whether err says that there is no living socket: refused, or not there.
func nobodyListens(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}

// Host is one kernel host and the connection to it, mended when it breaks. Its methods may be called concurrently.
type Host struct {
	process Process
	id      Identity
	gate    chan struct{} // holds one token: who has it may change link and closed
	link    *link
	closed  bool
}

// NewHost returns the conversation with a kernel host. It does no I/O. The caller must close it.
func NewHost(p Process, id Identity) *Host {
	h := &Host{process: p, id: id, gate: make(chan struct{}, 1)}
	h.gate <- struct{}{}
	return h
}

// Identity tells which life of which kernel host this is. It does no I/O.
func (h *Host) Identity() Identity { return h.id }

// Reach connects if there is no connection, to see that the host is there. Its error satisfies IsGone if nobody is.
func (h *Host) Reach(ctx context.Context) error {
	l, err := h.connect(ctx)
	if err != nil {
		return err
	}
	return l.ready(ctx)
}

// connect returns a live link, a new one if need be.
func (h *Host) connect(ctx context.Context) (*link, error) {
	if ctx.Err() != nil { // else the select may choose the gate, and what was cancelled is sent
		return nil, context.Cause(ctx)
	}
	select {
	case <-h.gate:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { h.gate <- struct{}{} }()
	if h.closed {
		return nil, fmt.Errorf("%w: this engine has given it up", errGone)
	}
	if h.link != nil && h.link.broken() == nil {
		return h.link, nil
	}
	if h.link != nil {
		h.link.close()
	}
	l, err := newLink(ctx, h.attach, h.process.Refused)
	if err != nil {
		return nil, err
	}
	h.link = l
	return l, nil
}

// attach opens a connection to this incarnation, and to no other.
func (h *Host) attach(ctx context.Context, hello cell.Fields) (io.ReadWriteCloser, cell.Fields, error) {
	conn, welcome, err := h.process.Connect(ctx, hello)
	if err != nil {
		return nil, nil, err
	}
	if inc := welcome.Text("inc"); inc != h.id.Incarnation {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("%w: another one (%s) has taken the place of %s", errGone, inc, h.id.Incarnation)
	}
	return conn, welcome, nil
}

// mend is connect with patience.
func (h *Host) mend(ctx context.Context) (l *link, err error) {
	err = persist(ctx, func(ctx context.Context) error {
		l, err = h.connect(ctx)
		return err
	})
	return l, err
}

// persist tries again until the host answers, is known to be gone, or reconnectFor has passed.
func persist(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, reconnectFor)
	defer cancel()
	wait := 20 * time.Millisecond
	for refusals := 0; ; {
		err := try(ctx)
		if err == nil || errors.Is(err, errGone) || errors.Is(err, fs.ErrPermission) {
			return err
		}
		if nobodyListens(err) {
			refusals++
		}
		if refusals >= 5 { // the socket is there and dead, or not there: a living host listens all the time
			return fmt.Errorf("%w: %w", errGone, err)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
			wait = min(2*wait, time.Second)
		}
	}
}

// request sends one request, over a new connection if the old one is broken. It is bounded, also when ctx has no deadline. Requests are idempotent.
func (h *Host) request(ctx context.Context, msg cell.Fields) (cell.Fields, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, fmt.Errorf("the kernel host did not answer within %s", requestTimeout))
	defer cancel()
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

// OpenRequest asks for a kernel. The kernel of a session is the one that is there, if one is.
type OpenRequest struct {
	Session  string // empty: a kernel of the engine that asks
	Owner    string
	Language cell.Language
	Dir      string            // working directory of a new kernel; empty: the host's
	Env      map[string]string // added to the environment of a new kernel
	Reset    bool              // end the one that is there
}

// Opened is the answer: the kernel, and what its owner must know of it.
type Opened struct {
	Kernel  Kernel
	Created bool
	Reset   bool   // the request asked for a fresh one
	Lost    string // why the one before is gone; empty if nothing was lost
	Cells   int    // that the kernel has run
}

// Open asks for a kernel. It is bounded, also when ctx has no deadline. Its error is what Process made of the host's refusal, or satisfies IsGone.
func (h *Host) Open(ctx context.Context, req OpenRequest) (Opened, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, fmt.Errorf("the kernel was not up after %s", openTimeout))
	defer cancel()
	answer, err := h.request(ctx, cell.Fields{
		"t": "open", "key": rand.Text(), "session": req.Session, "owner": req.Owner, "lang": string(req.Language), "dir": req.Dir, "env": req.Env, "reset": req.Reset,
	})
	if err != nil {
		return Opened{}, err
	}
	return Opened{
		Kernel: Kernel{ID: answer.Text("kernel"), Host: h}, Created: answer.Flag("created"), Reset: answer.Flag("reset"),
		Lost: answer.Text("lost"), Cells: int(answer.Int("cells")),
	}, nil
}

// Status is a kernel as its host lists it.
type Status struct {
	Kernel   Kernel
	Session  string
	Language cell.Language
	State    string // idle, busy, starting
	Cells    int
	PID      int
	Started  time.Time
	LastUsed time.Time
}

// List lists the host's kernels. Its error satisfies IsGone if nobody is there.
func (h *Host) List(ctx context.Context) ([]Status, error) {
	answer, err := h.request(ctx, cell.Fields{"t": "list"})
	if err != nil {
		return nil, err
	}
	var out []Status
	for _, v := range answer.List("kernels") {
		k, ok := v.(cell.Fields)
		if !ok {
			continue
		}
		out = append(out, Status{
			Kernel: Kernel{ID: k.Text("kernel"), Host: h}, Session: k.Text("session"), Language: cell.Language(k.Text("lang")), State: k.Text("state"),
			Cells: int(k.Int("cells")), PID: int(k.Int("pid")), Started: unixTime(k.Float("started")), LastUsed: unixTime(k.Float("last_used")),
		})
	}
	return out, nil
}

func unixTime(seconds float64) time.Time { return time.UnixMicro(int64(seconds * 1e6)).UTC() }

// Fetch returns what the host has kept of a stream (cell.StreamOut, cell.StreamErr) of the cell with that id between two offsets in bytes. What is
// missing before data ends at begins. Its error says that nothing of it can be had.
func (h *Host) Fetch(ctx context.Context, id string, stream byte, from, to int64) (data []byte, begins int64, err error) {
	answer, err := h.request(ctx, cell.Fields{"t": "fetch", "cell": id, "stream": int64(stream), "from": from, "to": to})
	if err != nil {
		return nil, 0, err
	}
	return answer.Bytes("data"), max(from, answer.Int("gap_to")), nil
}

// Forget tells the host that the result of the cell with that id may go. It is sent with the next message; should it get lost, the host forgets by itself.
func (h *Host) Forget(ctx context.Context, id string) {
	if l, err := h.connect(ctx); err == nil {
		l.sendLater(cell.Fields{"t": "ack", "cell": id})
	}
}

// Close ends the connection for good; an unnamed host is told to end too, also when ctx is done.
func (h *Host) Close(ctx context.Context) {
	<-h.gate // whoever has it is bounded
	defer func() { h.gate <- struct{}{} }()
	h.closed = true
	if h.link == nil {
		return
	}
	h.link.leave()
	h.link.flush()
	if !h.id.Detached && h.link.broken() == nil { // nobody is there to be asked, else
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), GiveUpAfter)
		defer cancel()
		if _, err := h.link.request(ctx, cell.Fields{"t": "shutdown"}); err == nil {
			h.link.waitEnd(ctx)
		}
	}
	h.link.close()
}
