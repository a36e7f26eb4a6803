package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/core/kernelhost"
	"github.com/hermes-framework/hermes/core/result"
	"github.com/hermes-framework/hermes/core/toolrpc"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// CellStatus is a cell that a kernel host knows of, as `hermes cells ls --json` prints it.
type CellStatus struct {
	ID           string        `json:"id"`
	Session      string        `json:"session"`
	Environment  string        `json:"environment"`
	Kernel       string        `json:"kernel"`
	Language     cell.Language `json:"language"`
	State        string        `json:"state"`   // queued, running, finished
	Outcome      cell.Outcome  `json:"outcome"` // of a finished one, else empty
	Submitted    time.Time     `json:"submitted"`
	Started      *time.Time    `json:"started"`  // nil: it did not start
	Finished     *time.Time    `json:"finished"` // nil: it has not ended
	StdoutBytes  int64         `json:"stdout_bytes"`
	StderrBytes  int64         `json:"stderr_bytes"`
	Acknowledged bool          `json:"acknowledged"` // some program has its result
}

// heldCell is a cell, and the kernel host that has it.
type heldCell struct {
	CellStatus
	host *kernel.Host
	env  *environment
}

// Cells lists the cells of this engine and of the named sessions that StateDir has records of, oldest first: those that wait, that run, and that ended
// and are kept. What kernel hosts that cannot be reached have is left out.
func (e *Engine) Cells(ctx context.Context) ([]CellStatus, error) {
	all, err := e.heldCells(ctx, "")
	out := make([]CellStatus, 0, len(all))
	for _, c := range all {
		out = append(out, c.CellStatus)
	}
	return out, err
}

