//go:build unix

package local

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Exec implements sdk.Environment.
func (e *environment) Exec(ctx context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	if err := e.begin(); err != nil {
		return sdk.ExitStatus{}, err
	}
	defer e.running.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.ctx, func() { cancel(context.Cause(e.ctx)) })()

	p, err := e.prepare(cmd)
	if err != nil {
		return sdk.ExitStatus{}, err
	}
	if ctx.Err() != nil {
		return sdk.ExitStatus{}, stopped(ctx, sdk.NotStarted, cmd)
	}
	if err := p.start(cmd, stdio); err != nil {
		return sdk.ExitStatus{}, err
	}
	if stdio.Started != nil {
		stdio.Started()
	}
	return p.run(ctx, cmd, stdio)
}

// stopped is the error of a command that ended because its ctx did.
func stopped(ctx context.Context, d sdk.Delivery, cmd sdk.Command) error {
	cause := context.Cause(ctx)
	return sdk.Errorf(sdk.AsError(cause, d).Code, d, "%s: stopped: %w", cmd.Argv[0], cause)
}

// process is one command.
type process struct {
	path string
	argv []string
	env  []string
	dir  string

	os    *os.Process
	tree  *tree
	ended chan struct{}    // closed when the process has ended and was reaped
	state *os.ProcessState // its end, when ended is closed
	err   error

	tty     *os.File // our end of the terminal
	stdin   *os.File // our end of the pipe, nil without stdin
	outputs []*output
}

// prepare finds everything that can be wrong before a process is made.
func (e *environment) prepare(cmd sdk.Command) (*process, error) {
	if len(cmd.Argv) == 0 {
		return nil, sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "the command is empty")
	}
	dir := e.dir
	if cmd.Dir != "" {
		dir = e.path(cmd.Dir)
	}
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	env, err := commandEnv(cmd, dir)
	if err != nil {
		return nil, err
	}
	path, err := lookup(cmd.Argv[0], dir, env)
	if err != nil {
		return nil, err
	}
	return &process{path: path, argv: cmd.Argv, env: env, dir: dir, ended: make(chan struct{})}, nil
}

// start makes the process. When it returns an error nothing is left open.
func (p *process) start(cmd sdk.Command, stdio sdk.IO) (err error) {
	var child []*os.File // the process' own ends, closed here in any case
	defer func() {
		for _, f := range child {
			_ = f.Close()
		}
		if err != nil {
			p.closeFiles()
		}
	}()
	if cmd.TTY != nil {
		child, err = p.openTTY(cmd.TTY, stdio)
	} else {
		child, err = p.openPipes(stdio)
	}
	if err != nil {
		return sdk.Errorf(sdk.AsError(err, sdk.NotStarted).Code, sdk.NotStarted, "start %s: %w", p.path, err)
	}

	sys := &syscall.SysProcAttr{Setsid: true, Setctty: cmd.TTY != nil}
	setParentDeathSignal(sys)
	attr := &os.ProcAttr{Dir: p.dir, Env: p.env, Files: child, Sys: sys}
	if err := p.spawn(attr); err != nil {
		return startError(p.path, err)
	}
	return nil
}

// spawn starts the process from the one thread that makes all of them. A file that is being written somewhere else at this moment,
// by a fork that has not executed yet, for instance, is tried again.
func (p *process) spawn(attr *os.ProcAttr) error {
	const tries = 20
	for i := 0; ; i++ {
		var err error
		onSpawner(func() { p.tree, p.os, err = startInTree(p.path, p.argv, attr) })
		if !errors.Is(err, syscall.ETXTBSY) || i == tries {
			return err
		}
		time.Sleep(time.Duration(i+1) * time.Millisecond)
	}
}

// spawner is the thread that makes processes: the parent-death signal is sent when the thread that made the process ends, so this one never does.
var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go makeProcesses(work) // lives as long as the program
	return work
})

// makeProcesses lives as long as the program.
func makeProcesses(work <-chan func()) {
	runtime.LockOSThread()
	for fn := range work {
		fn()
	}
}

func onSpawner(fn func()) {
	done := make(chan struct{})
	spawner() <- func() {
		defer close(done)
		fn()
	}
	<-done
}

// openPipes makes the files of a process without a terminal.
func (p *process) openPipes(stdio sdk.IO) (child []*os.File, err error) {
	in, err := p.openStdin(stdio.Stdin)
	if err != nil {
		return nil, err
	}
	child = append(child, in)
	for _, w := range []io.Writer{stdio.Stdout, stdio.Stderr} {
		f, err := p.openOutput(w)
		if err != nil {
			return child, err
		}
		child = append(child, f)
	}
	return child, nil
}

func (p *process) openStdin(r io.Reader) (*os.File, error) {
	if r == nil {
		return os.Open(os.DevNull)
	}
	in, w, err := os.Pipe()
	p.stdin = w
	return in, err
}

