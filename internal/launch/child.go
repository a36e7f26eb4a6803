package launch

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin/runner"
)

// pipeGrace is how long after the plugin's death its pipes are still read: a grandchild may hold them for ever.
const pipeGrace = 250 * time.Millisecond

// child is the plugin's process as go-plugin sees it, a runner.Runner, and as we do: its output, its end, its directory.
type child struct {
	spec      Spec
	dir       *Dir
	binary    string
	pluginEnv []string // what go-plugin wants the plugin to have
	certPEM   string

	stdout *stdoutFilter
	stderr *stderrFilter
	log    *logQueue
	link   *link
	ooms   func() int64 // how often the kernel has killed for want of memory

	mu      sync.Mutex
	process *os.Process
	stdin   *os.File // held open for the plugin's life: its end tells the plugin that we are gone

	readers   sync.WaitGroup
	oomsStart int64
	killed    atomic.Bool   // by us
	exited    chan struct{} // reaped; its group is gone
	done      chan struct{} // and its output is read; exit is valid
	exit      Exit
	alone     bool // it ended without our doing, while it started
	discarded sync.Once
}

var _ runner.Runner = (*child)(nil)

func newChild(spec Spec, dir *Dir, binary string) *child {
	log := newLogQueue(spec.Logger, spec.Name)
	c := &child{
		spec:   spec,
		dir:    dir,
		binary: binary,
		stdout: newStdoutFilter(log),
		stderr: newStderrFilter(log),
		log:    log,
		link:   &link{},
		ooms:   oomKills,
		exited: make(chan struct{}),
		done:   make(chan struct{}),
	}
	c.stdout.check = func(h handshake) bool {
		c.link.at(h.network, h.address)
		return c.mismatch(h) == nil
	}
	return c
}

// Start starts the process. go-plugin calls it, once.
func (c *child) Start(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	pipes, err := openPipes()
	if err != nil {
		return err
	}
	c.oomsStart = c.ooms()
	process, err := c.spawn(pipes)
	pipes.closeFar()
	if err != nil {
		pipes.closeNear()
		return err
	}
	c.dir.record(process.Pid)

	c.mu.Lock()
	c.process, c.stdin = process, pipes.in[1]
	c.mu.Unlock()

	// Both readers end with their pipes; watch waits for them and closes done, which Stop and abandon wait for.
	c.readers.Go(func() { drain(pipes.out[0], c.stdout); c.stdout.finish() })
	c.readers.Go(func() { drain(pipes.err[0], c.stderr); c.stderr.finish() })
	go c.watch(process, pipes)
	return nil
}

func (c *child) spawn(pipes *pipeSet) (*os.Process, error) {
	argv := append([]string{c.spec.argv0(c.binary)}, c.spec.Args...)
	attr := &os.ProcAttr{
		Dir:   "/",
		Env:   c.environment(),
		Files: []*os.File{pipes.in[0], pipes.out[1], pipes.err[1]},
		Sys:   sysProcAttr(),
	}
	process, err := spawner.start(c.binary, argv, attr)
	// Another thread's fork may hold the copy open for writing until its exec: a matter of milliseconds.
	for wait := time.Millisecond; errors.Is(err, syscall.ETXTBSY) && wait < time.Second; wait *= 2 {
		time.Sleep(wait)
		process, err = spawner.start(c.binary, argv, attr)
	}
	return process, err
}

func (c *child) environment() []string {
	own := []string{
		"PLUGIN_UNIX_SOCKET_DIR=" + c.dir.path,
		"PLUGIN_CLIENT_CERT=" + c.certPEM,
	}
	return mergeEnv(allowed(os.Environ()), c.spec.Env, c.pluginEnv, own)
}

// watch follows the process to its end: the exit, the rest of its group, the rest of its output.
func (c *child) watch(process *os.Process, pipes *pipeSet) {
	// While the dead leader is not yet reaped its process group cannot belong to anybody else.
	waitExited(process.Pid)
	signalGroup(process.Pid, syscall.SIGKILL)
	state, err := process.Wait()
	spawner.release()
	c.link.cut()
	close(c.exited)

	late := time.AfterFunc(pipeGrace, pipes.closeNear)
	c.readers.Wait()
	late.Stop()
	pipes.closeNear()

	c.exit = c.describe(state, err)
	c.log.close()
	close(c.done)
}

