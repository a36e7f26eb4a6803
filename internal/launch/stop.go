package launch

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// ladder is how long the steps of Stop may take.
type ladder struct {
	shutdown time.Duration // for the Shutdown call, and for the process to end after it
	term     time.Duration // from TERM to KILL
	kill     time.Duration // from KILL to giving up on a process that even the kernel cannot end
}

// defaultLadder: about 11 s at worst, milliseconds for a plugin that does what it is asked.
var defaultLadder = ladder{shutdown: 5 * time.Second, term: 5 * time.Second, kill: 500 * time.Millisecond}

// onceError runs a function once and gives everybody its error.
type onceError struct {
	once sync.Once
	err  error
}

func (o *onceError) do(f func() error) error {
	o.once.Do(func() { o.err = f() })
	return o.err
}

// Stop ends the plugin and frees what the launch had: first it is asked to shut down, then its process group gets TERM,
// then KILL. It returns when the process is reaped, its output read and its run directory removed. When ctx is done Stop goes
// to KILL at once. Any number of calls may be made; all of them wait for the first.
func (p *Process) Stop(ctx context.Context) error {
	return p.stop.do(func() error { return p.end(ctx) })
}

// Kill is Stop for a plugin that does not answer: its process group gets KILL at once.
func (p *Process) Kill() error {
	p.child.kill()
	return p.stop.do(p.clear)
}

func (p *Process) end(ctx context.Context) error {
	c := p.child
	if p.spec.Shutdown != nil && !c.isOver() {
		p.askShutdown(ctx)
	}
	c.closeStdin()
	if !c.isOver() {
		c.signal(syscall.SIGTERM)
		c.signal(syscall.SIGCONT) // a stopped process handles TERM only when it goes on
		c.await(ctx, p.steps.term)
	}
	c.kill()
	return p.clear()
}

// askShutdown makes the Shutdown call and waits for the process to follow it.
func (p *Process) askShutdown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.steps.shutdown)
	defer cancel()
	if p.spec.Shutdown(ctx, p.conn) == nil {
		p.child.closeStdin()
		p.child.await(ctx, p.steps.shutdown)
	}
}

// clear waits for the end of a process that has been killed, or has ended, and frees everything.
func (p *Process) clear() error {
	c := p.child
	select {
	case <-c.done:
	case <-time.After(p.steps.kill + pipeGrace):
		return fmt.Errorf("process %d of plugin %s cannot be ended, not even by SIGKILL", c.pid(), p.spec.Name)
	}
	p.client.Kill() // go-plugin's own bookkeeping: with the process gone it returns at once
	c.discard()
	return nil
}

func (c *child) isOver() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

// await waits until the process has ended, ctx is done or d has passed.
func (c *child) await(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.exited:
	case <-ctx.Done():
	case <-timer.C:
	}
}
