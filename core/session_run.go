package core

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/core/secfile"
)

type sessionKey struct {
	name     string
	language cell.Language
}

// sessionHandle is a session's kernel as this engine last had it, so that a warm cell needs one round trip only.
type sessionHandle struct {
	env *environment
	ref kernel.Kernel
}

// inSession runs the cell in a named session's kernel, which may be another program's, too.
func (r *run) inSession(ctx context.Context) (cell.Result, error) {
	e := r.engine
	key := sessionKey{r.req.Session, r.req.Language}
	res := cell.Result{Kernel: cell.Kernel{Reused: true}}
	h := e.session(key)
	if h == nil || r.plain() != nil {
		opened, how, err := r.openSession(ctx)
		if r.fallsBack(err) {
			return r.inSessionWithout(ctx, err)
		}
		if err != nil {
			return cell.Result{}, err
		}
		h, res.Kernel = opened, how
		e.keepSession(key, h)
	}
	if err := r.claim(ctx, h.env, h.ref.Host); err != nil {
		e.keepSession(key, nil)
		return cell.Result{}, err
	}
	r.req.Reset = false
	flags := res.Kernel
	res.Kernel = r.kernel(h.env, h.ref)
	res.Kernel.Reused, res.Kernel.StateLost, res.Kernel.StateLostReason, res.Kernel.StateReset = flags.Reused, flags.StateLost, flags.StateLostReason, flags.StateReset

	end := r.submit(ctx, h.ref, &res)
	if end != nil {
		res.Kernel.Cells = int(end.Int("cells"))
	}
	cancelled := end == nil && res.Cell.Reason == reasonCancelled // the kernel never saw it
	if !cancelled && !end.Flag("kernel_alive") {
		e.keepSession(key, nil)
		if err := e.noteLost(ctx, key, h.ref.ID, lostReason(end)); err != nil {
			r.out.Note(fmt.Sprintf("session %s: %v", key.name, err))
		}
	}
	if !cancelled && hostIsGone(end) {
		h.env.forgetHost(ctx, h.ref.Host)
	}
	return res, nil
}

// plain returns an error if the request says more than a name, so that the record must be consulted.
func (r *run) plain() error {
	if r.req.Reset || r.req.Environment != "" || r.req.Dir != "" || r.req.Interpreter != "" || len(r.req.Env) > 0 {
		return errors.New("more than a name")
	}
	return nil
}

func (e *Engine) session(key sessionKey) *sessionHandle {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sessions[key]
}

func (e *Engine) keepSession(key sessionKey, h *sessionHandle) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h == nil {
		delete(e.sessions, key)
		return
	}
	e.sessions[key] = h
}

// openSession finds or starts the session's kernel. The record's lock makes programs that come at once agree.
func (r *run) openSession(ctx context.Context) (*sessionHandle, cell.Kernel, error) {
	e := r.engine
	path, err := e.store.session(r.req.Session)
	if err != nil {
		return nil, cell.Kernel{}, err
	}
	unlock, err := secfile.Lock(ctx, path+".lock")
	if err != nil {
		return nil, cell.Kernel{}, err
	}
	defer unlock()
	var rec sessionRecord
	known, err := loadSession(path, r.req.Session, &rec)
	if err != nil {
		return nil, cell.Kernel{}, err
	}
	old := rec
	if err := r.pin(&rec, known); err != nil {
		return nil, cell.Kernel{}, err
	}
	if known && (old.Environment != rec.Environment || old.Interpreter != rec.Interpreter) {
		e.endElsewhere(ctx, old)
	}
	env, err := e.environment(ctx, rec.Environment)
	if err != nil {
		return nil, cell.Kernel{}, err
	}
	if rec.Dir == "" {
		rec.Dir = env.dir("")
	}
	return r.openKernel(ctx, env, &rec, path)
}

// endElsewhere ends the kernels of a session that goes on with another kernel host. What cannot be reached ends by its idle time.
func (e *Engine) endElsewhere(ctx context.Context, old sessionRecord) {
	for _, k := range old.Kernels {
		found, err := e.findKernel(ctx, k.Kernel)
		if err == nil {
			err = found.kernel.End(ctx)
		}
		if err != nil {
			e.log.Debug("end a session's former kernel", "session", old.Name, "kernel", k.Kernel, "error", err)
		}
	}
}