func (p *process) openOutput(w io.Writer) (*os.File, error) {
	if w == nil {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	r, f, err := os.Pipe()
	if err == nil {
		p.outputs = append(p.outputs, &output{r: r, w: w})
	}
	return f, err
}

// openTTY makes the files of a process with a terminal.
func (p *process) openTTY(size *sdk.Window, stdio sdk.IO) ([]*os.File, error) {
	ours, theirs, err := pty.Open()
	if err != nil {
		return nil, err
	}
	if ours, err = pollable(ours); err != nil {
		_ = theirs.Close()
		return nil, err
	}
	p.tty = ours
	w := stdio.Stdout
	if w == nil {
		w = io.Discard
	}
	p.outputs = append(p.outputs, &output{r: ours, w: w, tty: true})
	return []*os.File{theirs, theirs, theirs}, resize(ours, size)
}

// pollable returns f, closed, as a file with deadlines: the library opens it as one whose Read blocks a thread.
func pollable(f *os.File) (*os.File, error) {
	defer func() { _ = f.Close() }()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func resize(tty *os.File, size *sdk.Window) error {
	return pty.Setsize(tty, &pty.Winsize{Rows: size.Rows, Cols: size.Cols})
}

func (p *process) closeFiles() {
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	for _, o := range p.outputs {
		_ = o.r.Close()
	}
}

// run serves the process until it has ended.
func (p *process) run(ctx context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	defer p.closeFiles()
	defer p.tree.release()
	go func() { // ends with the process, which stop makes sure of
		p.state, p.err = p.os.Wait()
		p.tree.reaped()
		close(p.ended)
	}()
	var outputs, control sync.WaitGroup
	done := make(chan struct{}) // closed when the process is over or given up
	for _, o := range p.outputs {
		outputs.Go(o.copy) // ends with its pipe, or when that is given up
	}
	if stdio.Control != nil {
		control.Go(func() { p.control(stdio.Control, done) }) // ends with done
	}
	if stdio.Stdin != nil {
		go p.feed(stdio.Stdin) // ends when its file is closed, or when a Read that is blocked then returns
	}

	canceled := false
	select {
	case <-p.ended:
	case <-ctx.Done():
		canceled = true
		p.stop()
	}
	for _, o := range p.outputs {
		o.finish()
	}
	outputs.Wait()
	close(done)
	control.Wait()
	if canceled {
		return sdk.ExitStatus{}, stopped(ctx, sdk.Ran, cmd)
	}
	return p.status()
}

// status is how the process ended. An output that the caller did not take is an error beside it.
func (p *process) status() (sdk.ExitStatus, error) {
	if p.err != nil {
		return sdk.ExitStatus{}, sdk.Errorf(sdk.CodeInternal, sdk.Ran, "%s: wait: %w", p.argv[0], p.err)
	}
	status := sdk.ExitStatus{Code: p.state.ExitCode()}
	if ws, ok := p.state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		status = sdk.ExitStatus{Code: -1, Signal: signalName(ws.Signal())}
	}
	for _, o := range p.outputs {
		if o.err != nil {
			return status, sdk.Errorf(sdk.CodeInternal, sdk.Ran, "%s: write output: %w", p.argv[0], o.err)
		}
	}
	return status, nil
}

// feed copies stdin. A process that reads no more, or has ended, is not a failure.
func (p *process) feed(r io.Reader) {
	if p.tty != nil {
		p.feedTTY(r)
		return
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{p.stdin}, struct{ io.Reader }{r}, make([]byte, sdk.MaxChunk))
	if err == nil || errors.Is(err, syscall.EPIPE) {
		_ = p.stdin.Close()
		return
	}
	select {
	case <-p.ended:
	default:
		// The caller's stdin broke off. The process must not take that for its end: whoever broke it off also ends the command.
		sdk.Logger().Debug("stdin broke off", "command", p.argv[0], "error", err.Error())
	}
}

// feedTTY copies stdin to the terminal; its end is typed, as at a keyboard.
func (p *process) feedTTY(r io.Reader) {
	_, err := io.CopyBuffer(struct{ io.Writer }{p.tty}, struct{ io.Reader }{r}, make([]byte, sdk.MaxChunk))
	if err == nil {
		const endOfTransmission = 4
		_, _ = p.tty.Write([]byte{endOfTransmission})
	}
}

// control delivers signals and window sizes until the process has ended or was given up.
func (p *process) control(controls <-chan sdk.Control, done <-chan struct{}) {
	for {
		select {
		case c, ok := <-controls:
			if !ok {
				return
			}
			if c.Resize != nil && p.tty != nil {
				_ = resize(p.tty, c.Resize)
			}
			if sig, ok := signals[c.Signal]; ok {
				p.tree.signalGroup(sig)
			}
		case <-p.ended:
			return
		case <-done:
			return
		}
	}
}

var signals = map[string]syscall.Signal{
	"INT":  syscall.SIGINT,
	"TERM": syscall.SIGTERM,
	"KILL": syscall.SIGKILL,
	"HUP":  syscall.SIGHUP,
	"QUIT": syscall.SIGQUIT,
	"USR1": syscall.SIGUSR1,
	"USR2": syscall.SIGUSR2,
}

// stop ends the process and its tree: TERM, sdk.Grace, KILL. It returns when none of it is left, or after a bounded time.
func (p *process) stop() {
	p.tree.signal(syscall.SIGTERM)
	p.tree.signal(syscall.SIGCONT) // a stopped process gets its TERM only then
	if p.gone(sdk.Grace) {
		return
	}
	const patience = 2 * time.Second // a process that does not die of KILL hangs in the kernel; it is not waited for
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		p.tree.signal(syscall.SIGKILL)
		if p.gone(20 * time.Millisecond) {
			return
		}
	}
	sdk.Logger().Warn("processes are left after KILL", "command", p.argv[0], "pid", p.os.Pid)
}

// gone waits until the process was reaped and its tree is empty, at most d.
func (p *process) gone(d time.Duration) bool {
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case <-p.ended:
	case <-limit.C:
		return false
	}
	// The rest of the tree are not our children, so their end can only be looked for.
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if p.tree.empty() {
			return true
		}
		next := time.NewTimer(pause)
		select {
		case <-next.C:
		case <-limit.C:
			next.Stop()
			return p.tree.empty()
		}
	}
}
