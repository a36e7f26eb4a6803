package local

import (
	"bytes"
	"maps"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

var platformCapabilities = []sdk.Capability{sdk.CapReap}

// setParentDeathSignal makes the kernel kill the process when the plugin dies without a chance to. A process that detaches (forks twice) loses the signal.
func setParentDeathSignal(sys *syscall.SysProcAttr) { sys.Pdeathsig = syscall.SIGKILL }

// nursery keeps the trees of all commands of this program. The program is the subreaper of its descendants: what loses its parent becomes
// a child of this program, so that a daemon which left its command's session can still be found.
var nursery struct {
	mu       sync.Mutex
	children map[int]*tree      // by pid, until the process was reaped
	live     map[*tree]struct{} // until the command's Exec has returned
	past     []span             // of commands that have ended while others that are still live were, or within the last clock tick
	left     map[int]struct{}   // the sessions that commands have left behind
}

// span is when a command was running, in clock ticks since the machine was started.
type span struct{ from, to uint64 }

func (s span) has(t uint64) bool { return s.from <= t && t <= s.to }

// tree is a command's process and everything that comes from it.
type tree struct {
	pid   int
	start uint64 // in clock ticks
	dead  bool   // reaped
}

var adopt = sync.OnceFunc(func() {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		sdk.Logger().Warn("cannot become subreaper; daemons that a cancelled command made may stay", "error", err.Error())
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	go reapOrphans(children) // lives as long as the program
})

// reapOrphans lives as long as the program, and only wakes up when a child has ended.
func reapOrphans(children <-chan os.Signal) {
	for range children {
		reapOrphansNow()
	}
}

// startInTree starts a process. The lock keeps reapOrphansNow from taking it for somebody else's.
func startInTree(path string, argv []string, attr *os.ProcAttr) (*tree, *os.Process, error) {
	adopt()
	nursery.mu.Lock()
	defer nursery.mu.Unlock()
	p, err := os.StartProcess(path, argv, attr)
	if err != nil {
		return nil, nil, err
	}
	t := &tree{pid: p.Pid}
	if s, ok := readStat(p.Pid); ok {
		t.start = s.start
	}
	if nursery.children == nil {
		nursery.children, nursery.live, nursery.left = make(map[int]*tree), make(map[*tree]struct{}), make(map[int]struct{})
	}
	nursery.children[t.pid], nursery.live[t] = t, struct{}{}
	return t, p, nil
}

// reaped says that the process itself is gone.
func (t *tree) reaped() {
	nursery.mu.Lock()
	defer nursery.mu.Unlock()
	t.dead = true
	delete(nursery.children, t.pid)
}

// release says that the command is over, its tree with it.
func (t *tree) release() {
	nursery.mu.Lock()
	defer nursery.mu.Unlock()
	delete(nursery.live, t)
	t.leave()
	ended := now()
	oldest := ended // whatever starts next may do so in this clock tick
	for o := range nursery.live {
		oldest = min(oldest, o.start)
	}
	kept := nursery.past[:0]
	for _, s := range append(nursery.past, span{t.start, ended}) {
		if s.to >= oldest {
			kept = append(kept, s)
		}
	}
	nursery.past = kept
}

// leave notes the sessions of what the command leaves behind, with nursery.mu held: what such a daemon starts later has no other mark.
func (t *tree) leave() {
	present := make(map[int]bool)
	for _, pid := range childPids() {
		s, ok := readStat(pid)
		if !ok || s.parent != os.Getpid() || !orphan(s) {
			continue
		}
		for _, id := range []int{s.session, s.pid} { // it may be about to make a session of its own
			present[id] = true
			if s.start >= t.start {
				nursery.left[id] = struct{}{}
			}
		}
	}
	maps.DeleteFunc(nursery.left, func(id int, _ struct{}) bool { return !present[id] })
}

// now is the time in the unit of start times, rounded up.
func now() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return ^uint64(0)
	}
	const ticks = 100 // USER_HZ, the same on every architecture that Go runs on
	return uint64(ts.Sec)*ticks + uint64(ts.Nsec)/(1e9/ticks) + 1
}

// signalGroup signals the process' own group, as a terminal does.
func (t *tree) signalGroup(sig syscall.Signal) {
	nursery.mu.Lock()
	defer nursery.mu.Unlock()
	if !t.dead {
		_ = syscall.Kill(-t.pid, sig)
	}
}

