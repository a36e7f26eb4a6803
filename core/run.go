package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/hermes-framework/hermes/plugin"
)

// Run runs one cell and returns when it has ended. emit, which may be nil, is called in the goroutine that called Run, for each event in order.
//
// The error is nil when the cell ran to its own end (outcomes ok, error, exit). For timeout, interrupted, lost, unknown and refused it is an
// *RunError beside the Result, which is as complete as can be. Any other error means that nothing ran; it wraps a *plugin.Error where a caller can act on it.
//
// Cancelling ctx interrupts the cell: SIGINT, two seconds, KILL; Run returns its end. A ctx whose deadline passed makes the outcome timeout.
// Cells on one kernel run one after the other, in the order of their submission.
func (e *Engine) Run(ctx context.Context, req Request, emit func(Event)) (Result, error) {
	if err := e.check(&req); err != nil {
		return Result{}, err
	}
	r := &run{engine: e, req: req, chosen: req.ID != ""}
	for attempt := 0; ; attempt++ {
		if !r.chosen {
			r.req.ID = e.NewCellID()
		}
		r.out = newCollector(r.req.ID, emit, e.spills)
		res, err := r.once(ctx)
		if err != nil {
			return Result{}, err
		}
		if attempt == 0 && !r.chosen && res.Cell.Outcome == OutcomeRefused && res.Cell.Reason == reasonNoKernel {
			continue // its kernel was gone before: it certainly did not run, so a fresh kernel gets it
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && res.Cell.Outcome == OutcomeInterrupted {
			res.Cell.Outcome = OutcomeTimeout
		}
		r.out.tell(Event{Kind: EventEnd, Result: &res})
		return res, outcomeError(res.Cell.Outcome, res.Cell.Reason)
	}
}

// Reasons for refusing a cell: its kernel is gone; it was cancelled before it started.
const (
	reasonNoKernel  = "no_kernel"
	reasonCancelled = "cancelled"
)

// check completes req and refuses what can never run.
func (e *Engine) check(req *Request) error {
	if err := e.alive(); err != nil {
		return err
	}
	if req.Language == "" {
		req.Language = Python
	}
	switch {
	case req.Language != Python && req.Language != Bash:
		return invalid("the languages are python and bash", "language %q: unknown", req.Language)
	case len(req.Code) > MaxCode:
		return invalid("put the data into a file and let the cell read it", "the cell has %d bytes; at most %d are allowed", len(req.Code), MaxCode)
	case !utf8.ValidString(req.Code):
		return invalid("convert the code to UTF-8", "the cell is not UTF-8: byte %d", invalidAt(req.Code))
	case len(req.ID) > maxID || slices.Contains([]byte(req.ID), 0):
		return invalid("use at most 200 bytes", "cell id %q: too long, or it contains a NUL", req.ID)
	case req.Timeout < 0:
		return invalid("", "timeout %s: negative", req.Timeout)
	}
	for k := range req.Env {
		if k == "" || slices.ContainsFunc([]byte(k), func(c byte) bool { return c == '=' || c == 0 }) {
			return invalid("", "environment variable %q: not a name", k)
		}
	}
	if req.Session != "" {
		return checkSession(req.Session)
	}
	return nil
}

const maxID = 200

// invalidAt is the offset of the first byte that is not UTF-8.
func invalidAt(s string) int {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i
			}
		}
	}
	return len(s)
}

// run is one cell on its way.
type run struct {
	engine *Engine
	req    Request
	chosen bool // the caller chose the id
	out    *collector
}

func (r *run) once(ctx context.Context) (Result, error) {
	if r.req.Session != "" {
		return r.inSession(ctx)
	}
	return r.inPool(ctx)
}

