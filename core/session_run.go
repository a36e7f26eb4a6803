package core

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

type sessionKey struct {
	name     string
	language Language
}

// sessionHandle is a session's kernel as this engine last had it, so that a warm cell needs one round trip only.
type sessionHandle struct {
	env *environment
	ref kernelRef
}

// inSession runs the cell in a named session's kernel, which may be another program's, too.
func (r *run) inSession(ctx context.Context) (Result, error) {
	e := r.engine
	key := sessionKey{r.req.Session, r.req.Language}
	res := Result{Kernel: Kernel{Reused: true}}
	h := e.session(key)
	if h == nil || r.plain() != nil {
		opened, how, err := r.openSession(ctx)
		if err != nil {
			return Result{}, err
		}
		h, res.Kernel = opened, how
		e.keepSession(key, h)
	}
	r.req.Reset = false
	flags := res.Kernel
	res.Kernel = r.kernel(h.env, h.ref)
	res.Kernel.Reused, res.Kernel.StateLost, res.Kernel.StateLostReason, res.Kernel.StateReset = flags.Reused, flags.StateLost, flags.StateLostReason, flags.StateReset

	end := r.submit(ctx, h.ref, &res)
	if end != nil {
		res.Kernel.Cells = int(end.int("cells"))
	}
	cancelled := end == nil && res.Cell.Reason == reasonCancelled // the kernel never saw it
	if !cancelled && !end.flag("kernel_alive") {
		e.keepSession(key, nil)
		if err := e.noteLost(ctx, key, h.ref.id, lostReason(end)); err != nil {
			r.out.note(fmt.Sprintf("session %s: %v", key.name, err))
		}
	}
	if !cancelled && end == nil {
		h.env.forgetHost(ctx, h.ref.host)
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
func (r *run) openSession(ctx context.Context) (*sessionHandle, Kernel, error) {
	e := r.engine
	path, err := e.store.session(r.req.Session)
	if err != nil {
		return nil, Kernel{}, err
	}
	unlock, err := lockFile(ctx, path+".lock")
	if err != nil {
		return nil, Kernel{}, err
	}
	defer unlock()
	var rec sessionRecord
	known, err := loadSession(path, r.req.Session, &rec)
	if err != nil {
		return nil, Kernel{}, err
	}
	old := rec
	if err := r.pin(&rec, known); err != nil {
		return nil, Kernel{}, err
	}
	if known && (old.Environment != rec.Environment || old.Interpreter != rec.Interpreter) {
		e.endElsewhere(ctx, old)
	}
	env, err := e.environment(ctx, rec.Environment)
	if err != nil {
		return nil, Kernel{}, err
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
			_, err = found.host.request(ctx, fields{"t": "kill", "kernel": k.Kernel})
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
		rec.Kernels = map[Language]sessionKernel{}
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
func (r *run) openKernel(ctx context.Context, env *environment, rec *sessionRecord, path string) (*sessionHandle, Kernel, error) {
	e := r.engine
	var h *hostConn
	var answer fields
	for attempt := 0; ; attempt++ {
		var err error
		if h, err = env.host(ctx, hostKey{interpreter: rec.Interpreter, named: true}, e.namedHost); err != nil {
			return nil, Kernel{}, err
		}
		answer, err = h.open(ctx, fields{
			"session": r.req.Session, "owner": "", "lang": string(r.req.Language),
			"dir": rec.Dir, "env": r.req.Env, "reset": r.req.Reset,
		})
		if err == nil {
			break
		}
		if attempt > 0 || !nobodyListens(err) && !errors.Is(err, errHostGone) {
			return nil, Kernel{}, fmt.Errorf("session %s: start a %s kernel: %w", r.req.Session, r.req.Language, err)
		}
		env.forgetHost(ctx, h)
	}
	flags := r.sessionFlags(answer, rec.Kernels[r.req.Language], h.info)
	if len(r.req.Env) > 0 && flags.Reused {
		r.out.note("the session's kernel was there already: the environment variables of this cell were not set; --reset starts afresh with them")
	}
	rec.Kernels[r.req.Language] = sessionKernel{
		Kernel: answer.str("kernel"), Incarnation: h.info.Incarnation, Boot: h.info.Boot,
		Cells: int(answer.int("cells")) + 1, LastUsed: time.Now().UTC(),
	}
	if err := save(path, rec); err != nil {
		return nil, Kernel{}, err
	}
	return &sessionHandle{env: env, ref: kernelRef{id: answer.str("kernel"), pid: int(answer.int("pid")), host: h}}, flags, nil
}

// sessionFlags says what the session's owner must know of the kernel that it gets.
func (r *run) sessionFlags(answer fields, old sessionKernel, now hostInfo) Kernel {
	k := Kernel{Reused: !answer.flag("created")}
	switch {
	case k.Reused:
		return k
	case r.req.Reset:
		k.StateReset = answer.flag("reset") || old.Cells > 0
		return k
	case answer.str("lost") != "":
		k.StateLostReason = answer.str("lost")
	case old.Incarnation != "" && old.Incarnation != now.Incarnation:
		k.StateLostReason = old.lostReason(now, r.engine.detachedIdle())
	}
	k.StateLost = k.StateLostReason != ""
	return k
}

// noteLost writes down why a session's kernel is gone: its host may be gone before anybody asks it.
func (e *Engine) noteLost(ctx context.Context, key sessionKey, kernel, reason string) error {
	path, err := e.store.session(key.name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpAfter) // a cancelled cell's kernel is gone all the same
	defer cancel()
	unlock, err := lockFile(ctx, path+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	var rec sessionRecord
	if known, err := load(path, &rec); err != nil || !known || rec.Kernels[key.language].Kernel != kernel {
		return err
	}
	old := rec.Kernels[key.language]
	old.Lost = reason
	rec.Kernels[key.language] = old
	return save(path, rec)
}

// forgetSession removes a language from a session's record, and the record with the last one.
func (e *Engine) forgetSession(ctx context.Context, name string, lang Language) error {
	path, err := e.store.session(name)
	if err != nil {
		return err
	}
	unlock, err := lockFile(ctx, path+".lock")
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
