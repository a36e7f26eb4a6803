package launch

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// sysProcAttr: a process group of its own, and TERM when the spawning thread dies. It is TERM and not KILL so that the
// plugin can end what it started; its stdin ends at the same moment, and the next host's sweep kills what stays.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// waitExited blocks until the child has ended and leaves it to be reaped.
func waitExited(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}

// identify reads a process' identity: its pid, its start in clock ticks since boot, and the boot.
func identify(pid int) (identity, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return identity{}, err
	}
	boot, err := bootID()
	if err != nil {
		return identity{}, err
	}
	// The name in parentheses may hold anything; start time is the 22nd field, the 20th after it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return identity{}, fmt.Errorf("/proc/%d/stat: unexpected content", pid)
	}
	return identity{PID: pid, Start: string(fields[19]), Boot: boot}, nil
}

var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
})

// oomKills counts the processes that the kernel has killed for want of memory; 0 if it does not say.
func oomKills() int64 {
	b, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	_, rest, ok := strings.Cut(string(b), "\noom_kill ")
	if !ok {
		return 0
	}
	value, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func noexec(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_NOEXEC != 0
}
