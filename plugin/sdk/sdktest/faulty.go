package sdktest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Faulty wraps a backend so that chosen steps of its environments go wrong, for tests of programs that use a backend. What the backend can do, the
// wrapped one can, too. An environment that is opened with a FaultyConfig has the faults of that instead, so that a plugin can be a faulty one.
func Faulty(b sdk.Backend, faults ...Fault) sdk.Backend { return NewFaults(faults...).Wrap(b) }

// FaultyConfig is the OpenRequest.Config of a backend that Faulty made. Without any config the backend's own faults apply.
type FaultyConfig struct {
	Faults []Fault `json:"faults,omitempty"`
	// Log is the path of a file, made with mode 0600, to which each step is appended as one JSON line, see ReadRecords. Faults that have hit
	// according to it do not hit again, so a plugin that is started again goes on where the one before was.
	Log    string          `json:"log,omitempty"`
	Data   bool            `json:"data,omitempty"`   // the records of streams carry their bytes, which may hold secrets
	Config json.RawMessage `json:"config,omitempty"` // of the wrapped backend
}

const faultySchema = `{"type": "object", "additionalProperties": false, "properties": {
  "faults": {"type": "array", "items": {"type": "object", "required": ["step", "do"], "additionalProperties": false, "properties": {
    "step": {"enum": ["open", "exec", "stdin", "stdout", "dial", "send", "receive", "put", "get", "close"]},
    "do": {"enum": ["before", "after", "hang", "rubbish", "cut"]},
    "arg": {"type": "string"}, "match": {"type": "string", "contentEncoding": "base64"},
    "skip": {"type": "integer", "minimum": 0}, "times": {"type": "integer"}, "at": {"type": "integer", "minimum": 0}}}},
  "log": {"type": "string"}, "data": {"type": "boolean"}, "config": {"type": "object"}}}`

// Wrap wraps a backend so that f decides what goes wrong in it, see Faulty.
func (f *Faults) Wrap(b sdk.Backend) sdk.Backend {
	return &faultyBackend{Backend: b, faults: f, own: map[string]*Faults{}}
}

type faultyBackend struct {
	sdk.Backend

	faults *Faults
	envs   sdk.Environments[sdk.Environment]

	mu  sync.Mutex
	own map[string]*Faults // of environments with a config, by ID; kept, as Open may be called again
}

var _ sdk.Backend = (*faultyBackend)(nil)

// Info implements sdk.Backend.
func (b *faultyBackend) Info(ctx context.Context) (sdk.Info, error) {
	info, err := b.Backend.Info(ctx)
	info.ConfigSchema = faultySchema
	return info, err
}

// Open implements sdk.Backend.
func (b *faultyBackend) Open(ctx context.Context, req sdk.OpenRequest) (sdk.Environment, error) {
	f, config, err := b.configured(req)
	if err != nil {
		return nil, err
	}
	req.Config = config
	env, err := b.envs.Open(ctx, req.ID, func(ctx context.Context) (sdk.Environment, error) { return b.open(ctx, f, req) })
	if errors.Is(err, errRubbish) {
		return nil, nil
	}
	return env, err
}

// errRubbish becomes an answer of nothing at all.
var errRubbish = errors.New("rubbish")