// inPool runs the cell in a kernel of this engine.
func (r *run) inPool(ctx context.Context) (Result, error) {
	e := r.engine
	env, err := e.environment(ctx, r.req.Environment)
	if err != nil {
		return Result{}, err
	}
	key := kernelKey{
		owner: r.req.Owner, environment: env.name, language: r.req.Language,
		interpreter: e.interpreter(r.req), dir: env.dir(r.req.Dir),
	}
	reset := r.req.Reset && e.pool.discard(key)
	r.req.Reset = false // once is enough, should the cell need a second kernel
	k, reused, err := e.pool.lend(ctx, key, func(ctx context.Context) (kernelRef, error) { return e.startKernel(ctx, env, key, r.req.Env) })
	if err != nil {
		return Result{}, err
	}
	defer e.pool.giveBack(k)
	if reused && len(r.req.Env) > 0 {
		r.out.note("the kernel was there already: the environment variables of this cell were not set; reset it to set them")
	}

	res := Result{Kernel: r.kernel(env, k.ref)}
	res.Kernel.Reused, res.Kernel.StateReset = reused, reset
	if !reused && k.lost != "" {
		res.Kernel.StateLost, res.Kernel.StateLostReason = true, k.lost
	}
	end := r.submit(ctx, k.ref, &res)
	if end != nil {
		res.Kernel.Cells = int(end.int("cells"))
		e.pool.ran(k)
	}
	cancelled := end == nil && res.Cell.Reason == reasonCancelled // the kernel never saw it
	if !cancelled && !end.flag("kernel_alive") {
		e.pool.forget(k, lostReason(end))
	}
	if !cancelled && end == nil {
		env.forgetHost(ctx, k.ref.host)
	}
	return res, nil
}

// lostReason is why the kernel that end comes from has lost its state.
func lostReason(end fields) string {
	if reason := end.str("lost"); reason != "" {
		return reason
	}
	return "died"
}

func (r *run) kernel(env *environment, ref kernelRef) Kernel {
	return Kernel{
		ID: ref.id, Session: r.req.Session, Environment: env.name, Language: r.req.Language,
		Host: ref.host.info.Hostname, Incarnation: ref.host.info.Incarnation,
	}
}

func (e *Engine) interpreter(req Request) string {
	if req.Interpreter != "" {
		return req.Interpreter
	}
	return e.cfg.Interpreter
}

// startKernel starts a kernel of this engine, and its kernel host before that if need be.
func (e *Engine) startKernel(ctx context.Context, env *environment, key kernelKey, vars map[string]string) (kernelRef, error) {
	for attempt := 0; ; attempt++ {
		h, err := env.host(ctx, hostKey{interpreter: key.interpreter}, newHost)
		if err != nil {
			return kernelRef{}, err
		}
		answer, err := h.open(ctx, fields{
			"session": "", "owner": key.owner, "lang": string(key.language), "dir": key.dir, "env": vars, "reset": false,
		})
		if err == nil {
			return kernelRef{id: answer.str("kernel"), pid: int(answer.int("pid")), host: h}, nil
		}
		if attempt > 0 || !nobodyListens(err) && !errors.Is(err, errHostGone) {
			return kernelRef{}, fmt.Errorf("environment %s: start a %s kernel: %w", label(env.name), key.language, err)
		}
		env.forgetHost(ctx, h) // it died while it had no cell of ours: a new one takes its place
	}
}

// submit runs the cell on a kernel and writes what became of it into res. It returns the host's end, or nil if there is none.
func (r *run) submit(ctx context.Context, ref kernelRef, res *Result) fields {
	begun := time.Now()
	sub := submission{
		id: r.req.ID, kernel: ref.id, code: r.req.Code, timeout: r.req.Timeout,
		digest: digest(r.req.Session, r.req.Language, r.req.Code),
	}
	end, err := ref.host.run(ctx, sub, r.out.take)
	c := &res.Cell
	c.ID = r.req.ID
	switch {
	case errors.Is(err, errNotSubmitted):
		c.Outcome, c.Reason = OutcomeRefused, reasonCancelled
	case errors.Is(err, errNeverSent) && !r.chosen: // an id that was chosen may have been submitted by somebody before
		c.Outcome, c.Reason = OutcomeRefused, reasonNoKernel
	case err != nil:
		c.Outcome, c.Reason = OutcomeUnknown, err.Error()
	default:
		fold(c, end)
		r.fetchTails(ctx, ref.host, end)
	}
	if end == nil {
		c.DurationMS = float64(time.Since(begun).Microseconds()) / 1000
	}
	r.out.finish(c)
	return end
}

