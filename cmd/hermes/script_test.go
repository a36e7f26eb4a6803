package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// testRoot holds everything the scripts make. Its path is short, because sockets lie below it, and it is in the environment of
// every process that a script starts: that is how the ledger finds them.
var testRoot string

func TestMain(m *testing.M) {
	sdk.ServeBuiltin(builtin()) // the engine of a script re-executes this program
	testscript.Main(ledger{m}, map[string]func(){"hermes": func() { os.Exit(Main()) }})
}

// ledger runs the tests and then fails if a process, a socket or a directory of theirs is left.
type ledger struct{ m *testing.M }

func (l ledger) Run() int {
	root, err := os.MkdirTemp("/tmp", "hc")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	testRoot = root
	defer os.RemoveAll(root) //nolint:errcheck // what is left is told below

	code := l.m.Run()
	if left := leftovers(root); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "left over after the tests:\n%s\n", strings.Join(left, "\n"))
		code = max(code, 1)
	}

	return code
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		WorkdirRoot:         testRoot,
		Setup:               setup,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Condition:           condition,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": cmdStatus, "signal": cmdSignal, "json": cmdJSON, "events": cmdEvents, "field": cmdField,
			"waitfile": cmdWaitFile, "gone": cmdGone, "within": cmdWithin, "pty": cmdPty, "same": cmdSame,
			"buildbackend": cmdBuildBackend,
		},
	})
}

// setup gives each script a home, and a runtime directory outside of its work directory, which the ledger looks into.
func setup(env *testscript.Env) error {
	runtime, err := os.MkdirTemp(testRoot, "r")
	if err != nil {
		return err
	}
	home := filepath.Join(env.WorkDir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return err
	}
	env.Vars = append(env.Vars, "HOME="+home, "XDG_RUNTIME_DIR="+runtime, "TERM=xterm", "LANG=C.UTF-8",
		"PATH="+pythonDir()+":"+env.Getenv("PATH"),
		"GORACE=atexit_sleep_ms=0") // a program built with -race sleeps for a second before it exits
	env.Values["vars"] = env

	return nil
}

// pythonDir is the directory of the Python that python3 stands for: where that is a version manager's shim, it costs more than
// everything else that a script does.
var pythonDir = sync.OnceValue(func() string {
	out, err := exec.Command("python3", "-c", "import os, sys; print(os.path.dirname(os.path.realpath(sys.executable)))").Output()
	if err != nil {
		return "/usr/bin" // the scripts say what is missing
	}
	return strings.TrimSpace(string(out))
})

func condition(cond string) (bool, error) {
	if cond == "root" {
		if os.Getuid() != 0 && slices.Contains(strings.Split(os.Getenv("HERMES_TEST_MUST_RUN"), ","), cond) {
			return false, errors.New("not root, and HERMES_TEST_MUST_RUN allows no skip")
		}
		return os.Getuid() == 0, nil
	}

	return false, fmt.Errorf("unknown condition %q", cond)
}

// environ is the environment of a script's commands.
func environ(ts *testscript.TestScript) []string {
	var vars []string
	seen := map[string]bool{}
	for _, v := range append(ts.Value("vars").(*testscript.Env).Vars, "HERMES_ENVIRONMENT=", "HERMES_THROUGH_PLUGIN=", "HERMES_INTERPRETER=") {
		name, _, _ := strings.Cut(v, "=")
		if value := ts.Getenv(name); value != "" && !seen[name] {
			seen[name] = true
			vars = append(vars, name+"="+value)
		}
	}

	return vars
}

// cmdStatus runs a command that must exit with exactly the given status: status 2 hermes run --foo.
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N CMD [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := exitStatus(ts.Exec(args[1], args[2:]...)); got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

func exitStatus(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode()
	case errors.As(err, &exit):
		return 128 + int(exit.Sys().(syscall.WaitStatus).Signal())
	}

	return -1
}

// cmdSignal runs a command, sends it signals once a file is there, and wants it to exit with a status, in that many seconds:
// signal INT,INT FILE STATUS SECONDS CMD [ARG...]. Its output is left in the files out and err.
func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 5 {
		ts.Fatalf("usage: signal SIG[,SIG...] FILE STATUS SECONDS CMD [ARG...]")
	}
	want, err := strconv.Atoi(args[2])
	ts.Check(err)
	seconds, err := strconv.ParseFloat(args[3], 64)
	ts.Check(err)

	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	path := args[4]
	if !strings.Contains(path, "/") {
		path, err = lookPath(ts, path)
		ts.Check(err)
	}
	cmd := exec.CommandContext(ctx, path, args[5:]...)
	cmd.Args[0] = args[4]
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = environ(ts)
	out, err := os.Create(ts.MkAbs("out"))
	ts.Check(err)
	defer out.Close() //nolint:errcheck // the other process writes it
	diag, err := os.Create(ts.MkAbs("err"))
	ts.Check(err)
	defer diag.Close() //nolint:errcheck // the other process writes it
	cmd.Stdout, cmd.Stderr = out, diag
	ts.Check(cmd.Start())

	if err := awaitFile(ts.MkAbs(args[1])); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		ts.Fatalf("%v\nstdout: %s\nstderr: %s", err, ts.ReadFile("out"), ts.ReadFile("err"))
	}
	began := time.Now()
	for i, name := range strings.Split(args[0], ",") {
		if i > 0 {
			time.Sleep(200 * time.Millisecond) // two signals of a kind that come at once are one
		}
		ts.Check(cmd.Process.Signal(signals[name]))
	}
	got := exitStatus(cmd.Wait())
	ts.Logf("[stdout]\n%s[stderr]\n%s", ts.ReadFile("out"), ts.ReadFile("err"))
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
	if took := time.Since(began); took.Seconds() > seconds {
		ts.Fatalf("took %v after the signal, want %vs at most", took, seconds)
	}
}

