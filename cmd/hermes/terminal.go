package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// terminal prepares req for -t: the size of the user's terminal goes along and its changes follow; with -i the terminal is in
// raw mode, so that keys such as Ctrl-C are the command's. Closing c undoes that.
func (a *app) terminal(req *core.ExecRequest, c *controller) {
	window := windowSize(a.stdout, a.stdin)
	req.TTY = &window
	stopResizing := onResize(func() {
		window := windowSize(a.stdout, a.stdin)
		c.send(sdk.Control{Resize: &window})
	})
	c.onClose(stopResizing)

	fd := int(a.stdin.Fd())
	if req.Stdin == nil || !term.IsTerminal(fd) {
		return
	}
	saved, err := term.MakeRaw(fd)
	if err != nil {
		a.warnf("note: the terminal cannot be put into raw mode: %v", err)
		return
	}
	c.onClose(func() {
		stopResizing()
		_ = term.Restore(fd, saved)
	})
}

// windowSize is the size of the first file that is a terminal, else the usual one.
func windowSize(files ...*os.File) sdk.Window {
	for _, f := range files {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 && rows > 0 {
			return sdk.Window{Rows: clamp16(rows), Cols: clamp16(cols)}
		}
	}

	return sdk.Window{Rows: 24, Cols: 80}
}

func clamp16(n int) uint16 { return uint16(min(n, 1<<16-1)) }

// onResize calls f, in one goroutine, whenever the size of the terminal changes, until stop is called; stop waits for it.
func onResize(f func()) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGWINCH)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with quit; stop waits for it
		defer close(done)
		for {
			select {
			case <-signals:
				f()
			case <-quit:
				return
			}
		}
	}()

	return func() {
		signal.Stop(signals)
		close(quit)
		<-done
	}
}

// shortName is a signal's name as the plugin contract writes it, INT for SIGINT.
func shortName(s os.Signal) string {
	return unix.SignalName(asSyscall(s))[len("SIG"):]
}