// signal signals everything in the tree.
func (t *tree) signal(sig syscall.Signal) {
	for _, s := range t.members() {
		if again, ok := readStat(s.pid); ok && again.start == s.start {
			_ = syscall.Kill(s.pid, sig)
		}
	}
}

// empty reports whether nothing of the tree is left.
func (t *tree) empty() bool { return len(t.members()) == 0 }

// members returns the living processes of the tree: the descendants of the process, what is still in its session, and orphans that can only come
// from it, with their descendants. An orphan that left the session could come from another command, if that ran when the orphan was made or left
// the orphan's session behind; then it is left alone.
func (t *tree) members() []stat {
	all := readStats()
	nursery.mu.Lock()
	defer nursery.mu.Unlock()

	byPid := make(map[int]stat, len(all))
	children := make(map[int][]stat)
	for _, s := range all {
		byPid[s.pid] = s
		children[s.parent] = append(children[s.parent], s)
	}
	var found []stat
	seen := make(map[int]bool)
	var add func(s stat)
	add = func(s stat) {
		if seen[s.pid] {
			return
		}
		seen[s.pid] = true
		if s.state != 'Z' {
			found = append(found, s)
		}
		for _, c := range children[s.pid] {
			add(c)
		}
	}

	root, ok := byPid[t.pid]
	reused := ok && root.start != t.start // the process is gone and its number is somebody else's, who then has the session too
	for _, s := range all {
		if !reused && (s.pid == t.pid || s.session == t.pid) {
			add(s)
		}
	}
	for _, s := range children[os.Getpid()] {
		if t.mothered(s) {
			add(s)
		}
	}
	return found
}

// mothered reports whether s, a child of this program, is an orphan that comes from t, with nursery.mu held.
func (t *tree) mothered(s stat) bool {
	if s.start < t.start || !orphan(s) {
		return false
	}
	if _, left := nursery.left[s.session]; left {
		return false
	}
	for o := range nursery.live {
		if o != t && o.start <= s.start {
			return false
		}
	}
	for _, past := range nursery.past {
		if past.has(s.start) {
			return false
		}
	}
	return true
}

// orphan reports whether s, a child of this program, was adopted, with nursery.mu held. What other code in this program starts is
// recognised by its session, which is the program's own.
func orphan(s stat) bool {
	return nursery.children[s.pid] == nil && s.session != session()
}

var session = sync.OnceValue(func() int {
	id, err := unix.Getsid(0)
	if err != nil {
		return 0
	}
	return id
})

// reapOrphansNow removes adopted children that have ended.
func reapOrphansNow() {
	nursery.mu.Lock()
	defer nursery.mu.Unlock()
	for _, pid := range childPids() {
		if s, ok := readStat(pid); ok && s.state == 'Z' && s.parent == os.Getpid() && orphan(s) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// childPids returns the children of this program.
func childPids() []int {
	var pids []int
	for _, tid := range numbers("/proc/self/task") {
		b, err := os.ReadFile("/proc/self/task/" + strconv.Itoa(tid) + "/children")
		if err != nil {
			return numbers("/proc") // a kernel without this file
		}
		for f := range bytes.FieldsSeq(b) {
			if pid, err := strconv.Atoi(string(f)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// numbers returns the entries of dir that are numbers.
func numbers(dir string) []int {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	names, _ := f.Readdirnames(-1)
	var found []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			found = append(found, n)
		}
	}
	return found
}

// stat is what /proc says about a process.
type stat struct {
	pid, parent, session int
	state                byte
	start                uint64
}

func readStats() []stat {
	var all []stat
	for _, pid := range numbers("/proc") {
		if s, ok := readStat(pid); ok {
			all = append(all, s)
		}
	}
	return all
}

func readStat(pid int) (stat, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false
	}
	return parseStat(pid, b)
}

// parseStat reads a line of /proc/PID/stat. The program's name in it is in brackets and may itself hold anything.
func parseStat(pid int, b []byte) (stat, bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, false
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, false
	}
	s := stat{pid: pid, state: f[0][0]}
	var err error
	number := func(field int) int {
		n, e := strconv.Atoi(string(f[field]))
		if e != nil {
			err = e
		}
		return n
	}
	s.parent, s.session, s.start = number(1), number(3), uint64(number(19))
	return s, err == nil
}
