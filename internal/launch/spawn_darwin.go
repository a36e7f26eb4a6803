package launch

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// sysProcAttr: a process group of its own. There is no parent-death signal; the end of its stdin tells the plugin.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// waitExited blocks until the child has ended and leaves it to be reaped.
func waitExited(pid int) {
	kq, err := unix.Kqueue()
	if err != nil {
		return
	}
	defer unix.Close(kq)
	change := []unix.Kevent_t{{Ident: uint64(pid), Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD | unix.EV_ONESHOT, Fflags: unix.NOTE_EXIT}}
	for {
		_, err := unix.Kevent(kq, change, make([]unix.Kevent_t, 1), nil)
		if err != unix.EINTR {
			return
		}
	}
}

// identify reads a process' identity: its pid, its start, and the boot.
func identify(pid int) (identity, error) {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return identity{}, err
	}
	boot, err := unix.SysctlTimeval("kern.boottime")
	if err != nil {
		return identity{}, err
	}
	start := info.Proc.P_starttime
	return identity{PID: pid, Start: fmt.Sprintf("%d.%06d", start.Sec, start.Usec), Boot: fmt.Sprint(boot.Sec)}, nil
}

// oomKills is not to be had here.
func oomKills() int64 { return 0 }

func noexec(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Flags&unix.MNT_NOEXEC != 0
}
