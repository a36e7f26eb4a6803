//go:build unix && !linux

package local

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// platformCapabilities: without /proc and a subreaper, what leaves its process group is not found again.
var platformCapabilities []sdk.Capability

func setParentDeathSignal(*syscall.SysProcAttr) {}

// tree is a command's process and its group.
type tree struct {
	mu   sync.Mutex
	pid  int
	dead bool
}

func startInTree(path string, argv []string, attr *os.ProcAttr) (*tree, *os.Process, error) {
	p, err := os.StartProcess(path, argv, attr)
	if err != nil {
		return nil, nil, err
	}
	return &tree{pid: p.Pid}, p, nil
}

func (t *tree) reaped() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead = true
}

func (t *tree) release() {}

func (t *tree) signalGroup(sig syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.dead {
		_ = syscall.Kill(-t.pid, sig)
	}
}

// signal signals the group, also when its leader is gone: the number is not given to another process while the group exists.
func (t *tree) signal(sig syscall.Signal) { _ = syscall.Kill(-t.pid, sig) }

func (t *tree) empty() bool { return errors.Is(syscall.Kill(-t.pid, 0), syscall.ESRCH) }
