package sdk

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Runner is the least that a backend can be: it runs one command and says what came of it.
type Runner interface {
	// Run runs cmd with exactly these bytes on stdin and returns when it has ended. Only cmd's Argv, Env and InheritEnv are set.
	// The environment never goes into an argument list; other users can read those. A non-zero exit is no error.
	// When ctx ends, Run stops the command and returns ctx's cause.
	Run(ctx context.Context, cmd Command, stdin []byte) (RunResult, error)
}

// RunnerFunc is a function that is a Runner.
type RunnerFunc func(ctx context.Context, cmd Command, stdin []byte) (RunResult, error)

// Run implements Runner.
func (f RunnerFunc) Run(ctx context.Context, cmd Command, stdin []byte) (RunResult, error) {
	return f(ctx, cmd, stdin)
}

// RunResult is what came of a command.
type RunResult struct {
	Stdout []byte
	Stderr []byte
	Code   int
}

// MaxRunnerInput is how much stdin a backend made of a Runner takes for one command. It is held in memory.
const MaxRunnerInput = 64 << 20

// FromRunner makes a Backend of a Runner: Exec with stdin and output in one piece each, a working directory, and Files by means of the
// commands of a POSIX shell. Of info's capabilities CapStdin, CapPrivate, CapDetach and CapReap are kept, as only the author knows them;
// CapFiles is added, and the others cannot be had this way. All targets are the same place.
func FromRunner(info Info, r Runner) Backend {
	return OpenRunners(info, func(context.Context, OpenRequest) (Runner, error) { return r, nil })
}

// OpenRunners is FromRunner for a Runner that depends on the target: open is called once for each environment.
func OpenRunners(info Info, open func(ctx context.Context, req OpenRequest) (Runner, error)) Backend {
	info.Capabilities = runnerCapabilities(info.Capabilities)
	return &runnerBackend{info: info, open: open}
}

func runnerCapabilities(claimed []Capability) []Capability {
	var kept []Capability
	for _, c := range []Capability{CapStdin, CapPrivate, CapDetach, CapReap} {
		if slices.Contains(claimed, c) {
			kept = append(kept, c)
		}
	}
	return append(kept, CapFiles)
}

type runnerBackend struct {
	info Info
	open func(context.Context, OpenRequest) (Runner, error)
	envs Environments[*runnerEnvironment]
}

var _ Backend = (*runnerBackend)(nil)

// Info implements Backend.
func (b *runnerBackend) Info(context.Context) (Info, error) { return b.info, nil }

// Open implements Backend.
func (b *runnerBackend) Open(ctx context.Context, req OpenRequest) (Environment, error) {
	return b.envs.Open(ctx, req.ID, func(ctx context.Context) (*runnerEnvironment, error) {
		r, err := b.open(ctx, req)
		if err != nil {
			return nil, err
		}
		e := &runnerEnvironment{backend: b, id: req.ID, runner: r}
		e.ctx, e.stop = context.WithCancelCause(context.WithoutCancel(ctx))
		return e, nil
	})
}

type runnerEnvironment struct {
	UnimplementedEnvironment

	backend *runnerBackend
	id      string
	runner  Runner

	ctx  context.Context // ends at Close
	stop context.CancelCauseFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

var (
	_ Environment = (*runnerEnvironment)(nil)
	_ Files       = (*runnerEnvironment)(nil)
)

// Close implements Environment: it ends the commands that still run, and the Runner if it is an io.Closer.
func (e *runnerEnvironment) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.stop(ErrClosed)
	return e.backend.envs.Close(ctx, e.id, func(ctx context.Context, e *runnerEnvironment) error {
		ended := make(chan struct{})
		go func() { // ends with the commands
			e.running.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-ctx.Done():
			return canceled(ctx, Ran, "close: a command is still running")
		}
		if c, ok := e.runner.(io.Closer); ok {
			return c.Close()
		}
		return nil
	})
}

// run runs a command; Close ends it.
func (e *runnerEnvironment) run(ctx context.Context, cmd Command, stdin []byte) (RunResult, error) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return RunResult{}, Errorf(CodeClosed, NotStarted, "environment %s is closed", e.id)
	}
	e.running.Add(1)
	e.mu.Unlock()
	defer e.running.Done()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.ctx, func() { cancel(context.Cause(e.ctx)) })()
	return e.runner.Run(ctx, cmd, stdin)
}

// Exec implements Environment. The command has started, as far as can be told, when its result is there.
func (e *runnerEnvironment) Exec(ctx context.Context, cmd Command, stdio IO) (ExitStatus, error) {
	if cmd.TTY != nil {
		return ExitStatus{}, unsupported(CapTTY)
	}
	stdin, err := readInput(stdio.Stdin)
	if err != nil {
		return ExitStatus{}, err
	}
	plain := Command{Argv: cmd.Argv, Env: cmd.Env, InheritEnv: cmd.InheritEnv}
	var noDir string // what the far side prints when the directory is missing; random, so that no command can
	if cmd.Dir != "" {
		noDir = "hermes-no-directory-" + rand.Text() + "\n"
		plain.Argv = inDir(cmd.Dir, noDir, cmd.Argv)
	}
	res, err := e.run(ctx, plain, stdin)
	if err != nil {
		return ExitStatus{}, AsError(err, MayHaveRun)
	}
	if noDir != "" && string(res.Stderr) == noDir {
		return ExitStatus{}, Errorf(CodeInvalid, NotStarted, "working directory %s does not exist or cannot be entered", cmd.Dir)
	}
	return ExitStatus{Code: res.Code}, deliver(stdio, res)
}

