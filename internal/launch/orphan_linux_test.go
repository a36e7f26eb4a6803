package launch

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// killedHost runs a host, kills it as soon as its plugin runs, and returns the plugin's pid.
func killedHost(t *testing.T, kind, dir string) int {
	t.Helper()
	cmd := hostCommand(t, kind)
	cmd.Env = append(cmd.Env, hostVar+"_DIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the host said nothing: %v", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return pid
}

func TestPluginEndsWithAHostThatIsKilled(t *testing.T) {
	t.Parallel()
	if pid := killedHost(t, "plain ok", ""); !stays(pid) {
		t.Error("control: the plugin ended with its host; go-plugin has been mended")
	}

	dir := shortDir(t)
	pid := killedHost(t, "ours ok", dir)
	eventually(t, "the plugin's end", func() bool { return !alive(pid) })

	left, _ := filepath.Glob(filepath.Join(dir, runPrefix+"*"))
	if len(left) != 1 {
		t.Fatalf("left by the killed host: %v; want its run directory", left)
	}
	if swept := Sweep(dir); !slices.Contains(swept, left[0]) {
		t.Errorf("swept %v; want %v", swept, left)
	}
	wantEmpty(t, dir)
}

// stays says whether the process is still there a while after its host has gone.
func stays(pid int) bool {
	for range 100 {
		if !alive(pid) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	return true
}

func TestSweepKillsWhatOutlivedItsHost(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	pid := killedHost(t, "ours ignore-term", dir)
	if !stays(pid) {
		t.Fatal("a plugin that ignores TERM and its stdin ended all the same")
	}
	Sweep(dir)
	eventually(t, "the plugin's end", func() bool { return !alive(pid) })
	wantEmpty(t, dir)
}

func TestSweepSparesWhatIsInUse(t *testing.T) {
	p := start(t, badSpec(t, "ok"))
	if swept := Sweep(p.spec.RuntimeDir); slices.Contains(swept, p.RunDir()) || !alive(p.PID()) || !exists(p.RunDir()) {
		t.Errorf("swept %v under a running plugin (alive: %v)", swept, alive(p.PID()))
	}
}

// TestSweepNeverKillsByPIDAlone: a pid is given to another process in time.
func TestSweepNeverKillsByPIDAlone(t *testing.T) {
	bystander := exec.CommandContext(t.Context(), "sleep", "300")
	bystander.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bystander.Process.Kill(); _ = bystander.Wait() }()
	id, err := identify(bystander.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}

	otherStart, otherBoot := id, id
	otherStart.Start += "0"
	otherBoot.Boot = strings.ToUpper(id.Boot) + "x"
	records := map[string]string{
		"other-start": fmt.Sprintf(`{"pid":%d,"start":%q,"boot":%q}`, id.PID, otherStart.Start, id.Boot),
		"other-boot":  fmt.Sprintf(`{"pid":%d,"start":%q,"boot":%q}`, id.PID, id.Start, otherBoot.Boot),
		"pid-alone":   fmt.Sprintf(`{"pid":%d}`, id.PID),
		"everybody":   `{"pid":-1,"start":"1","boot":"1"}`,
		"garbage":     "\x00",
	}
	dir := shortDir(t)
	for name, content := range records {
		writeRecord(t, filepath.Join(dir, runPrefix+name), content)
	}
	Sweep(dir)
	wantEmpty(t, dir)
	if !alive(id.PID) {
		t.Fatal("the bystander was killed")
	}

	// The same record with the whole identity does kill, also inside a dead program's own directory: the test tests something.
	owner := filepath.Join(dir, OwnerPrefix+"1")
	if err := os.Mkdir(owner, 0o700); err != nil {
		t.Fatal(err)
	}
	writeRecord(t, filepath.Join(owner, runPrefix+"1"), fmt.Sprintf(`{"pid":%d,"start":%q,"boot":%q}`, id.PID, id.Start, id.Boot))
	Sweep(dir)
	eventually(t, "the process' end", func() bool { return !alive(id.PID) })
}

func writeRecord(t *testing.T, dir, content string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordName), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestSpawningThreadOutlivesItsStarter: the parent-death signal comes when the thread ends that started the child, not the process.
func TestSpawningThreadOutlivesItsStarter(t *testing.T) {
	t.Parallel()
	died := make(chan *exec.Cmd)
	go func() {
		lockForGood()
		cmd := exec.Command("sleep", "300")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if cmd.Start() != nil {
			cmd = nil
		}
		died <- cmd // the thread ends with the goroutine
	}()
	control := <-died
	if control == nil {
		t.Fatal("no sleep")
	}
	if err := control.Wait(); err == nil {
		t.Error("control: the child outlived the thread that started it")
	}

	started := make(chan *Process)
	go func() {
		lockForGood()
		p, err := Start(context.WithoutCancel(t.Context()), badSpec(t, "ok"))
		if err != nil {
			t.Error(err)
		}
		started <- p
	}()
	p := <-started
	if p == nil {
		return
	}
	defer func() { _ = p.Kill() }()
	if !stays(p.PID()) {
		t.Errorf("the plugin ended with the thread that called Start: %v", p.Exit())
	}
}

func lockForGood() { runtime.LockOSThread() }
