package core

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed" // the kernel host is shipped inside the engine
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hermes-framework/hermes/plugin"
)

//go:embed host.py
var hostSource []byte

//go:embed loader.py
var hostLoader string

var hostSum = func() string {
	sum := sha256.Sum256(hostSource)
	return hex.EncodeToString(sum[:])
}()

// How long each step of bringing a kernel host up may take.
const (
	startTimeout  = 60 * time.Second
	attachTimeout = 20 * time.Second
	pollTimeout   = 20 * time.Second
	lingerLocal   = 10 * time.Second
	lingerRemote  = 5 * time.Minute
	idleDetached  = 30 * time.Minute
)

// place is what the kernel host needs of an environment.
type place struct {
	name          string // for messages
	env           plugin.Environment
	caps          []plugin.Capability
	remote        bool
	throughPlugin bool
	interpreter   string
	clientID      string
	idle          time.Duration // after which a named host ends a kernel that ran nothing
	runtime       string        // the engine's directory, if it is on the same machine: the host removes it should the engine have died
}

// label is the environment's name as messages have it before a colon.
func (p *place) label() string { return label(p.name) }

// label makes "local: …" of the target "local:".
func label(environment string) string { return strings.TrimSuffix(environment, ":") }

func (p *place) can(c plugin.Capability) bool { return slices.Contains(p.caps, c) }

// hostInfo is what a kernel host says of itself when it is ready; a named host's is kept in its record.
type hostInfo struct {
	Incarnation string   `json:"incarnation"`
	Boot        string   `json:"boot"`
	PID         int      `json:"pid"`
	Dir         string   `json:"dir"`
	Socket      string   `json:"socket"`
	Executable  string   `json:"executable"`
	Python      string   `json:"python"`
	Hostname    string   `json:"hostname"`
	Existing    bool     `json:"-"`
	Warnings    []string `json:"-"`
}

func newToken() []byte {
	token := make([]byte, tokenSize)
	_, _ = rand.Read(token) // never fails
	return token
}

// startHost brings a kernel host up in p and returns what it says of itself. A named host that is there already is returned as it is.
func startHost(ctx context.Context, p *place, token []byte, named bool) (hostInfo, error) {
	if !p.can(plugin.CapStdin) && !p.can(plugin.CapPrivate) {
		return hostInfo{}, &plugin.Error{
			Code: plugin.CodeUnsupported, Delivery: plugin.NotStarted,
			Message: fmt.Sprintf("%s: its backend has no private way to pass a secret (capability stdin or private), so it can run commands but no kernels", p.label()),
		}
	}
	linger := lingerLocal
	if p.remote {
		linger = lingerRemote
	}
	config := fields{"token": token, "named": named, "linger": linger.Seconds(), "idle": p.idle.Seconds(), "engine": p.runtime, "remote": p.remote, "fresh": !named}

	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	out, err := p.launch(ctx, "start", config, nil)
	if err == nil && out.needSource {
		out, err = p.launch(ctx, "start", config, hostSource)
	}
	if err != nil && ctx.Err() != nil && outer.Err() == nil {
		return hostInfo{}, &plugin.Error{
			Code: plugin.CodeUnavailable, Delivery: plugin.NotStarted, Cause: err,
			Message: fmt.Sprintf("%s: start the kernel host: %s did not get it up within %s", p.label(), p.interpreter, startTimeout),
			Hint:    "is that a Python 3.8 or later, and does it start? `hermes env check` shows what works there",
		}
	}
	if err != nil {
		return hostInfo{}, err
	}
	return hostInfo{
		Incarnation: out.ready.str("inc"), Boot: out.ready.str("boot"), PID: int(out.ready.int("pid")),
		Dir: out.ready.str("dir"), Socket: out.ready.str("sock"), Executable: out.ready.str("exe"),
		Python: out.ready.str("python"), Hostname: out.ready.str("hostname"),
		Existing: out.ready.flag("existing"), Warnings: texts(out.ready.list("warnings")),
	}, nil
}

