package core_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/internal/mustrun"
)

// TestCampaignFullDisk: the disk with the kernel hosts' directories and journals is full now and then.
func TestCampaignFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the campaign takes half a minute")
	}
	if os.Geteuid() != 0 {
		mustrun.Skip(t, "root", "a small disk is mounted")
	}
	t.Parallel()
	r := seeded(t)
	f := newField(t, rand.New(rand.NewPCG(r.Uint64(), 0)))
	a := assignment{Side: 4, Disk: f.runtimeDir(), Seed: r.Uint64(), Prune: true}
	for n := range longOr(1000, 100) {
		o := f.order(f.rand, n)
		if n%2 == 0 {
			o.Session = fmt.Sprintf("s%d", n%3)
		} else {
			o.Owner = fmt.Sprintf("o%d", n%3)
		}
		a.Orders = append(a.Orders, o)
	}
	f.program(a, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}, nil, func(line []byte) {
		var v verdict
		if err := json.Unmarshal(line, &v); err != nil {
			t.Errorf("a line of the program: %v: %q", err, line)
			return
		}
		if v.N < 0 {
			f.count("disk filled")
			return
		}
		f.told(v)
	})
	if len(f.verdicts) != len(a.Orders) {
		t.Errorf("%d verdicts of %d cells", len(f.verdicts), len(a.Orders))
	}
	f.judge(false)
	f.checkLeft()
}

// smallDisk mounts a disk of 1 MB over dir, in this process' own mount namespace, and fills and frees it at random until stop is called.
func smallDisk(dir string, r *rand.Rand) (stop func(), err error) {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		return nil, fmt.Errorf("mount a small disk: %w", err)
	}
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // ends with stop
		full := false
		path := filepath.Join(dir, "filler")
		defer func() { _ = os.Remove(path) }()
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Duration(20+r.IntN(150)) * time.Millisecond):
			}
			if full = !full; !full {
				_ = os.Remove(path)
				continue
			}
			if errors.Is(os.WriteFile(path, make([]byte, 2<<20), 0o600), syscall.ENOSPC) {
				fmt.Println(`{"n":-1}`)
			}
		}
	})
	return sync.OnceFunc(func() { close(over); wg.Wait() }), nil
}