var signals = map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL}

func lookPath(ts *testscript.TestScript, name string) (string, error) {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if path := filepath.Join(dir, name); isExecutable(path) {
			return path, nil
		}
	}

	return "", fmt.Errorf("%s is not in PATH", name)
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)

	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// cmdWithin is cmdStatus with a time limit: within SECONDS STATUS CMD [ARG...].
func cmdWithin(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: within SECONDS STATUS CMD [ARG...]")
	}
	seconds, err := strconv.ParseFloat(args[0], 64)
	ts.Check(err)
	began := time.Now()
	cmdStatus(ts, false, args[1:])
	if took := time.Since(began); took.Seconds() > seconds {
		ts.Fatalf("took %v, want %vs at most", took, seconds)
	}
}

// cmdJSON wants the last stdout to be one line of JSON that fits a definition of docs/cli.schema.json: json result.
func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: json DEFINITION")
	}
	ts.Check(checkJSON(args[0], ts.ReadFile("stdout")))
}

// cmdEvents wants each line of the last stdout to be an event, and their kinds, repeats left out, to be those named.
func cmdEvents(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: events KIND...")
	}
	var kinds []string
	for lines := bufio.NewScanner(strings.NewReader(ts.ReadFile("stdout"))); lines.Scan(); {
		ts.Check(checkLine("event", lines.Text()))
		kind, err := field(lines.Text(), "event")
		ts.Check(err)
		if kind = strings.Trim(kind, `"`); len(kinds) == 0 || kinds[len(kinds)-1] != kind {
			kinds = append(kinds, kind)
		}
	}
	if got, want := strings.Join(kinds, " "), strings.Join(args, " "); got != want {
		ts.Fatalf("events %s, want %s", got, want)
	}
}

// cmdField wants the JSON at a dotted path of the last stdout to match a pattern: field cell.exit_code 3. "len" is a list's length.
func cmdField(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: field PATH PATTERN")
	}
	ts.Check(matchField(ts.ReadFile("stdout"), args[0], args[1]))
}

// cmdSame wants two files, or the last stdout, to hold the same bytes.
func cmdSame(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: same FILE FILE")
	}
	if a, b := ts.ReadFile(args[0]), ts.ReadFile(args[1]); a != b {
		ts.Fatalf("%s (%d bytes) and %s (%d bytes) differ", args[0], len(a), args[1], len(b))
	}
}

// cmdWaitFile waits until a file is there.
func cmdWaitFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfile FILE")
	}
	ts.Check(awaitFile(ts.MkAbs(args[0])))
}

func awaitFile(path string) error {
	return await(20*time.Second, func() error {
		info, err := os.Stat(path)
		if err == nil && info.Size() == 0 {
			return fmt.Errorf("%s is empty", path)
		}
		return err
	})
}

// cmdGone wants the process whose id a file holds to end within so many seconds: gone FILE SECONDS.
func cmdGone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: gone FILE SECONDS")
	}
	seconds, err := strconv.ParseFloat(args[1], 64)
	ts.Check(err)
	for text := range strings.FieldsSeq(ts.ReadFile(args[0])) {
		pid, err := strconv.Atoi(text)
		ts.Check(err)
		ts.Check(await(time.Duration(seconds*float64(time.Second)), func() error {
			if state := processState(pid); state != "" && state != "Z" {
				return fmt.Errorf("process %d is there (%s): %s", pid, state, procFile(pid, "cmdline"))
			}
			return nil
		}))
	}
}

// processState is the letter that the kernel has for a process, or nothing when there is none.
func processState(pid int) string {
	_, rest, found := strings.Cut(procFile(pid, "stat"), ") ")
	if !found {
		return ""
	}

	return rest[:1]
}

func procFile(pid int, name string) string {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name))
	if err != nil {
		return ""
	}

	return string(bytes.ReplaceAll(data, []byte{0}, []byte{' '}))
}

// await asks until there is no error any more, or the time is over.
func await(limit time.Duration, ask func() error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); ; <-tick.C {
		err := ask()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("after %v: %w", limit, err)
		}
	}
}

// leftovers lists what still refers to root: processes by their environment, arguments or directory, sockets by their path, and
// directories of kernel hosts and plugins. It gives what is on its way out the time that an orphaned kernel host lingers.
func leftovers(root string) []string {
	var left []string
	_ = await(15*time.Second, func() error {
		left = append(append(processesOf(root), socketsOf(root)...), directoriesOf(root)...)
		if len(left) > 0 {
			return errors.New("something is left")
		}
		return nil
	})

	return left
}

func processesOf(root string) []string {
	var left []string
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || processState(pid) == "Z" {
			continue
		}
		dir, _ := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
		if args := procFile(pid, "cmdline"); strings.Contains(procFile(pid, "environ")+args+dir, root) {
			left = append(left, fmt.Sprintf("process %d: %.200s", pid, args))
		}
	}

	return left
}

func socketsOf(root string) []string {
	var left []string
	data, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.SplitSeq(string(data), "\n") {
		if i := strings.Index(line, root); i >= 0 {
			left = append(left, "socket "+line[i:])
		}
	}

	return left
}

// ownDirectory matches the directories that one kernel host or one launched plugin has to itself; "plugins" is where backends are installed.
var ownDirectory = regexp.MustCompile(`^(k-|named-|run-|plugin-)`)

func directoriesOf(root string) []string {
	var left []string
	_ = filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err == nil && (e.Type()&os.ModeSocket != 0 || e.IsDir() && strings.Contains(path, "/hermes/") && ownDirectory.MatchString(e.Name())) {
			left = append(left, "directory or socket "+path)
		}
		return nil
	})

	return left
}