func (c *child) describe(state *os.ProcessState, err error) Exit {
	e := Exit{Code: -1, Stderr: c.stderr.tail(), Panic: c.stderr.panicBlock(), Killed: c.killed.Load()}
	if err != nil {
		return e
	}
	e.Code = state.ExitCode()
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = signalName(ws.Signal())
		e.OutOfMemory = ws.Signal() == syscall.SIGKILL && !e.Killed && c.ooms() > c.oomsStart
	}
	return e
}

// kill ends the process group at once; it does not wait.
func (c *child) kill() {
	c.signal(syscall.SIGKILL)
	c.link.cut()
}

// signal sends sig to the plugin's process group while the plugin is there.
func (c *child) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return
	}
	select {
	case <-c.exited:
		return
	default:
	}
	if sig == syscall.SIGKILL || sig == syscall.SIGTERM {
		c.killed.Store(true)
	}
	signalGroup(c.process.Pid, sig)
}

func (c *child) closeStdin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stdin != nil {
		_ = c.stdin.Close() // closing twice is harmless
	}
}

// settle finds out, after a failed start, whether the process has ended on its own: a moment may pass between the end of
// its stdout and its own.
func (c *child) settle() {
	if c.killed.Load() {
		return
	}
	select {
	case <-c.exited:
		c.alone = true
	case <-time.After(pipeGrace):
	}
}

func (c *child) started() bool { return c.pid() != 0 }

func (c *child) pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return 0
	}
	return c.process.Pid
}

// discard frees what the launch had. The process must be gone, or never have been there.
func (c *child) discard() {
	c.discarded.Do(func() {
		c.closeStdin()
		c.link.cut()
		c.link.close()
		c.log.close()
		_ = c.dir.Remove() // what cannot be removed now is swept later
	})
}

// Stdout gives go-plugin the handshake line and nothing else.
func (c *child) Stdout() io.ReadCloser { return c.stdout.handshake }

// Stderr gives go-plugin nothing: its parser of log lines panics on input that a plugin may well send.
func (c *child) Stderr() io.ReadCloser { return io.NopCloser(eof{}) }

// Wait returns when the process has ended and its output is read.
func (c *child) Wait(context.Context) error {
	<-c.done
	if c.exit.Code != 0 {
		return errors.New(c.exit.String())
	}
	return nil
}

// Kill does nothing. go-plugin calls it at every failed start, at once, when the process may be about to tell by its end
// what was wrong; abandon and Stop do the killing.
func (c *child) Kill(context.Context) error { return nil }

// Diagnose adds nothing: explain says it better.
func (c *child) Diagnose(context.Context) string { return "" }

// Name is the plugin's path.
func (c *child) Name() string { return c.spec.Path }

// ID is the process id.
func (c *child) ID() string {
	if pid := c.pid(); pid != 0 {
		return strconv.Itoa(pid)
	}
	return ""
}

// PluginToHost leaves addresses as they are.
func (c *child) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

// HostToPlugin leaves addresses as they are.
func (c *child) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// pipeSet is the three pipes of a child: near ends ours, far ends the child's.
type pipeSet struct {
	in, out, err [2]*os.File // read end, write end
	once         sync.Once
}

func openPipes() (*pipeSet, error) {
	p := &pipeSet{}
	for _, pair := range []*[2]*os.File{&p.in, &p.out, &p.err} {
		r, w, err := os.Pipe()
		if err != nil {
			p.closeFar()
			p.closeNear()
			return nil, err
		}
		pair[0], pair[1] = r, w
	}
	return p, nil
}

// closeFar closes the child's ends in this process.
func (p *pipeSet) closeFar() { closeAll(p.in[0], p.out[1], p.err[1]) }

// closeNear closes our ends.
func (p *pipeSet) closeNear() {
	p.once.Do(func() { closeAll(p.in[1], p.out[0], p.err[0]) })
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // pipes: nothing is buffered
		}
	}
}

// drain reads r to its end, whatever becomes of what it reads.
func drain(r io.Reader, w io.Writer) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		_, _ = w.Write(buf[:n]) // filters never fail and never block
		if err != nil {
			return
		}
	}
}