func texts(list []any) []string {
	var out []string
	for _, v := range list {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// launched is the answer of one launch.
type launched struct {
	ready      fields
	needSource bool
}

// launch runs the loader once and reads its answer.
func (p *place) launch(ctx context.Context, mode string, config fields, source []byte) (launched, error) {
	var stdout, stderr tailBuffer
	status, err := p.env.Exec(ctx, command(p.interpreter, mode), plugin.IO{Stdin: bytes.NewReader(payload(config, source)), Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		return launched{}, p.explainExec(err)
	}
	for line := range strings.Lines(stdout.String()) {
		line = strings.TrimSpace(line)
		if line == "hermes-need-source" {
			return launched{needSource: true}, nil
		}
		if hexed, ok := strings.CutPrefix(line, "hermes-ready "); ok {
			ready, err := decodeHex(hexed)
			return launched{ready: ready}, err
		}
		if hexed, ok := strings.CutPrefix(line, "hermes-error "); ok {
			return launched{}, p.explainError("start the kernel host", hexed)
		}
	}
	return launched{}, &plugin.Error{
		Code: plugin.CodeInternal, Delivery: plugin.NotStarted,
		Message: fmt.Sprintf("%s: start the kernel host: %s ended (%s) without an answer%s", p.label(), p.interpreter, describeStatus(status), quoteOutput(stdout.String()+stderr.String())),
		Hint:    "is that a Python 3.8 or later? `hermes env check` shows what works there",
	}
}

func command(interpreter, mode string) plugin.Command {
	return plugin.Command{
		Argv:       []string{interpreter, "-c", hostLoader, "hermes-kernel-host", mode},
		Env:        []string{"PYTHONDONTWRITEBYTECODE=1"},
		InheritEnv: true,
	}
}

// payload is the loader's stdin: the secret travels here and nowhere else.
func payload(config fields, source []byte) []byte {
	c := appendValue(nil, config)
	head := fmt.Sprintf("hermes1 %s %d %d\n", hostSum, len(source), len(c))
	return slices.Concat([]byte(head), source, c)
}

func decodeHex(s string) (fields, error) {
	raw, err := hex.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return decodeFields(raw)
}

// explainError is what the far side said in an error line.
func (p *place) explainError(step, hexed string) error {
	msg, err := decodeHex(hexed)
	if err != nil {
		return err
	}
	return &plugin.Error{
		Code: plugin.Code(msg.str("code")), Delivery: plugin.NotStarted,
		Message: fmt.Sprintf("%s: %s: %s", p.label(), step, msg.str("msg")), Hint: msg.str("hint"),
	}
}

func (p *place) explainExec(err error) error {
	var pe *plugin.Error
	if errors.As(err, &pe) && pe.Code == plugin.CodeNotFound {
		return &plugin.Error{
			Code: plugin.CodeNotFound, Delivery: plugin.NotStarted, Cause: err,
			Message: fmt.Sprintf("%s: start the kernel host: there is no %s", p.label(), p.interpreter),
			Hint:    "install Python 3.8 or later there (Debian: apt-get install python3), or name one with `interpreter` in the configuration; `hermes exec` works without",
		}
	}
	why := plugin.AsError(err, plugin.NotStarted)
	return &plugin.Error{ // whatever became of the launcher, no cell was started
		Code: why.Code, Delivery: plugin.NotStarted, Cause: err,
		Message: fmt.Sprintf("%s: start the kernel host: %s", p.label(), why.Message), Hint: why.Hint,
	}
}

func describeStatus(s plugin.ExitStatus) string {
	if s.Signal != "" {
		return "signal " + s.Signal
	}
	return fmt.Sprintf("status %d", s.Code)
}

// quoteOutput renders what the far side printed for an error message.
func quoteOutput(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return ""
	}
	const most = 1000
	if len(s) > most {
		s = "… " + strings.ToValidUTF8(s[len(s)-most:], "")
	}
	return "; it printed: " + s
}

// attachHost connects to the kernel host that info describes, by the best way the backend has.
func attachHost(ctx context.Context, p *place, info hostInfo, token []byte) (*link, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attachTimeout, fmt.Errorf("no connection to the kernel host after %s", attachTimeout))
	defer cancel()
	var errs []error
	for _, way := range p.ways() {
		l, err := way(ctx, p, info, token)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil || errors.Is(err, errWrongToken) {
			break
		}
	}
	return nil, fmt.Errorf("%s: attach to the kernel host at %s: %w", p.label(), info.Socket, joined(errs))
}

// joined is errors.Join on one line.
func joined(errs []error) error {
	err := errs[0]
	for _, more := range errs[1:] {
		err = fmt.Errorf("%w; %w", err, more)
	}
	return err
}

type attachFunc func(context.Context, *place, hostInfo, []byte) (*link, error)

func (p *place) ways() []attachFunc {
	var ways []attachFunc
	if p.can(plugin.CapSocket) {
		ways = append(ways, attachSocket)
	}
	if p.can(plugin.CapStdin) && p.can(plugin.CapStream) {
		return append(ways, attachRelay)
	}
	return append(ways, attachCalls)
}

func attachSocket(ctx context.Context, p *place, info hostInfo, token []byte) (*link, error) {
	dialer, ok := p.env.(plugin.Dialer)
	if !ok {
		return nil, &plugin.Error{Code: plugin.CodeUnsupported, Message: "the backend announces socket and cannot dial"}
	}
	end, err := dialer.Dial(ctx, plugin.DialRequest{Path: info.Socket, Stream: p.throughPlugin})
	if err != nil {
		return nil, err
	}
	conn := end.Conn
	if conn == nil {
		var d net.Dialer
		if conn, err = d.DialContext(ctx, "unix", end.Addr); err != nil {
			return nil, err
		}
	}
	return newLink(ctx, conn, token, p.clientID, p.remote)
}

// attachRelay carries the connection over the stdin and stdout of a command in the environment.
func attachRelay(ctx context.Context, p *place, info hostInfo, token []byte) (*link, error) {
	conn := startRelay(ctx, p, info)
	if err := conn.skipTo(ctx, "hermes-relay"); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return newLink(ctx, conn, token, p.clientID, p.remote)
}

// relayConn is a connection over a command. Close ends the command and waits for it.
type relayConn struct {
	io.Reader
	io.Writer
	place  *place
	cancel context.CancelFunc
	pipes  []io.Closer
	wg     sync.WaitGroup
	stderr tailBuffer
}

func startRelay(ctx context.Context, p *place, info hostInfo) *relayConn {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the relay outlives the attaching; Close ends it
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	c := &relayConn{Reader: outR, Writer: inW, place: p, cancel: cancel, pipes: []io.Closer{inW, outR}}
	stdin := io.MultiReader(bytes.NewReader(payload(fields{"sock": info.Socket}, hostSource)), inR)
	c.wg.Go(func() {
		status, err := p.env.Exec(ctx, command(info.Executable, "relay"), plugin.IO{Stdin: stdin, Stdout: outW, Stderr: &c.stderr})
		if err == nil {
			err = fmt.Errorf("the relay ended (%s)%s", describeStatus(status), quoteOutput(c.stderr.String()))
		}
		_ = outW.CloseWithError(err)
		_ = inR.CloseWithError(err)
	})
	return c
}

// skipTo reads up to the line that marks the beginning of the frames.
func (c *relayConn) skipTo(ctx context.Context, marker string) error {
	stop := context.AfterFunc(ctx, c.cancel)
	defer stop()
	var line []byte
	one := make([]byte, 1)
	for budget := 64 << 10; budget > 0; budget-- {
		if _, err := io.ReadFull(c.Reader, one); err != nil {
			return err
		}
		if one[0] != '\n' {
			line = append(line, one[0])
			continue
		}
		text := strings.TrimSpace(string(line))
		if text == marker {
			return nil
		}
		if hexed, ok := strings.CutPrefix(text, "hermes-error "); ok {
			return c.place.explainError("relay", hexed)
		}
		line = line[:0]
	}
	return fmt.Errorf("%w: 64 KiB without the line %q", errMalformed, marker)
}

func (c *relayConn) Close() error {
	for _, p := range c.pipes {
		_ = p.Close()
	}
	c.cancel()
	c.wg.Wait()
	return nil
}

// tailBuffer keeps the last 64 KiB of what is written to it.
type tailBuffer struct {
	mu   sync.Mutex
	data []byte
}

const tailSize = 64 << 10

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p...)
	if extra := len(b.data) - tailSize; extra > 0 {
		b.data = append(b.data[:0], b.data[extra:]...)
	}
	return len(p), nil
}

func (b *tailBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data)
}