func (e *Engine) heldCells(ctx context.Context, id string) ([]heldCell, error) {
	envs, err := e.openEnvironments(ctx)
	var out []heldCell
	seen := map[string]bool{} // one host may have two names
	for _, env := range envs {
		for _, h := range env.live() {
			cells, hostErr := h.Cells(ctx, id)
			if hostErr != nil && !kernel.IsGone(hostErr) {
				err = errors.Join(err, fmt.Errorf("environment %s: list cells: %w", label(env.name), hostErr))
			}
			for _, c := range cells {
				key := h.Identity().Incarnation + " " + c.ID
				if !seen[key] {
					seen[key] = true
					out = append(out, heldCell{host: h, env: env, CellStatus: CellStatus{
						ID: c.ID, Session: c.Session, Environment: env.name, Kernel: c.Kernel, Language: c.Language, State: c.State, Outcome: c.Outcome,
						Submitted: c.Submitted, Started: orNil(c.Started), Finished: orNil(c.Finished), StdoutBytes: c.Out, StderrBytes: c.Err, Acknowledged: c.Acked,
					}})
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b heldCell) int { return cmp.Or(a.Submitted.Compare(b.Submitted), strings.Compare(a.ID, b.ID)) })
	return out, err
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Cell waits for the end of a cell that was submitted before, by whatever program, and returns its Result, as Run does; emit gets its output from the
// first byte that is kept. A cell whose kernel host is gone has the end that the host's journal tells. Cancelling ctx leaves the cell alone. The result
// stays where it is and can be asked for again. A cell that nobody knows is an error with sdk.CodeNotFound.
func (e *Engine) Cell(ctx context.Context, id string, emit func(cell.Event)) (cell.Result, error) {
	if err := e.alive(); err != nil {
		return cell.Result{}, err
	}
	found, listErr := e.heldCells(ctx, id)
	if len(found) > 0 {
		res, err := e.join(ctx, found[len(found)-1], emit)
		if !errors.Is(err, kernel.ErrNoCell) {
			return res, err
		}
	}
	return e.leftCell(ctx, id, listErr, emit)
}

// ShowCell is Cell without the wait: for a cell that has not ended the Result has the output so far, and no outcome.
func (e *Engine) ShowCell(ctx context.Context, id string, emit func(cell.Event)) (CellStatus, cell.Result, error) {
	found, listErr := e.heldCells(ctx, id)
	if len(found) > 0 && found[len(found)-1].Outcome == "" {
		c := found[len(found)-1]
		out := result.New(id, emit, e.spills)
		for i, total := range []int64{c.StdoutBytes, c.StderrBytes} {
			if err := soFar(ctx, c.host, id, byte(i+1), total, out.Take); err != nil {
				return c.CellStatus, cell.Result{}, fmt.Errorf("cell %s: its output: %w", id, err)
			}
		}
		res := cell.Result{Cell: cell.Cell{ID: id}, Kernel: c.kernel()}
		out.Finish(&res.Cell)
		return c.CellStatus, res, nil
	}
	var res cell.Result
	var err error
	status := CellStatus{ID: id}
	if len(found) > 0 {
		status = found[len(found)-1].CellStatus
		res, err = e.join(ctx, found[len(found)-1], emit)
	} else {
		res, err = e.leftCell(ctx, id, listErr, emit)
		status.Session, status.Environment, status.Kernel, status.Language = res.Kernel.Session, res.Kernel.Environment, res.Kernel.ID, res.Kernel.Language
		status.State, status.Outcome, status.StdoutBytes, status.StderrBytes = "finished", res.Cell.Outcome, res.Cell.StdoutBytes, res.Cell.StderrBytes
	}
	return status, res, err
}

// soFar fetches what is kept of a stream of total bytes.
func soFar(ctx context.Context, h *kernel.Host, id string, stream byte, total int64, take func(cell.Frame)) error {
	for at := int64(0); at < total; {
		data, begins, err := h.Fetch(ctx, id, stream, at, total)
		if err != nil {
			return err
		}
		if begins > at {
			take(cell.Frame{Msg: cell.Fields{"t": "gap", "stream": int64(stream), "from": at, "to": min(begins, total)}})
		}
		if len(data) > 0 {
			take(cell.Frame{Stream: stream, Offset: begins, Data: data})
		} else if begins <= at {
			return nil
		}
		at = begins + int64(len(data))
	}
	return nil
}

// CancelCell ends a cell that waits as refused, and interrupts one that runs, by the ladder of Run. One that has ended is left alone. A cell that
// nobody has is an error with sdk.CodeNotFound.
func (e *Engine) CancelCell(ctx context.Context, id string) error {
	found, err := e.heldCells(ctx, id)
	for _, c := range slices.Backward(found) {
		if err := c.host.Cancel(ctx, id); !errors.Is(err, kernel.ErrNoCell) {
			return err
		}
	}
	if err != nil {
		return err
	}
	return noCell(id)
}

func noCell(id string) error {
	return &sdk.Error{
		Code: sdk.CodeNotFound, Delivery: sdk.NotStarted, Message: fmt.Sprintf("cell %q: there is none", strings.TrimSpace(id)),
		Hint: "`hermes cells ls` shows those that are kept: 24 hours at most, and no longer than their kernel host lives, but for results that nobody has seen",
	}
}

func (c heldCell) kernel() cell.Kernel {
	id := c.host.Identity()
	return cell.Kernel{ID: c.Kernel, Session: c.Session, Environment: c.Environment, Language: c.Language, Host: id.Hostname, Incarnation: id.Incarnation}
}

// join follows a cell to its end.
func (e *Engine) join(ctx context.Context, c heldCell, emit func(cell.Event)) (cell.Result, error) {
	out := result.New(c.ID, emit, e.spills)
	end, err := c.host.Join(ctx, kernel.Joining{ID: c.ID}, toolrpc.None{}, out.Take)
	if errors.Is(err, kernel.ErrNoCell) || err != nil && ctx.Err() != nil {
		return cell.Result{}, err
	}
	if err == nil && !hostIsGone(end) {
		completeTails(ctx, out, c.host, c.ID, end)
	}
	return ended(out, c.ID, c.kernel(), end, err)
}

// ended is the Result of a cell that somebody submitted before.
func ended(out *result.Collector, id string, k cell.Kernel, end cell.Fields, err error) (cell.Result, error) {
	res := cell.Result{Cell: cell.Cell{ID: id}, Kernel: k}
	if err != nil {
		res.Cell.Outcome, res.Cell.Reason = cell.OutcomeUnknown, err.Error()
	} else {
		fold(&res.Cell, end)
		res.Kernel.Cells = int(end.Int("cells"))
		res.Kernel.Reused = res.Kernel.Cells > 1
		res.Kernel.ID = cmp.Or(res.Kernel.ID, end.Text("kernel"))
		res.Kernel.Session = cmp.Or(res.Kernel.Session, end.Text("session"))
		res.Kernel.Language = cmp.Or(res.Kernel.Language, cell.Language(end.Text("lang")))
	}
	out.Finish(&res.Cell)
	out.Tell(cell.Event{Kind: cell.EventEnd, Result: &res})
	return res, res.Cell.Outcome.Err(res.Cell.Reason)
}

// leftCell is Cell for a cell that no living host has: the journals of those that are gone decide.
func (e *Engine) leftCell(ctx context.Context, id string, unasked error, emit func(cell.Event)) (cell.Result, error) {
	for _, path := range e.store.records("hosts") {
		var rec hostRecord
		if _, err := load(path, &rec); err != nil {
			unasked = errors.Join(unasked, err)
			continue
		}
		for _, gone := range slices.Backward(rec.Earlier) {
			env, err := e.environment(ctx, rec.Environment)
			if err != nil {
				unasked = errors.Join(unasked, err)
				break
			}
			h := goneHost(env, rec.Interpreter, gone.Host)
			out := result.New(id, emit, e.spills)
			end, err := h.Recover(ctx, kernel.Joining{ID: id}, out.Take)
			if err != nil && !errors.Is(err, kernel.ErrNoResult) {
				continue // the cell is not in it, or there is no such journal
			}
			k := cell.Kernel{Environment: env.name, Host: gone.Host.Hostname, Incarnation: gone.Host.Incarnation}
			return ended(out, id, k, end, err)
		}
	}
	if res, known := e.recordedCell(id); known && unasked == nil {
		result.New(id, emit, e.spills).Tell(cell.Event{Kind: cell.EventEnd, Result: &res})
		return res, res.Cell.Outcome.Err(res.Cell.Reason)
	}
	if unasked != nil {
		return cell.Result{}, unasked
	}
	return cell.Result{}, noCell(id)
}

// goneHost is a kernel host that is not there any more, to be asked for what it left behind.
func goneHost(env *environment, interpreter string, info kernelhost.Info) *kernel.Host {
	p := env.place
	p.Interpreter = interpreter
	return converse(&kernelhost.Host{Place: &p, Info: info}, true)
}