// inDir wraps argv so that it runs in dir, exactly as it is.
func inDir(dir, marker string, argv []string) []string {
	const script = `cd -- "$1" 2>/dev/null || { printf %s "$2" >&2; exit 125; }; shift 2; exec "$@"`
	return append([]string{"sh", "-c", script, "sh", dirArgument(dir), marker}, argv...)
}

// dirArgument keeps cd from taking a directory called "-" for the previous one.
func dirArgument(dir string) string {
	if strings.HasPrefix(dir, "/") {
		return dir
	}
	return "./" + dir
}

func readInput(r io.Reader) ([]byte, error) {
	if r == nil {
		return nil, nil
	}
	in, err := io.ReadAll(io.LimitReader(r, MaxRunnerInput+1))
	if err != nil {
		return nil, Errorf(CodeInternal, NotStarted, "read stdin: %w", err)
	}
	if len(in) > MaxRunnerInput {
		return nil, Errorf(CodeExhausted, NotStarted, "stdin is larger than %d bytes, which this backend would have to hold in memory", MaxRunnerInput)
	}
	return in, nil
}

func deliver(stdio IO, res RunResult) error {
	if stdio.Started != nil {
		stdio.Started()
	}
	for _, out := range []struct {
		w io.Writer
		p []byte
	}{{stdio.Stdout, res.Stdout}, {stdio.Stderr, res.Stderr}} {
		if out.w == nil || len(out.p) == 0 {
			continue
		}
		if _, err := out.w.Write(out.p); err != nil {
			return Errorf(CodeInternal, Ran, "write output: %w", err)
		}
	}
	return nil
}

// The scripts of Files. Their arguments travel as arguments and are never part of the text. Statuses: 3 the path is a directory,
// 4 it is not there, 5 something failed, as stderr says.
const (
	putScript = `umask 077
[ -d "$1" ] && exit 3
d=$(dirname -- "$1") || exit 5
[ -d "$d" ] || exit 4
t=$(mktemp "$d/.hermes-put-XXXXXX") || exit 5
trap 'rm -f -- "$t"' EXIT
cat >"$t" && [ "$(wc -c <"$t")" -eq "$3" ] && chmod "$2" "$t" && mv -f -- "$t" "$1" || exit 5
trap - EXIT`
	getScript = `[ -d "$1" ] && exit 3
[ -e "$1" ] || exit 4
[ -f "$1" ] || exit 5
m=$(stat -L -c %a -- "$1" 2>/dev/null || stat -L -f %Lp -- "$1") || exit 5
echo "$m" && cat -- "$1" || exit 5`
)

// script runs one of the scripts above.
func (e *runnerEnvironment) script(ctx context.Context, what, script, path string, stdin []byte, args ...string) ([]byte, error) {
	if path == "" {
		return nil, Errorf(CodeInvalid, NotStarted, "%s: no path is given", what)
	}
	argv := append([]string{"sh", "-c", script, "sh", dirArgument(path)}, args...)
	res, err := e.run(ctx, Command{Argv: argv, InheritEnv: true}, stdin)
	if err != nil {
		return nil, AsError(fmt.Errorf("%s %s: %w", what, path, err), MayHaveRun)
	}
	switch res.Code {
	case 0:
		return res.Stdout, nil
	case 3:
		return nil, Errorf(CodeConflict, NotStarted, "%s %s: a directory is there", what, path)
	case 4:
		return nil, Errorf(CodeNotFound, NotStarted, "%s %s: no such file or directory", what, path)
	default:
		return nil, Errorf(CodeInternal, NotStarted, "%s %s: status %d: %s", what, path, res.Code, clip(string(bytes.TrimSpace(res.Stderr)), 1000))
	}
}

// Put implements Files.
func (e *runnerEnvironment) Put(ctx context.Context, req PutRequest) error {
	content, err := putContent(req)
	if err != nil {
		return err
	}
	mode := req.Mode & 0o777
	if mode == 0 {
		mode = 0o600
	}
	_, err = e.script(ctx, "put", putScript, req.Path, content, strconv.FormatUint(uint64(mode), 8), strconv.Itoa(len(content)))
	return err
}

// Get implements Files.
func (e *runnerEnvironment) Get(ctx context.Context, path string, w io.Writer) (FileInfo, error) {
	out, err := e.script(ctx, "get", getScript, path, nil)
	if err != nil {
		return FileInfo{}, err
	}
	line, content, ok := bytes.Cut(out, []byte("\n"))
	mode, err := strconv.ParseUint(string(line), 8, 32)
	if !ok || err != nil {
		return FileInfo{}, Errorf(CodeInternal, Ran, "get %s: the mode %q is not a number", path, clip(string(line), 100))
	}
	if _, err := w.Write(content); err != nil {
		return FileInfo{}, Errorf(CodeInternal, Ran, "get %s: write the content: %w", path, err)
	}
	return FileInfo{Size: int64(len(content)), Mode: uint32(mode) & 0o777}, nil
}

// putContent reads all of what a Put is to write.
func putContent(req PutRequest) ([]byte, error) {
	if err := checkContent(req); err != nil {
		return nil, err
	}
	if req.Content != nil {
		return readInput(req.Content)
	}
	f, err := os.Open(req.Source)
	if err != nil {
		return nil, Errorf(AsError(err, NotStarted).Code, NotStarted, "put %s: %w", req.Path, err)
	}
	defer func() { _ = f.Close() }()
	return readInput(f)
}

// checkContent reports whether a Put says in one way what is to be written.
func checkContent(req PutRequest) error {
	if (req.Source == "") == (req.Content == nil) {
		return Errorf(CodeInvalid, NotStarted, "put %s: exactly one of Source and Content must be set", req.Path)
	}
	return nil
}
