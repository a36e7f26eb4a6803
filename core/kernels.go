package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hermes-framework/hermes/plugin"
)

// held is a kernel and the host that holds it.
type held struct {
	KernelStatus
	host *hostConn
}

// Kernels lists the kernels of this engine and of the named sessions that StateDir has records of. Kernel hosts that cannot be reached are left out
// and, where they are known to be gone, forgotten.
func (e *Engine) Kernels(ctx context.Context) ([]KernelStatus, error) {
	all, err := e.allKernels(ctx)
	out := make([]KernelStatus, 0, len(all))
	for _, k := range all {
		out = append(out, k.KernelStatus)
	}
	return out, err
}

func (e *Engine) allKernels(ctx context.Context) ([]held, error) {
	if err := e.alive(); err != nil {
		return nil, err
	}
	err := e.findNamedHosts(ctx)
	var out []held
	e.mu.Lock()
	envs := make([]*environment, 0, len(e.envs))
	for _, env := range e.envs {
		envs = append(envs, env)
	}
	e.mu.Unlock()
	for _, env := range envs {
		select {
		case <-env.ready:
		case <-ctx.Done():
			return out, errors.Join(err, context.Cause(ctx))
		}
		if env.err != nil {
			continue
		}
		for _, h := range env.live() {
			kernels, hostErr := h.kernels(ctx, env.name)
			if hostErr != nil && !nobodyListens(hostErr) && !errors.Is(hostErr, errHostGone) {
				err = errors.Join(err, fmt.Errorf("environment %s: list kernels: %w", label(env.name), hostErr))
			}
			out = append(out, kernels...)
		}
	}
	slices.SortFunc(out, func(a, b held) int { return cmp.Or(a.Started.Compare(b.Started), strings.Compare(a.ID, b.ID)) })
	out = slices.CompactFunc(out, func(a, b held) bool { return a.ID == b.ID }) // one host may have two names
	return out, err
}

// findNamedHosts attaches to the named kernel hosts that there are records of. The records of dead ones are removed.
func (e *Engine) findNamedHosts(ctx context.Context) error {
	var errs []error
	for _, path := range e.store.records("hosts") {
		var rec hostRecord
		if _, err := load(path, &rec); err != nil {
			errs = append(errs, err)
			continue
		}
		if rec.Host.Socket == "" {
			continue // somebody is starting it
		}
		env, err := e.environment(ctx, rec.Environment)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		_, err = env.host(ctx, hostKey{interpreter: rec.Interpreter, named: true}, func(ctx context.Context, p *place) (*hostConn, error) {
			h := newHostConn(p, rec.Host, rec.Token, true)
			_, err := h.connect(ctx)
			return h, err
		})
		switch {
		case err == nil:
		case nobodyListens(err), errors.Is(err, errHostGone):
			_ = os.Remove(path) // the record of a host that is gone; the next start writes another
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (h *hostConn) kernels(ctx context.Context, environment string) ([]held, error) {
	answer, err := h.request(ctx, fields{"t": "list"})
	if err != nil {
		return nil, err
	}
	var out []held
	for _, v := range answer.list("kernels") {
		k, ok := v.(fields)
		if !ok {
			continue
		}
		out = append(out, held{host: h, KernelStatus: KernelStatus{
			ID: k.str("kernel"), Session: k.str("session"), Environment: environment, Language: Language(k.str("lang")),
			State: k.str("state"), Cells: int(k.int("cells")), PID: int(k.int("pid")),
			Started: unixTime(k.float("started")), LastUsed: unixTime(k.float("last_used")),
		}})
	}
	return out, nil
}

func unixTime(seconds float64) time.Time { return time.UnixMicro(int64(seconds * 1e6)).UTC() }

// Interrupt interrupts the cell that the kernel runs, by the ladder of Run; an idle kernel is left alone.
func (e *Engine) Interrupt(ctx context.Context, kernelID string) error {
	k, err := e.findKernel(ctx, kernelID)
	if err != nil {
		return err
	}
	_, err = k.host.request(ctx, fields{"t": "interrupt", "kernel": k.ID})
	return err
}

// Kill ends a kernel and its processes. A named session's kernel may be another program's too: its cells end as lost or refused, and the session is forgotten.
func (e *Engine) Kill(ctx context.Context, kernelID string) error {
	k, err := e.findKernel(ctx, kernelID)
	if err != nil {
		return err
	}
	return e.kill(ctx, k)
}

func (e *Engine) kill(ctx context.Context, k held) error {
	if _, err := k.host.request(ctx, fields{"t": "kill", "kernel": k.ID}); err != nil && !errors.Is(err, plugin.ErrNotFound) {
		return fmt.Errorf("kill kernel %s: %w", k.ID, err)
	}
	if p := e.pool.find(k.ID); p != nil {
		e.pool.forget(p, "died")
	}
	if k.Session != "" {
		return e.forgetSession(ctx, k.Session, k.Language)
	}
	return nil
}

// Prune ends the idle kernels of named sessions and forgets what is gone; it returns the kernels it ended.
func (e *Engine) Prune(ctx context.Context) ([]KernelStatus, error) {
	all, err := e.allKernels(ctx)
	var ended []KernelStatus
	live := map[string]bool{}
	for _, k := range all {
		if k.Session == "" {
			continue
		}
		if k.State != "idle" {
			live[k.Session] = true
			continue
		}
		if killErr := e.kill(ctx, k); killErr != nil {
			err = errors.Join(err, killErr)
			continue
		}
		ended = append(ended, k.KernelStatus)
	}
	if err != nil {
		return ended, err // the record of a session whose kernel could not be asked for is kept
	}
	return ended, e.pruneSessions(live)
}

// pruneSessions removes the records of sessions that have no kernel.
func (e *Engine) pruneSessions(live map[string]bool) error {
	var errs []error
	for _, path := range e.store.records("sessions") {
		var rec sessionRecord
		if _, err := load(path, &rec); err != nil {
			errs = append(errs, err)
			continue
		}
		if !live[rec.Name] {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

func (e *Engine) findKernel(ctx context.Context, id string) (held, error) {
	all, err := e.allKernels(ctx)
	for _, k := range all {
		if k.ID == id {
			return k, nil
		}
	}
	if err != nil {
		return held{}, err
	}
	return held{}, &plugin.Error{
		Code: plugin.CodeNotFound, Delivery: plugin.NotStarted, Message: fmt.Sprintf("kernel %q: there is none", strings.TrimSpace(id)),
		Hint: "`hermes kernels ls` shows those that there are",
	}
}