// configured returns the faults of an environment, and the config of the wrapped backend.
func (b *faultyBackend) configured(req sdk.OpenRequest) (*Faults, []byte, error) {
	config, err := sdk.Decode[FaultyConfig](req.Config)
	if err != nil {
		return nil, nil, err
	}
	if len(req.Config) == 0 {
		return b.faults, nil, b.faults.invalid()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.own[req.ID]
	if f == nil {
		f = NewFaults(config.Faults...)
		f.data = config.Data
		if err := f.invalid(); err != nil {
			return nil, nil, err
		}
		if config.Log != "" {
			if err := f.resume(config.Log); err != nil {
				return nil, nil, err
			}
		}
		b.own[req.ID] = f
	}
	return f, config.Config, nil
}

func (b *faultyBackend) open(ctx context.Context, f *Faults, req sdk.OpenRequest) (sdk.Environment, error) {
	_, do := f.step(StepOpen, req.Target)
	switch do {
	case FailBefore:
		return nil, unavailable(sdk.NotStarted, StepOpen)
	case Hang:
		<-ctx.Done()
		return nil, gaveUp(ctx, sdk.NotStarted, StepOpen)
	}
	env, err := b.Backend.Open(ctx, req)
	switch {
	case err != nil:
		return nil, err
	case do == FailAfter: // the same ID opened again is the same environment
		return nil, unavailable(sdk.MayHaveRun, StepOpen)
	case do == Rubbish:
		return nil, errRubbish
	}
	e := &faultyEnvironment{backend: b, id: req.ID, faults: f, env: env}
	e.ctx, e.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	return e.able(), nil
}

func unavailable(d sdk.Delivery, step Step) error {
	return sdk.Errorf(sdk.CodeUnavailable, d, "%s: a fault of the test", step)
}

func gaveUp(ctx context.Context, d sdk.Delivery, step Step) error {
	cause := context.Cause(ctx)
	return sdk.Errorf(sdk.AsError(cause, d).Code, d, "%s: it hangs: %w", step, cause)
}

// faultyEnvironment is an environment with faults, but for what not every one can do.
type faultyEnvironment struct {
	backend *faultyBackend
	id      string
	faults  *Faults
	env     sdk.Environment

	ctx  context.Context // ends at Close
	stop context.CancelCauseFunc
}

type (
	faultyDialer struct {
		*faultyEnvironment
		dialer sdk.Dialer
	}
	faultyFiles struct {
		*faultyEnvironment
		files sdk.Files
	}
	faultyBoth struct {
		faultyDialer
		files faultyFiles
	}
)

var (
	_ sdk.Environment = (*faultyEnvironment)(nil)
	_ sdk.Dialer      = faultyDialer{}
	_ sdk.Files       = faultyFiles{}
	_ sdk.Dialer      = faultyBoth{}
	_ sdk.Files       = faultyBoth{}
)

// able returns e as what can do no less and no more than the environment that it wraps.
func (e *faultyEnvironment) able() sdk.Environment {
	dialer, dials := e.env.(sdk.Dialer)
	files, moves := e.env.(sdk.Files)
	d, f := faultyDialer{e, dialer}, faultyFiles{e, files}
	switch {
	case dials && moves:
		return faultyBoth{d, f}
	case dials:
		return d
	case moves:
		return f
	default:
		return e
	}
}

// hang waits until ctx is done or the environment closed.
func (e *faultyEnvironment) hang(ctx context.Context, d sdk.Delivery, step Step) error {
	select {
	case <-ctx.Done():
		return gaveUp(ctx, d, step)
	case <-e.ctx.Done():
		return gaveUp(e.ctx, d, step)
	}
}

// Exec implements sdk.Environment.
func (e *faultyEnvironment) Exec(ctx context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	call, do := e.faults.step(StepExec, cmd.Argv...)
	switch do {
	case FailBefore:
		return sdk.ExitStatus{}, unavailable(sdk.NotStarted, StepExec)
	case Hang:
		return sdk.ExitStatus{}, e.hang(ctx, sdk.NotStarted, StepExec)
	case FailAfter:
		stdio.Stdout, stdio.Stderr = nil, nil
	}
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.ctx, func() { cancel(context.Cause(e.ctx)) })()
	w := newWire(e.faults, StepStdin, StepStdout, call, cmd.Argv, func() { cancel(errCut()) })
	if stdio.Stdin != nil {
		stdio.Stdin = &wiredStdin{stdio.Stdin, w, running}
	}
	if stdio.Stdout != nil {
		stdio.Stdout = &wiredStdout{stdio.Stdout, w}
	}
	status, err := e.env.Exec(running, cmd, stdio)
	switch {
	case w.is(&w.lost), do == FailAfter && err == nil, w.is(&w.noReply) && err == nil:
		return sdk.ExitStatus{}, unavailable(sdk.MayHaveRun, StepExec)
	case w.is(&w.hung):
		return sdk.ExitStatus{}, e.hang(ctx, sdk.MayHaveRun, StepExec)
	case do == Rubbish, w.is(&w.garble):
		return sdk.ExitStatus{Code: wrongCode(status)}, err
	}
	return status, err
}

func wrongCode(status sdk.ExitStatus) int {
	if status.Code == 255 {
		return 254
	}
	return 255
}

// hangLimit bounds a Close that hangs, as a Close has to be.
const hangLimit = 10 * time.Second

// Close implements sdk.Environment. What hangs in the environment fails then.
func (e *faultyEnvironment) Close(ctx context.Context) error {
	return e.backend.envs.Close(ctx, e.id, func(ctx context.Context, _ sdk.Environment) error { return e.close(ctx) })
}

