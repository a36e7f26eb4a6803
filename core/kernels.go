package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/core/kernelhost"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// KernelStatus is a live kernel, as `hermes kernels ls --json` prints it.
type KernelStatus struct {
	ID          string        `json:"id"`
	Session     string        `json:"session"`
	Environment string        `json:"environment"`
	Language    cell.Language `json:"language"`
	State       string        `json:"state"` // idle, busy, starting
	Cells       int           `json:"cells"`
	PID         int           `json:"pid"`
	Started     time.Time     `json:"started"`
	LastUsed    time.Time     `json:"last_used"`
}

// held is a kernel of some kernel host, and what is known of it.
type held struct {
	KernelStatus
	kernel kernel.Kernel
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
	envs, err := e.openEnvironments(ctx)
	var out []held
	for _, env := range envs {
		for _, h := range env.live() {
			states, hostErr := h.List(ctx)
			if hostErr != nil && !kernel.IsGone(hostErr) {
				err = errors.Join(err, fmt.Errorf("environment %s: list kernels: %w", label(env.name), hostErr))
			}
			for _, k := range states {
				out = append(out, held{kernel: k.Kernel, KernelStatus: KernelStatus{
					ID: k.Kernel.ID, Session: k.Session, Environment: env.name, Language: k.Language, State: k.State,
					Cells: k.Cells, PID: k.PID, Started: k.Started, LastUsed: k.LastUsed,
				}})
			}
		}
	}
	slices.SortFunc(out, func(a, b held) int { return cmp.Or(a.Started.Compare(b.Started), strings.Compare(a.ID, b.ID)) })
	out = slices.CompactFunc(out, func(a, b held) bool { return a.ID == b.ID }) // one host may have two names
	return out, err
}

// openEnvironments returns the environments that are open, with every named kernel host that can be reached. An error leaves some of them out.
func (e *Engine) openEnvironments(ctx context.Context) ([]*environment, error) {
	if err := e.alive(); err != nil {
		return nil, err
	}
	err := e.findNamedHosts(ctx)
	e.mu.Lock()
	envs := slices.Collect(maps.Values(e.envs))
	e.mu.Unlock()
	var open []*environment
	for _, env := range envs {
		select {
		case <-env.ready:
		case <-ctx.Done():
			return open, errors.Join(err, context.Cause(ctx))
		}
		if env.err == nil {
			open = append(open, env)
		}
	}
	return open, err
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
		_, err = env.host(ctx, hostKey{interpreter: rec.Interpreter, named: true}, func(ctx context.Context, p *kernelhost.Place) (*kernel.Host, error) {
			h := converse(&kernelhost.Host{Place: p, Info: rec.Host, Token: rec.Token}, true)
			return h, h.Reach(ctx)
		})
		switch {
		case err == nil:
		case kernel.IsGone(err):
			e.retireHost(ctx, path, rec.Host.Incarnation)
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Interrupt interrupts the cell that the kernel runs, by the ladder of Run; an idle kernel is left alone.
func (e *Engine) Interrupt(ctx context.Context, kernelID string) error {
	k, err := e.findKernel(ctx, kernelID)
	if err != nil {
		return err
	}
	return k.kernel.Interrupt(ctx)
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
	if err := k.kernel.End(ctx); err != nil && !errors.Is(err, sdk.ErrNotFound) {
		return fmt.Errorf("kill kernel %s: %w", k.ID, err)
	}
	e.pool.Dead(k.kernel)
	if k.Session != "" {
		return e.forgetSession(ctx, k.Session, k.Language)
	}
	return nil
}

// Prune ends the idle kernels of named sessions and forgets what is gone; it returns the kernels it ended.
func (e *Engine) Prune(ctx context.Context) ([]KernelStatus, error) {
	e.store.pruneCells()
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
	return held{}, &sdk.Error{
		Code: sdk.CodeNotFound, Delivery: sdk.NotStarted, Message: fmt.Sprintf("kernel %q: there is none", strings.TrimSpace(id)),
		Hint: "`hermes kernels ls` shows those that there are",
	}
}