// pin checks the request against the session's record, and completes a new one. What the request leaves open is the record's.
func (r *run) pin(rec *sessionRecord, known bool) error {
	if !known || r.req.Reset {
		*rec = sessionRecord{
			Name: r.req.Session, Environment: r.req.Environment, Dir: r.req.Dir, Interpreter: r.engine.interpreter(r.req),
			Created: time.Now().UTC(), Kernels: rec.Kernels,
		}
		if rec.Environment == "" {
			rec.Environment = DefaultEnvironment
		}
	}
	if rec.Kernels == nil {
		rec.Kernels = map[cell.Language]sessionKernel{}
	}
	for _, p := range []struct{ what, asked, pinned string }{
		{"environment", r.req.Environment, rec.Environment},
		{"working directory", r.req.Dir, rec.Dir},
		{"interpreter", r.req.Interpreter, rec.Interpreter},
	} {
		if p.asked != "" && p.asked != p.pinned {
			return invalid("leave it out, use another session name, or --reset to start afresh", "session %s: its %s is %s, not %s", r.req.Session, p.what, p.pinned, p.asked)
		}
	}
	return nil
}

// openKernel asks the named kernel host for the session's kernel, and writes the record.
func (r *run) openKernel(ctx context.Context, env *environment, rec *sessionRecord, path string) (*sessionHandle, cell.Kernel, error) {
	e := r.engine
	var got kernel.Opened
	for attempt := 0; ; attempt++ {
		h, err := env.host(ctx, hostKey{interpreter: rec.Interpreter, named: true}, e.namedHost)
		if err != nil {
			return nil, cell.Kernel{}, err
		}
		got, err = h.Open(ctx, kernel.OpenRequest{Session: r.req.Session, Language: r.req.Language, Dir: rec.Dir, Env: r.req.Env, Reset: r.req.Reset})
		if err == nil {
			break
		}
		if attempt > 0 || !kernel.IsGone(err) {
			return nil, cell.Kernel{}, fmt.Errorf("session %s: start a %s kernel: %w", r.req.Session, r.req.Language, err)
		}
		env.forgetHost(ctx, h)
	}
	host := got.Kernel.Host.Identity()
	flags := r.sessionFlags(got, rec.Kernels[r.req.Language], host)
	if len(r.req.Env) > 0 && flags.Reused {
		r.out.Note("the session's kernel was there already: the environment variables of this cell were not set; --reset starts afresh with them")
	}
	rec.Kernels[r.req.Language] = sessionKernel{
		Kernel: got.Kernel.ID, Incarnation: host.Incarnation, Boot: host.Boot, Cells: got.Cells + 1, LastUsed: time.Now().UTC(),
	}
	if err := save(path, rec); err != nil {
		return nil, cell.Kernel{}, err
	}
	return &sessionHandle{env: env, ref: got.Kernel}, flags, nil
}

// sessionFlags says what the session's owner must know of the kernel that it gets.
func (r *run) sessionFlags(got kernel.Opened, old sessionKernel, now kernel.Identity) cell.Kernel {
	k := cell.Kernel{Reused: !got.Created}
	switch {
	case k.Reused:
		return k
	case r.req.Reset:
		k.StateReset = got.Reset || old.Cells > 0
		return k
	case got.Lost != "":
		k.StateLostReason = got.Lost
	case old.Incarnation != "" && old.Incarnation != now.Incarnation:
		k.StateLostReason = old.lostReason(now, r.engine.detachedIdle())
	}
	k.StateLost = k.StateLostReason != ""
	return k
}

// noteLost writes down why a session's kernel is gone: its host may be gone before anybody asks it.
func (e *Engine) noteLost(ctx context.Context, key sessionKey, id, reason string) error {
	path, err := e.store.session(key.name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kernel.GiveUpAfter) // a cancelled cell's kernel is gone all the same
	defer cancel()
	unlock, err := secfile.Lock(ctx, path+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	var rec sessionRecord
	if known, err := load(path, &rec); err != nil || !known || rec.Kernels[key.language].Kernel != id {
		return err
	}
	old := rec.Kernels[key.language]
	old.Lost = reason
	rec.Kernels[key.language] = old
	return save(path, rec)
}

// forgetSession removes a language from a session's record, and the record with the last one.
func (e *Engine) forgetSession(ctx context.Context, name string, lang cell.Language) error {
	path, err := e.store.session(name)
	if err != nil {
		return err
	}
	unlock, err := secfile.Lock(ctx, path+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	var rec sessionRecord
	known, err := loadSession(path, name, &rec)
	if errors.Is(err, errDamaged) {
		return os.Remove(path) // it is of no use, and its kernel is gone
	}
	if err != nil || !known {
		return err
	}
	delete(rec.Kernels, lang)
	e.keepSession(sessionKey{name, lang}, nil)
	if len(rec.Kernels) > 0 {
		return save(path, rec)
	}
	return os.Remove(path)
}
