package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/core/kernelhost"
	"github.com/hermes-framework/hermes/core/secfile"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// hostKey tells the kernel hosts of an environment apart: there is one for each interpreter and kind.
type hostKey struct {
	interpreter string
	named       bool // of named sessions; else of this engine
}

// hostSlot holds the kernel host of one key. gate holds one token: who has it may start or replace it.
type hostSlot struct {
	gate chan struct{}
	host *kernel.Host
}

func (env *environment) slot(key hostKey) *hostSlot {
	env.mu.Lock()
	defer env.mu.Unlock()
	s := env.hosts[key]
	if s == nil {
		s = &hostSlot{gate: make(chan struct{}, 1)}
		s.gate <- struct{}{}
		env.hosts[key] = s
	}
	return s
}

// host returns the kernel host of key; make starts or finds one when there is none. Callers that come meanwhile wait.
func (env *environment) host(ctx context.Context, key hostKey, make func(context.Context, *kernelhost.Place) (*kernel.Host, error)) (*kernel.Host, error) {
	s := env.slot(key)
	select {
	case <-s.gate:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { s.gate <- struct{}{} }()
	if s.host != nil {
		return s.host, nil
	}
	p := env.place
	p.Interpreter = key.interpreter
	h, err := make(ctx, &p)
	if err == nil {
		s.host = h
	}
	return h, err
}

// forgetHost takes out a kernel host that is gone, so that the next cell gets a new one.
func (env *environment) forgetHost(ctx context.Context, h *kernel.Host) {
	for _, s := range env.slots() {
		<-s.gate
		if s.host == h {
			s.host = nil
		}
		s.gate <- struct{}{}
	}
	h.Close(ctx)
}

func (env *environment) slots() []*hostSlot {
	env.mu.Lock()
	defer env.mu.Unlock()
	var out []*hostSlot
	for _, s := range env.hosts {
		out = append(out, s)
	}
	return out
}

// live returns the kernel hosts that are up.
func (env *environment) live() []*kernel.Host {
	var out []*kernel.Host
	for _, s := range env.slots() {
		<-s.gate // held by starts only, and they are bounded
		if s.host != nil {
			out = append(out, s.host)
		}
		s.gate <- struct{}{}
	}
	return out
}

// converse begins the conversation with a kernel host that is up.
func converse(up *kernelhost.Host, named bool) *kernel.Host {
	return kernel.NewHost(up, kernel.Identity{Incarnation: up.Info.Incarnation, Boot: up.Info.Boot, Hostname: up.Info.Hostname, Detached: named})
}

var _ kernel.Process = (*kernelhost.Host)(nil)

// newHost starts an unnamed kernel host.
func newHost(ctx context.Context, p *kernelhost.Place) (*kernel.Host, kernelhost.Info, error) {
	token := kernelhost.NewToken()
	info, err := kernelhost.Start(ctx, p, token, false)
	if err != nil {
		return nil, info, noHost(ctx, err)
	}
	h := converse(&kernelhost.Host{Place: p, Info: info, Token: token}, false)
	if err := h.Reach(ctx); err != nil {
		h.Close(ctx)
		return nil, info, noHost(ctx, err) // it leaves by itself
	}
	return h, info, nil
}

// unnamedHost is newHost for a slot of the environment.
func unnamedHost(ctx context.Context, p *kernelhost.Place) (*kernel.Host, error) {
	h, _, err := newHost(ctx, p)
	return h, err
}

// namedHost finds the named kernel host of p's environment, or starts it. The record under its lock decides between programs that come at once.
func (e *Engine) namedHost(ctx context.Context, p *kernelhost.Place) (*kernel.Host, error) {
	path, err := e.store.host(p.Name, p.Interpreter)
	if err != nil {
		return nil, err
	}
	if !p.Can(sdk.CapDetach) {
		return nil, sdk.Errorf(sdk.CodeUnsupported, sdk.NotStarted, "%s: its backend cannot keep a session's kernel (it has no capability detach)", p.Label()).
			WithHint("leave the session out: a kernel of this program ends with it")
	}
	unlock, err := secfile.Lock(ctx, path+".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()

	rec, known, err := loadHost(path)
	if err != nil {
		return nil, err
	}
	if known && rec.Host.Socket != "" {
		h := converse(&kernelhost.Host{Place: p, Info: rec.Host, Token: rec.Token}, true)
		if err := h.Reach(ctx); err == nil || !kernel.IsGone(err) {
			return h, err
		}
	}
	return e.recordNamed(ctx, p, path, rec, known)
}

// recordNamed starts a named host and writes its record, whose lock the caller holds. rec is the one before, if it is known.
func (e *Engine) recordNamed(ctx context.Context, p *kernelhost.Place, path string, rec hostRecord, known bool) (*kernel.Host, error) {
	if !known {
		rec = hostRecord{Environment: p.Name, Interpreter: p.Interpreter, Token: kernelhost.NewToken()}
	}
	if err := save(path, rec); err != nil { // before there is a host, which nobody could reach without its record
		return nil, err
	}
	// The next host gets the same token: if the answer to its start is lost, the record that leads to it is there.
	h, up, err := e.startNamed(ctx, p, rec.Token)
	if h != nil && errors.Is(err, sdk.ErrPermission) {
		return nil, &sdk.Error{
			Code: sdk.CodeConflict, Delivery: sdk.NotStarted, Cause: err,
			Message: fmt.Sprintf("%s: a kernel host of yours (process %d) runs there already, and its token is not in %s", p.Label(), up.Info.PID, path),
			Hint:    "use the state directory that it was started with, or end that process",
		}
	}
	if err != nil {
		return nil, err
	}
	fresh := hostRecord{Environment: p.Name, Interpreter: p.Interpreter, Token: up.Token, Host: up.Info, Earlier: rec.Earlier}
	if up.Info.Incarnation != rec.Host.Incarnation {
		fresh.Earlier = rec.retired(time.Now())
	}
	return h, save(path, fresh)
}

// startNamed starts a named host with token, or attaches to the one that is there, whose token another record may hold: an interpreter and an
// environment have more than one name. A host that was there and has just left is followed by another one.
func (e *Engine) startNamed(ctx context.Context, p *kernelhost.Place, token []byte) (*kernel.Host, *kernelhost.Host, error) {
	for attempt := 0; ; attempt++ {
		info, err := kernelhost.Start(ctx, p, token, true)
		if err != nil {
			return nil, nil, noHost(ctx, err)
		}
		up := &kernelhost.Host{Place: p, Info: info, Token: token}
		if info.Existing {
			up.Token = e.store.tokenOf(info.Incarnation, token)
		}
		h := converse(up, true)
		err = h.Reach(ctx)
		if attempt > 0 || !info.Existing || !kernel.IsGone(err) {
			return h, up, err
		}
	}
}
