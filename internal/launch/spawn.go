package launch

import (
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// spawner starts all children of this process from one thread. The parent-death signal is sent when the *thread* dies
// that started the child, and Go ends threads as it likes; so this one is locked, and lives until the last child is reaped.
var spawner = &spawnThread{}

type spawnThread struct {
	mu       sync.Mutex
	children int
	requests chan spawnRequest
}

type spawnRequest struct {
	path  string
	argv  []string
	attr  *os.ProcAttr
	reply chan<- spawnReply
}

type spawnReply struct {
	process *os.Process
	err     error
}

// start starts a process. Every one that it returns must be followed by a release once it is reaped.
func (s *spawnThread) start(path string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	s.mu.Lock()
	s.children++
	if s.requests == nil {
		s.requests = make(chan spawnRequest)
		go spawnLoop(s.requests) // ended by the last release
	}
	requests := s.requests
	s.mu.Unlock()

	reply := make(chan spawnReply, 1)
	requests <- spawnRequest{path, argv, attr, reply}
	r := <-reply
	if r.err != nil {
		s.release()
	}
	return r.process, r.err
}

func (s *spawnThread) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.children--
	if s.children == 0 {
		close(s.requests)
		s.requests = nil
	}
}

func spawnLoop(requests <-chan spawnRequest) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and by then nobody depends on it
	for r := range requests {
		process, err := os.StartProcess(r.path, r.argv, r.attr)
		r.reply <- spawnReply{process, err}
	}
}

// signalGroup signals the process group of a child that is not yet reaped.
func signalGroup(pid int, sig syscall.Signal) {
	_ = syscall.Kill(-pid, sig) // ESRCH: nobody is left in it
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); len(name) > 3 {
		return name[3:]
	}
	return sig.String()
}
