// Package sdktest checks that a backend keeps the promises of package sdk.
package sdktest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// CheckBackend runs b, over the wire as a host would, through what every backend must do and what b's capabilities promise, with the
// environment that target names. It returns one error for each promise that is not kept. It needs sh, cat, env, grep, head, rm and sleep there,
// and writes to /tmp there if b can put files. Several may run at once, each with a backend of its own.
func CheckBackend(ctx context.Context, b sdk.Backend, target string) []error {
	c, err := start(ctx, b, target)
	if err != nil {
		return []error{err}
	}
	var errs []error
	for _, p := range promises {
		if !c.applies(p) {
			continue
		}
		if err := c.keeps(ctx, p); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
			if p.first {
				break
			}
		}
	}
	if err := c.stop(); err != nil {
		errs = append(errs, fmt.Errorf("stop: %w", err))
	}
	return errs
}

// Run is CheckBackend as subtests of t, one for each promise but that to describe itself and that to open an environment: without those t fails at once.
func Run(t *testing.T, b sdk.Backend, target string) {
	c, err := start(t.Context(), b, target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	for _, p := range promises {
		if p.first { // whatever subtests are asked for
			if err := c.keeps(t.Context(), p); err != nil {
				t.Fatalf("%s: %v", p.name, err)
			}
			continue
		}
		if !c.applies(p) {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			if err := c.keeps(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
	}
}

// promise is something that every backend must keep, or every backend with a capability.
type promise struct {
	name  string
	needs sdk.Capability // empty: nothing
	first bool           // what follows cannot be checked without it
	check func(*checker, context.Context) error
}

var promises = []promise{
	{name: "info", first: true, check: (*checker).checkInfo},
	{name: "open", first: true, check: (*checker).checkOpen},
	{name: "exit status", check: (*checker).checkStatus},
	{name: "exact arguments", check: (*checker).checkArguments},
	{name: "exact environment", check: (*checker).checkEnvironment},
	{name: "no stdin", check: (*checker).checkNoStdin},
	{name: "working directory", check: (*checker).checkDirectory},
	{name: "missing program", check: (*checker).checkMissing},
	{name: "cancel", check: (*checker).checkCancel},
	{name: "capability stdin", needs: sdk.CapStdin, check: (*checker).checkStdin},
	{name: "capability stream", needs: sdk.CapStream, check: (*checker).checkStream},
	{name: "capability signal", needs: sdk.CapSignal, check: (*checker).checkSignal},
	{name: "capability files", needs: sdk.CapFiles, check: (*checker).checkFiles},
	{name: "close", check: (*checker).checkClose},
}

// What the wire allows: see docs/protocol.md, section 3.3.
const (
	firstCredit  = 64 << 10  // bytes of stdin that may be sent unasked
	creditWindow = 256 << 10 // bytes of output that are asked for at a time
)

// stopLimit is how long a process may take to stop: TERM, Grace, KILL, and the way there and back.
func stopLimit() time.Duration { return 2*sdk.Grace + 3*time.Second }

// checkLimit bounds each check.
const checkLimit = 30 * time.Second

// checker is one run through the promises.
type checker struct {
	client *sdk.Client
	stop   func() error
	target string
	info   sdk.Info
	env    sdk.Environment
}

func start(ctx context.Context, b sdk.Backend, target string) (*checker, error) {
	client, stop, err := sdk.Pipe(ctx, b)
	if err != nil {
		return nil, err
	}
	return &checker{client: client, stop: stop, target: target}, nil
}

func (c *checker) applies(p promise) bool {
	return p.needs == "" || slices.Contains(c.info.Capabilities, p.needs)
}

func (c *checker) keeps(ctx context.Context, p promise) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	return p.check(c, ctx)
}

// output runs a command that must exit with 0.
func (c *checker) output(ctx context.Context, cmd sdk.Command, stdin io.Reader) (string, error) {
	var out, stderr bytes.Buffer
	status, err := c.env.Exec(ctx, cmd, sdk.IO{Stdin: stdin, Stdout: &out, Stderr: &stderr})
	if err != nil {
		return "", err
	}
	if status != (sdk.ExitStatus{}) {
		return "", fmt.Errorf("%q ended with %+v and printed %q", cmd.Argv, status, stderr.String())
	}
	return out.String(), nil
}

func differ(what, got, want string) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("%s: got %.500q, want %.500q", what, got, want)
}

var backendName = regexp.MustCompile(`^[a-z0-9][a-z0-9+-]{0,62}$`)

func (c *checker) checkInfo(ctx context.Context) error {
	info, err := c.client.Info(ctx)
	if err != nil {
		return err
	}
	c.info = info
	if !backendName.MatchString(info.Name) {
		return fmt.Errorf("name %q is not of up to 63 lower-case letters, digits, - and +", info.Name)
	}
	if info.Version == "" {
		return errors.New("version is empty")
	}
	return nil
}

func (c *checker) checkOpen(ctx context.Context) error {
	req := sdk.OpenRequest{ID: "check", Target: c.target}
	env, err := c.client.Open(ctx, req)
	if err != nil {
		return err
	}
	c.env = env
	if _, err := c.client.Open(ctx, req); err != nil {
		return fmt.Errorf("the same ID again: %w", err)
	}
	return nil
}

func (c *checker) checkStatus(ctx context.Context) error {
	var out, stderr bytes.Buffer
	cmd := sdk.Command{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 43"}, InheritEnv: true}
	status, err := c.env.Exec(ctx, cmd, sdk.IO{Stdout: &out, Stderr: &stderr})
	if err != nil {
		return fmt.Errorf("a non-zero exit must not be an error: %w", err)
	}
	return errors.Join(
		differ("status", fmt.Sprint(status), fmt.Sprint(sdk.ExitStatus{Code: 43})),
		differ("stdout", out.String(), "out\n"),
		differ("stderr", stderr.String(), "err\n"),
	)
}

func (c *checker) checkArguments(ctx context.Context) error {
	words := []string{"", "a b", "it's", `"`, `\`, "$HOME", "`x`", "a\nb", "*", "-n", "é", ";"}
	argv := append([]string{"sh", "-c", `for a; do printf '%s|' "$a"; done`, "sh"}, words...)
	got, err := c.output(ctx, sdk.Command{Argv: argv, InheritEnv: true}, nil)
	if err != nil {
		return err
	}
	return differ("arguments", got, strings.Join(words, "|")+"|")
}

func (c *checker) checkEnvironment(ctx context.Context) error {
	got, err := c.output(ctx, sdk.Command{Argv: []string{"/usr/bin/env"}, Env: []string{"A=1 2", "B='"}}, nil)
	if err != nil {
		return err
	}
	lines := slices.Sorted(strings.SplitSeq(strings.TrimSuffix(got, "\n"), "\n"))
	if err := differ("without InheritEnv", strings.Join(lines, "\n"), "A=1 2\nB='"); err != nil {
		return err
	}
	got, err = c.output(ctx, sdk.Command{Argv: []string{"sh", "-c", `echo "$A/${PATH:+path}/$` + sdk.CookieKey + `"; env | grep ^PLUGIN_ || :`}, Env: []string{"A=x"}, InheritEnv: true}, nil)
	if err != nil {
		return err
	}
	return differ("with InheritEnv", got, "x/path/\n")
}

func (c *checker) checkNoStdin(ctx context.Context) error {
	got, err := c.output(ctx, sdk.Command{Argv: []string{"cat"}, InheritEnv: true}, nil)
	return errors.Join(err, differ("cat of nothing", got, ""))
}

func (c *checker) checkDirectory(ctx context.Context) error {
	got, err := c.output(ctx, sdk.Command{Argv: []string{"sh", "-c", "pwd"}, InheritEnv: true, Dir: "/"}, nil)
	if err != nil {
		return err
	}
	if err := differ("pwd", got, "/\n"); err != nil {
		return err
	}
	_, err = c.output(ctx, sdk.Command{Argv: []string{"true"}, InheritEnv: true, Dir: "/no such directory"}, nil)
	return expectNotStarted("a directory that does not exist", err)
}

// expectNotStarted checks the error of something that cannot have run.
func expectNotStarted(what string, err error) error {
	if err == nil {
		return fmt.Errorf("%s: no error", what)
	}
	if e := sdk.AsError(err, sdk.MayHaveRun); e.Delivery != sdk.NotStarted {
		return fmt.Errorf("%s: the error's delivery is %s, want %s (%w)", what, e.Delivery, sdk.NotStarted, err)
	}
	return nil
}

// checkMissing accepts both answers that there are: the backend's own, and a shell's on the way.
func (c *checker) checkMissing(ctx context.Context) error {
	status, err := c.env.Exec(ctx, sdk.Command{Argv: []string{"hermes-no-such-program"}, InheritEnv: true}, sdk.IO{})
	if err == nil && status.Code == 127 {
		return nil
	}
	if err != nil && !errors.Is(err, sdk.ErrNotFound) {
		return fmt.Errorf("want ErrNotFound: %w", err)
	}
	return expectNotStarted("a program that does not exist", err)
}

func (c *checker) checkCancel(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := c.env.Exec(ctx, sdk.Command{Argv: []string{"sh", "-c", "sleep 60; :"}, InheritEnv: true}, sdk.IO{})
	if took := time.Since(start); took > stopLimit() {
		return fmt.Errorf("took %v to stop", took)
	}
	if !errors.Is(err, sdk.ErrTimeout) && !errors.Is(err, sdk.ErrCanceled) {
		return fmt.Errorf("want ErrTimeout or ErrCanceled, got: %w", orNone(err))
	}
	return nil
}

func orNone(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

// around are sizes near those at which something changes.
var around = []int{0, 1, sdk.MaxChunk - 1, sdk.MaxChunk, sdk.MaxChunk + 1, firstCredit, firstCredit + 1, 3*creditWindow + 7}

// bytesOf returns n bytes without a period near a chunk's size.
func bytesOf(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*i>>7 ^ i)
	}
	return p
}

func (c *checker) checkStdin(ctx context.Context) error {
	for _, n := range around {
		in := string(bytesOf(n))
		got, err := c.output(ctx, sdk.Command{Argv: []string{"cat"}, InheritEnv: true}, strings.NewReader(in))
		if err != nil || got != in {
			return fmt.Errorf("%d bytes through cat came back as %d other ones (%w)", n, len(got), orNone(err))
		}
	}
	got, err := c.output(ctx, sdk.Command{Argv: []string{"sh", "-c", "head -c1 >/dev/null; echo left"}, InheritEnv: true}, bytes.NewReader(bytesOf(1<<20)))
	return errors.Join(err, differ("a command that leaves its stdin early", got, "left\n"))
}

// checkStream waits for the first line while the command still runs: it only goes on when it is told.
func (c *checker) checkStream(ctx context.Context) error {
	lines := make(chan string, 16)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { // ends with ctx; waited for below
		_, err := c.env.Exec(ctx, sdk.Command{Argv: []string{"sh", "-c", "echo first; sleep 60; :"}, InheritEnv: true}, sdk.IO{Stdout: lineWriter(lines)})
		done <- err
	}()
	select {
	case <-lines:
		cancel()
		if err := <-done; err == nil {
			return errors.New("a cancelled command ended without an error")
		}
		return nil
	case err := <-done:
		return fmt.Errorf("no output came while the command ran (%w)", orNone(err))
	}
}

// lineWriter passes on what is written as long as there is room for it.
type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) {
	select {
	case w <- string(p):
	default:
	}
	return len(p), nil
}

func (c *checker) checkSignal(ctx context.Context) error {
	control := make(chan sdk.Control, 1)
	lines := make(chan string, 16)
	type end struct {
		status sdk.ExitStatus
		err    error
	}
	done := make(chan end, 1)
	go func() { // ends with ctx; waited for below
		cmd := sdk.Command{Argv: []string{"sh", "-c", `trap 'exit 7' USR1; echo ready; while :; do sleep 0.05; done`}, InheritEnv: true}
		status, err := c.env.Exec(ctx, cmd, sdk.IO{Stdout: lineWriter(lines), Control: control})
		done <- end{status, err}
	}()
	var e end
	select {
	case <-lines:
		control <- sdk.Control{Signal: "USR1"}
		e = <-done
	case e = <-done:
	}
	if e.err != nil {
		return e.err
	}
	return differ("status of a command that exits with 7 on USR1", fmt.Sprint(e.status), fmt.Sprint(sdk.ExitStatus{Code: 7}))
}

func (c *checker) checkFiles(ctx context.Context) error {
	files, ok := c.env.(sdk.Files)
	if !ok {
		return errors.New("the environment does not implement Files")
	}
	path := "/tmp/hermes-check-" + strings.ToLower(rand.Text())
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkLimit)
		defer cancel()
		_, _ = c.env.Exec(ctx, sdk.Command{Argv: []string{"rm", "-f", "--", path}, InheritEnv: true}, sdk.IO{})
	}()
	for i, n := range around {
		mode := []uint32{0o600, 0o755, 0o640}[i%3]
		in := bytesOf(n)
		if err := files.Put(ctx, sdk.PutRequest{Path: path, Mode: mode, Content: bytes.NewReader(in)}); err != nil {
			return fmt.Errorf("put %d bytes: %w", n, err)
		}
		var out bytes.Buffer
		info, err := files.Get(ctx, path, &out)
		if err != nil {
			return fmt.Errorf("get %d bytes: %w", n, err)
		}
		if want := (sdk.FileInfo{Size: int64(n), Mode: mode}); info != want || !bytes.Equal(out.Bytes(), in) {
			return fmt.Errorf("got %+v and %d bytes, want %+v and the same content", info, out.Len(), want)
		}
	}
	if _, err := files.Get(ctx, path+"-missing", io.Discard); !errors.Is(err, sdk.ErrNotFound) {
		return fmt.Errorf("get of a file that is not there: want ErrNotFound, got: %w", orNone(err))
	}
	return nil
}

func (c *checker) checkClose(ctx context.Context) error {
	if err := c.env.Close(ctx); err != nil {
		return err
	}
	if err := c.env.Close(ctx); err != nil {
		return fmt.Errorf("a second time: %w", err)
	}
	_, err := c.env.Exec(ctx, sdk.Command{Argv: []string{"true"}, InheritEnv: true}, sdk.IO{})
	return expectNotStarted("a command after Close", err)
}
