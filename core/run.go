package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/core/pool"
	"github.com/hermes-framework/hermes/core/result"
	"github.com/hermes-framework/hermes/core/toolrpc"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Run runs one cell and returns when it has ended. emit, which may be nil, is called in the goroutine that called Run, for each event in order.
//
// The error is nil when the cell ran to its own end (outcomes ok, error, exit). For timeout, interrupted, lost, unknown and refused it is an
// *RunError beside the Result, which is as complete as can be. Any other error means that nothing ran; it wraps a *sdk.Error where a caller can act on it.
//
// Cancelling ctx interrupts the cell: SIGINT, two seconds, KILL; Run returns its end. A ctx whose deadline passed makes the outcome timeout.
// Cells on one kernel run one after the other, in the order of their submission.
func (e *Engine) Run(ctx context.Context, req Request, emit func(cell.Event)) (cell.Result, error) {
	return e.run(ctx, &pool.Owner{Name: req.Owner}, req, emit)
}

func (e *Engine) run(ctx context.Context, owner *pool.Owner, req Request, emit func(cell.Event)) (cell.Result, error) {
	if err := e.check(&req); err != nil {
		return cell.Result{}, err
	}
	r := &run{engine: e, owner: owner, req: req, chosen: req.ID != ""}
	for ; ; r.attempt++ {
		if !r.chosen {
			r.req.ID = e.NewCellID()
		}
		r.out = result.New(r.req.ID, emit, e.spills)
		res, err := r.once(ctx)
		if err != nil {
			return cell.Result{}, notRun(err)
		}
		if r.again(res) {
			continue
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && res.Cell.Outcome == cell.OutcomeInterrupted {
			res.Cell.Outcome = cell.OutcomeTimeout
		}
		r.out.Tell(cell.Event{Kind: cell.EventEnd, Result: &res})
		return res, res.Cell.Outcome.Err(res.Cell.Reason)
	}
}

// notRun is the error of a cell that was not submitted. Whatever became of what was to bring it there, a delivery is about the cell.
func notRun(err error) error {
	e := sdk.AsError(err, sdk.NotStarted)
	if e.Delivery == sdk.NotStarted {
		return err
	}
	return &sdk.Error{Code: e.Code, Delivery: sdk.NotStarted, Message: e.Message, Hint: e.Hint, Cause: err}
}

// again reports whether the cell gets a fresh kernel, and nobody its result: its kernel was gone before, so it certainly did not run.
func (r *run) again(res cell.Result) bool {
	if r.chosen {
		return r.attempt == 0 && r.unsent // was it submitted by somebody else? That is asked first
	}
	return r.attempt == 0 && res.Cell.Outcome == cell.OutcomeRefused && res.Cell.Reason == reasonNoKernel
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
		req.Language = cell.Python
	}
	switch {
	case req.Language != cell.Python && req.Language != cell.Bash:
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
	engine  *Engine
	owner   *pool.Owner
	req     Request
	chosen  bool // the caller chose the id
	attempt int
	unsent  bool // the cell did not get to its kernel host
	out     *result.Collector
}

func (r *run) once(ctx context.Context) (cell.Result, error) {
	for claims := 1; ; claims++ {
		if r.chosen {
			if res, known, err := r.before(ctx); known || err != nil {
				return res, err
			}
		}
		res, err := r.anew(ctx)
		if claims == mostClaims || !errors.Is(err, errAskAgain) {
			return res, err
		}
	}
}

// anew runs a cell that has certainly not run.
func (r *run) anew(ctx context.Context) (cell.Result, error) {
	if r.req.Session != "" {
		return r.inSession(ctx)
	}
	return r.inPool(ctx)
}

// inPool runs the cell in a kernel of this engine.
func (r *run) inPool(ctx context.Context) (cell.Result, error) {
	e := r.engine
	env, err := e.environment(ctx, r.req.Environment)
	if err != nil {
		return cell.Result{}, err
	}
	key := pool.Key{
		Owner: r.owner.Name, Child: r.owner.Child, Environment: env.name, Language: r.req.Language,
		Interpreter: e.interpreter(r.req), Dir: env.dir(r.req.Dir),
	}
	opt := pool.LendOptions{Owner: r.owner, Fresh: r.req.Reset}
	k, err := e.pool.Lend(ctx, key, opt, func(ctx context.Context) (kernel.Kernel, error) { return e.startKernel(ctx, env, key, r.req.Env) })
	if r.fallsBack(err) {
		return r.inPoolWithout(ctx, env, key, err)
	}
	if err != nil {
		return cell.Result{}, err
	}
	told := false
	defer func() { e.pool.GiveBack(k, told) }()
	if err := r.claim(ctx, env, k.Kernel.Host); err != nil {
		return cell.Result{}, err
	}
	r.req.Reset = false // once is enough, should the cell need a second kernel
	if k.Reused && len(r.req.Env) > 0 {
		r.out.Note("the kernel was there already: the environment variables of this cell were not set; reset it to set them")
	}

	res := cell.Result{Kernel: r.kernel(env, k.Kernel)}
	res.Kernel.Reused = k.Reused
	switch k.Lost {
	case "":
	case pool.Reset:
		res.Kernel.StateReset = true
	default:
		res.Kernel.StateLost, res.Kernel.StateLostReason = true, k.Lost
	}
	end := r.submit(ctx, k.Kernel, &res)
	if end != nil {
		res.Kernel.Cells = int(end.Int("cells"))
	}
	if res.Cell.Outcome != cell.OutcomeRefused {
		e.pool.Ran(k)
	}
	switch {
	case end == nil && res.Cell.Reason == reasonCancelled: // the kernel never saw it
	case hostIsGone(end):
		e.pool.Forget(k, lostReason(end))
		env.forgetHost(ctx, k.Kernel.Host)
	case res.Cell.Outcome == cell.OutcomeRefused && (!end.Flag("kernel_alive") || res.Cell.Reason == reasonNoKernel):
		e.pool.Discard(k) // it may be on its way out only
	case !end.Flag("kernel_alive"):
		e.pool.Forget(k, lostReason(end))
	}
	told = !r.again(res)
	return res, nil
}

// hostIsGone says whether the kernel host that a cell was sent to is of no more use.
func hostIsGone(end cell.Fields) bool { return end == nil || end.Flag("host_gone") }

// lostReason is why the kernel that end comes from has lost its state.
func lostReason(end cell.Fields) string {
	if reason := end.Text("lost"); reason != "" {
		return reason
	}
	return pool.Died
}

func (r *run) kernel(env *environment, ref kernel.Kernel) cell.Kernel {
	return cell.Kernel{
		ID: ref.ID, Session: r.req.Session, Environment: env.name, Language: r.req.Language,
		Host: ref.Host.Identity().Hostname, Incarnation: ref.Host.Identity().Incarnation,
	}
}

func (e *Engine) interpreter(req Request) string {
	if req.Interpreter != "" {
		return req.Interpreter
	}
	return e.cfg.Interpreter
}

// startKernel starts a kernel of this engine, and its kernel host before that if need be.
func (e *Engine) startKernel(ctx context.Context, env *environment, key pool.Key, vars map[string]string) (kernel.Kernel, error) {
	for attempt := 0; ; attempt++ {
		h, err := env.host(ctx, hostKey{interpreter: key.Interpreter}, unnamedHost)
		if err != nil {
			return kernel.Kernel{}, err
		}
		got, err := h.Open(ctx, kernel.OpenRequest{Owner: key.Owner, Language: key.Language, Dir: key.Dir, Env: vars})
		if err == nil {
			return got.Kernel, nil
		}
		if attempt > 0 || !kernel.IsGone(err) {
			return kernel.Kernel{}, fmt.Errorf("environment %s: start a %s kernel: %w", label(env.name), key.Language, err)
		}
		env.forgetHost(ctx, h) // it died while it had no cell of ours: a new one takes its place
	}
}

// submit runs the cell on a kernel and writes what became of it into res. It returns the host's end, or nil if there is none.
func (r *run) submit(ctx context.Context, ref kernel.Kernel, res *cell.Result) cell.Fields {
	begun := time.Now()
	end, err := ref.Run(ctx, r.submission(), toolrpc.None{}, r.out.Take)
	r.unsent = errors.Is(err, kernel.ErrNeverSent)
	c := &res.Cell
	c.ID = r.req.ID
	switch {
	case errors.Is(err, kernel.ErrNotSubmitted):
		c.Outcome, c.Reason = cell.OutcomeRefused, reasonCancelled
	case errors.Is(err, kernel.ErrNeverSent) && !r.chosen: // an id that was chosen may have been submitted by somebody before
		c.Outcome, c.Reason = cell.OutcomeRefused, reasonNoKernel
	case err != nil:
		c.Outcome, c.Reason = cell.OutcomeUnknown, err.Error()
	default:
		fold(c, end)
		if !hostIsGone(end) {
			r.fetchTails(ctx, ref.Host, end)
		}
	}
	if end == nil {
		c.DurationMS = float64(time.Since(begun).Microseconds()) / 1000
	}
	r.out.Finish(c)
	return end
}

// fold writes what the host says of a cell's end into c.
func fold(c *cell.Cell, end cell.Fields) {
	c.Outcome, c.Signal, c.DurationMS = cell.Outcome(end.Text("outcome")), end.Text("signal"), end.Float("ms")
	if v, ok := end["value"].(string); ok {
		c.Value = &v
	}
	if code, ok := end["exit_code"].(int64); ok {
		n := int(code)
		c.ExitCode = &n
	}
	if e := end.Map("error"); e != nil {
		c.Error = &cell.CellError{Type: e.Text("type"), Message: e.Text("message"), Traceback: e.Text("traceback")}
	}
	switch c.Reason = end.Text("reason"); {
	case c.Reason == "":
		c.Reason = end.Text("msg")
	case end.Text("msg") != "" && c.Reason != reasonNoKernel:
		c.Reason += ": " + end.Text("msg")
	}
}

// fetchTails asks for the last bytes of a stream whose end never came live, and tells the host that the result may go. A cancelled
// cell has a result, too.
func (r *run) fetchTails(ctx context.Context, h *kernel.Host, end cell.Fields) {
	completeTails(ctx, r.out, h, r.req.ID, end)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kernel.GiveUpAfter)
	defer cancel()
	h.Forget(ctx, r.req.ID)
}

func completeTails(ctx context.Context, out *result.Collector, h *kernel.Host, id string, end cell.Fields) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kernel.GiveUpAfter)
	defer cancel()
	for i, total := range []int64{end.Int("out"), end.Int("err")} {
		stream := byte(i + 1)
		out.Complete(stream, total, func(from, to int64) ([]byte, int64, error) { return h.Fetch(ctx, id, stream, from, to) })
	}
}
