package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/core/kernelhost"
	"github.com/hermes-framework/hermes/core/pool"
	"github.com/hermes-framework/hermes/core/secfile"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// noHostError says that no kernel host can be had in an environment that can be reached: cells can still be run one by one.
type noHostError struct{ error }

// Unwrap returns why there is none.
func (e *noHostError) Unwrap() error { return e.error }

// noHost marks the error of a start after which it is certain that there is no kernel host, and likely that a command works nevertheless.
func noHost(ctx context.Context, err error) error {
	if _, already := errors.AsType[*noHostError](err); already || ctx.Err() != nil {
		return err
	}
	switch sdk.AsError(err, sdk.NotStarted).Code {
	case sdk.CodePermission, sdk.CodeExhausted, sdk.CodeInternal:
		return &noHostError{err}
	}
	return err
}

// fallsBack says whether a cell that could not get a kernel may be run without one. It certainly has not started: no kernel host was there to take it.
// A cell whose id was chosen is not: nobody could tell, asked for that id again, that it ran.
func (r *run) fallsBack(err error) bool {
	_, ok := errors.AsType[*noHostError](err)
	return ok && !r.chosen && !r.engine.cfg.NoFallback
}

// fallback runs the cell once in a fresh interpreter. Its kernel, if it had one, has ended with its host; what the cell leaves behind is lost, which
// the next result says.
func (r *run) fallback(ctx context.Context, env *environment, interpreter, dir string, why error) (cell.Result, error) {
	place := env.place
	place.Interpreter = interpreter
	one := kernelhost.OneCell{Language: r.req.Language, Code: r.req.Code, Dir: dir, Env: r.req.Env, Timeout: r.req.Timeout}
	begun := time.Now()
	end, err := place.Once(ctx, one, func(f cell.Frame) {
		if f.Msg.Text("t") == "started" {
			r.out.Note(fmt.Sprintf("%v; the cell runs alone, in an interpreter of its own, and leaves no variables behind", why))
		}
		r.out.Take(f)
	})
	res := cell.Result{
		Cell:   cell.Cell{ID: r.req.ID},
		Kernel: cell.Kernel{Session: r.req.Session, Environment: env.name, Language: r.req.Language, Fallback: true},
	}
	switch {
	case err == nil:
		fold(&res.Cell, end)
		res.Kernel.Cells = 1
	case errors.Is(err, sdk.ErrNotFound): // its directory, which a kernel would not find, either
		return cell.Result{}, err
	case sdk.AsError(err, sdk.MayHaveRun).Delivery == sdk.NotStarted:
		r.engine.log.Debug("run a cell without a kernel", "error", err)
		return cell.Result{}, why
	default:
		res.Cell.Outcome, res.Cell.Reason = cell.OutcomeUnknown, err.Error()
		res.Cell.DurationMS = float64(time.Since(begun).Microseconds()) / 1000
	}
	r.out.Finish(&res.Cell)
	return res, nil
}

// inPoolWithout is inPool for a cell that gets no kernel of the engine, because of why.
func (r *run) inPoolWithout(ctx context.Context, env *environment, key pool.Key, why error) (cell.Result, error) {
	before, err := r.engine.pool.Lose(ctx, key, pool.Fallback) // its kernel is closed before
	if err != nil {
		return cell.Result{}, errors.Join(why, err)
	}
	res, err := r.fallback(ctx, env, key.Interpreter, key.Dir, why)
	if before == pool.Reset || r.req.Reset {
		res.Kernel.StateReset = true
	} else if before != "" {
		res.Kernel.StateLost, res.Kernel.StateLostReason = true, before
	}
	return res, err
}

// inSessionWithout is inSession for a cell that gets no kernel, because of why. The session's record says so to whoever comes next.
func (r *run) inSessionWithout(ctx context.Context, why error) (cell.Result, error) {
	e := r.engine
	path, err := e.store.session(r.req.Session)
	if err != nil {
		return cell.Result{}, err
	}
	unlock, err := secfile.Lock(ctx, path+".lock")
	if err != nil {
		return cell.Result{}, err
	}
	defer unlock() // held while the cell runs: the session's cells run one after the other
	var rec sessionRecord
	known, err := loadSession(path, r.req.Session, &rec)
	if err != nil {
		return cell.Result{}, err
	}
	if err := r.pin(&rec, known); err != nil {
		return cell.Result{}, err
	}
	env, err := e.environment(ctx, rec.Environment)
	if err != nil {
		return cell.Result{}, err
	}
	if rec.Dir == "" {
		rec.Dir = env.dir("")
	}
	old := rec.Kernels[r.req.Language]
	rec.Kernels[r.req.Language] = sessionKernel{Incarnation: pool.Fallback, Boot: old.Boot, Cells: 1, Lost: pool.Fallback, LastUsed: time.Now().UTC()}
	if err := save(path, rec); err != nil {
		return cell.Result{}, err
	}
	res, err := r.fallback(ctx, env, rec.Interpreter, rec.Dir, why)
	switch {
	case r.req.Reset:
		res.Kernel.StateReset = old.Cells > 0
	case old.Cells > 0:
		res.Kernel.StateLost, res.Kernel.StateLostReason = true, old.lostReason(kernel.Identity{Boot: old.Boot}, e.detachedIdle())
	}
	return res, err
}