// close frees the environment in any case: nobody could close it again.
func (e *faultyEnvironment) close(ctx context.Context) error {
	_, do := e.faults.step(StepClose)
	if do == "" {
		e.stop(errClosed)
		return e.env.Close(ctx)
	}
	var hung error
	if do == Hang {
		ctx, cancel := context.WithTimeout(ctx, hangLimit)
		hung = e.hang(ctx, sdk.MayHaveRun, StepClose)
		cancel()
	}
	e.stop(errClosed)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangLimit)
	defer cancel()
	err := e.env.Close(ctx)
	switch do {
	case Hang:
		return hung
	case FailBefore:
		return unavailable(sdk.NotStarted, StepClose)
	case FailAfter:
		return unavailable(sdk.MayHaveRun, StepClose)
	case Rubbish:
		return &sdk.Error{Code: "rubbish", Delivery: sdk.Ran, Message: "close: a code that nobody knows"}
	}
	return err
}

// errClosed is why what hangs ends with its environment.
var errClosed = sdk.Errorf(sdk.CodeClosed, sdk.NotStarted, "the environment was closed")

// Dial implements sdk.Dialer. The answer is a connection, never an address.
func (e faultyDialer) Dial(ctx context.Context, req sdk.DialRequest) (sdk.Endpoint, error) {
	call, do := e.faults.step(StepDial, req.Path)
	switch do {
	case FailBefore:
		return sdk.Endpoint{}, unavailable(sdk.NotStarted, StepDial)
	case Hang:
		return sdk.Endpoint{}, e.hang(ctx, sdk.NotStarted, StepDial)
	}
	conn, err := e.connect(ctx, req)
	switch {
	case err != nil:
		return sdk.Endpoint{}, err
	case do == FailAfter:
		_ = conn.Close()
		return sdk.Endpoint{}, unavailable(sdk.MayHaveRun, StepDial)
	case do == Rubbish:
		_ = conn.Close()
		return sdk.Endpoint{}, nil
	}
	w := newWire(e.faults, StepSend, StepReceive, call, []string{req.Path}, func() { _ = conn.Close() })
	return sdk.Endpoint{Conn: &wiredConn{ReadWriteCloser: conn, wire: w, env: e.ctx}}, nil
}

func (e faultyDialer) connect(ctx context.Context, req sdk.DialRequest) (io.ReadWriteCloser, error) {
	req.Stream = true
	end, err := e.dialer.Dial(ctx, req)
	if err != nil || end.Conn != nil {
		return end.Conn, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", end.Addr)
	if err != nil {
		return nil, sdk.Errorf(sdk.CodeUnavailable, sdk.NotStarted, "dial: %w", err)
	}
	return conn, nil
}

// Put implements sdk.Files.
func (e faultyFiles) Put(ctx context.Context, req sdk.PutRequest) error {
	_, do := e.faults.step(StepPut, req.Path)
	switch do {
	case FailBefore:
		return unavailable(sdk.NotStarted, StepPut)
	case Hang:
		return e.hang(ctx, sdk.NotStarted, StepPut)
	case Rubbish:
		req.Source, req.Content = "", &rubbishReader{req.Content, 1}
	}
	err := e.files.Put(ctx, req)
	if do == FailAfter && err == nil {
		return unavailable(sdk.MayHaveRun, StepPut)
	}
	return err
}

// Get implements sdk.Files.
func (e faultyFiles) Get(ctx context.Context, path string, w io.Writer) (sdk.FileInfo, error) {
	_, do := e.faults.step(StepGet, path)
	switch do {
	case FailBefore:
		return sdk.FileInfo{}, unavailable(sdk.NotStarted, StepGet)
	case Hang:
		return sdk.FileInfo{}, e.hang(ctx, sdk.NotStarted, StepGet)
	case FailAfter:
		w = io.Discard
	case Rubbish:
		w = rubbishWriter{w}
	}
	info, err := e.files.Get(ctx, path, w)
	if do == FailAfter && err == nil {
		return sdk.FileInfo{}, unavailable(sdk.MayHaveRun, StepGet)
	}
	return info, err
}

func (e faultyBoth) Put(ctx context.Context, req sdk.PutRequest) error { return e.files.Put(ctx, req) }

func (e faultyBoth) Get(ctx context.Context, path string, w io.Writer) (sdk.FileInfo, error) {
	return e.files.Get(ctx, path, w)
}

// rubbishWriter writes as much as it is given, but nothing of it.
type rubbishWriter struct{ w io.Writer }

func (r rubbishWriter) Write(p []byte) (int, error) { return r.w.Write(rubbish(len(p))) }

// rubbishReader reads as much as its content has, but nothing of it; one byte when the content was a file.
type rubbishReader struct {
	content io.Reader
	more    int
}

func (r *rubbishReader) Read(p []byte) (int, error) {
	if r.content == nil {
		n := copy(p, rubbish(r.more))
		r.more -= n
		if r.more == 0 {
			return n, io.EOF
		}
		return n, nil
	}
	n, err := r.content.Read(p)
	copy(p, rubbish(n))
	return n, err
}