// fold writes what the host says of a cell's end into c.
func fold(c *Cell, end fields) {
	c.Outcome, c.Signal, c.DurationMS = Outcome(end.str("outcome")), end.str("signal"), end.float("ms")
	if v, ok := end["value"].(string); ok {
		c.Value = &v
	}
	if code, ok := end["exit_code"].(int64); ok {
		n := int(code)
		c.ExitCode = &n
	}
	if e := end.sub("error"); e != nil {
		c.Error = &CellError{Type: e.str("type"), Message: e.str("message"), Traceback: e.str("traceback")}
	}
	switch c.Reason = end.str("reason"); {
	case c.Reason == "":
		c.Reason = end.str("msg")
	case end.str("msg") != "" && c.Reason != reasonNoKernel:
		c.Reason += ": " + end.str("msg")
	}
}

// fetchTails asks for the last bytes of a stream whose end never came live, and tells the host that the result may go. A cancelled
// cell has a result, too.
func (r *run) fetchTails(ctx context.Context, h *hostConn, end fields) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpAfter)
	defer cancel()
	for i, key := range []string{"out", "err"} {
		s := &r.out.streams[i]
		total := end.int(key)
		if s.total >= total {
			continue
		}
		from := max(s.total, total-shownTail)
		r.out.gap(s, s.total, from)
		data, err := h.request(ctx, fields{"t": "fetch", "cell": r.req.ID, "stream": i + 1, "from": from, "to": total})
		if err != nil {
			r.out.gap(s, from, total)
			continue
		}
		r.out.gap(s, from, max(from, data.int("gap_to")))
		r.out.output(s, frame{stream: byte(i + 1), offset: s.total, data: data.bin("data")})
		r.out.gap(s, s.total, total)
	}
	if l, err := h.connect(ctx); err == nil {
		l.sendLater(fields{"t": "ack", "cell": r.req.ID}) // should it get lost, the host forgets by itself
	}
}

// Exec runs one command, outside any kernel, and returns how it ended. A non-zero exit is a status, not an error. Cancelling ctx, or the
// request's timeout, ends the whole process tree: TERM, plugin.Grace, KILL; the error is then ctx's cause, or wraps ErrTimeout.
func (e *Engine) Exec(ctx context.Context, req ExecRequest) (ExitStatus, error) {
	if len(req.Argv) == 0 {
		return ExitStatus{}, invalid("", "exec: no command")
	}
	env, err := e.environment(ctx, req.Environment)
	if err != nil {
		return ExitStatus{}, err
	}
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, req.Timeout, ErrTimeout)
		defer cancel()
	}
	var vars []string
	for _, k := range sortedKeys(req.Env) {
		vars = append(vars, k+"="+req.Env[k])
	}
	cmd := plugin.Command{Argv: req.Argv, Env: vars, InheritEnv: true, Dir: env.dir(req.Dir), TTY: req.TTY}
	status, err := env.place.env.Exec(ctx, cmd, plugin.IO{Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr, Control: req.Control})
	switch {
	case err == nil:
		return status, nil
	case errors.Is(context.Cause(ctx), ErrTimeout):
		return status, &plugin.Error{
			Code: plugin.CodeTimeout, Delivery: plugin.AsError(err, plugin.Ran).Delivery, Cause: ErrTimeout,
			Message: fmt.Sprintf("environment %s: exec %s: its time limit of %s passed; it was ended", label(env.name), req.Argv[0], req.Timeout),
		}
	}
	return status, fmt.Errorf("environment %s: exec %s: %w", label(env.name), req.Argv[0], err)
}
