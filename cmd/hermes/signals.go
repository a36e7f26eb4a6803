package main

import (
	"os"
	"os/signal"
	"syscall"
)

// onSignals calls handle, in one goroutine, with the count and the kind of each signal that asks the program to stop, until
// stop is called; stop waits for that goroutine.
func onSignals(handle func(n int, s os.Signal)) (stop func()) {
	signals := make(chan os.Signal, 4)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) { // nohup, and a shell for its background jobs, mean it
			signal.Notify(signals, s)
		}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with quit; the function that is returned waits for it
		defer close(done)
		for n := 1; ; n++ {
			select {
			case s := <-signals:
				handle(n, s)
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

// catchBrokenPipe makes a write to a closed stdout an error instead of the end of the process: the cell must be interrupted
// first. The signal is caught and not ignored, because programs started from here would inherit that it is ignored.
func catchBrokenPipe() (release func()) {
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)

	return func() { signal.Stop(broken) }
}

func asSyscall(s os.Signal) syscall.Signal {
	if n, ok := s.(syscall.Signal); ok {
		return n
	}

	return syscall.SIGINT
}
