package main

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hermes-framework/hermes/plugin"
)

// Exec implements plugin.Environment.
func (e *environment) Exec(ctx context.Context, cmd plugin.Command, stdio plugin.IO) (plugin.ExitStatus, error) {
	if cmd.TTY != nil {
		return e.UnimplementedEnvironment.Exec(ctx, cmd, stdio)
	}
	if err := e.begin(); err != nil {
		return plugin.ExitStatus{}, err
	}
	defer e.running.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.ctx, func() { cancel(context.Cause(e.ctx)) })()

	c := &exec.Cmd{Args: cmd.Argv, Env: e.variables(cmd), Dir: e.dir, Stdout: stdio.Stdout, Stderr: stdio.Stderr}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.WaitDelay = 250 * time.Millisecond // for output that something in the background holds open
	if cmd.Dir != "" {
		c.Dir = absolute(e.dir, cmd.Dir)
	}
	if err := start(c, stdio.Stdin); err != nil {
		return plugin.ExitStatus{}, err
	}
	if stdio.Started != nil {
		stdio.Started()
	}
	ended := make(chan struct{})
	go serve(ctx, c.Process.Pid, stdio.Control, ended) // ends with the command
	err := c.Wait()
	close(ended)
	if cause := context.Cause(ctx); cause != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // what its first process left of the group
		return plugin.ExitStatus{}, plugin.Errorf(plugin.AsError(cause, plugin.Ran).Code, plugin.Ran, "%s: stopped: %w", cmd.Argv[0], cause)
	}
	return exitStatus(c, err)
}

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// start starts c. When it fails nothing has run.
func start(c *exec.Cmd, stdin io.Reader) error {
	if err := syscall.Access(c.Dir, unix.X_OK); err != nil {
		return plugin.Errorf(plugin.CodeInvalid, plugin.NotStarted, "working directory %s: %w", c.Dir, err)
	}
	var err error
	if c.Path, err = lookUp(c); err != nil {
		return plugin.AsError(err, plugin.NotStarted)
	}
	var in io.WriteCloser
	if stdin != nil {
		if in, err = c.StdinPipe(); err != nil {
			return plugin.AsError(err, plugin.NotStarted)
		}
	}
	if err := c.Start(); err != nil {
		return plugin.AsError(err, plugin.NotStarted)
	}
	if in != nil {
		go feed(in, stdin) // ends when the call does: its stdin can then not be read any more
	}
	return nil
}

// lookUp finds the program in the PATH of the command's own environment.
func lookUp(c *exec.Cmd) (string, error) {
	name := c.Args[0]
	if strings.Contains(name, "/") {
		return exec.LookPath(absolute(c.Dir, name))
	}
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, kv := range c.Env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if found, err := exec.LookPath(filepath.Join(absolute(c.Dir, dir), name)); err == nil {
			return found, nil
		}
	}
	return "", plugin.Errorf(plugin.CodeNotFound, plugin.NotStarted, "%s: command not found", name).WithHint("it was looked for in PATH=%s", path)
}

// feed copies stdin. If it breaks off, the command must not take that for its end; Wait closes the pipe in any case.
func feed(in io.WriteCloser, stdin io.Reader) {
	_, err := io.CopyBuffer(struct{ io.Writer }{in}, struct{ io.Reader }{stdin}, make([]byte, plugin.MaxChunk))
	if err == nil || errors.Is(err, syscall.EPIPE) {
		_ = in.Close()
	}
}

// serve delivers signals to the process group until the command has ended, and ends it when ctx does.
func serve(ctx context.Context, group int, control <-chan plugin.Control, ended <-chan struct{}) {
	var kill <-chan time.Time
	done := ctx.Done()
	for {
		select {
		case c, ok := <-control:
			if !ok {
				control = nil
			} else if s := unix.SignalNum("SIG" + c.Signal); s != 0 {
				_ = syscall.Kill(-group, s)
			}
		case <-done:
			_ = syscall.Kill(-group, syscall.SIGTERM)
			done, kill = nil, time.After(plugin.Grace)
		case <-kill:
			_ = syscall.Kill(-group, syscall.SIGKILL)
		case <-ended:
			return
		}
	}
}

// exitStatus is how c ended.
func exitStatus(c *exec.Cmd, err error) (plugin.ExitStatus, error) {
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return plugin.ExitStatus{}, plugin.AsError(err, plugin.Ran)
	}
	if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return plugin.ExitStatus{Code: -1, Signal: strings.TrimPrefix(unix.SignalName(ws.Signal()), "SIG")}, nil
	}
	return plugin.ExitStatus{Code: c.ProcessState.ExitCode()}, nil
}
