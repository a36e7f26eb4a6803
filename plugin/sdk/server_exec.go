package sdk

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	pb "github.com/hermes-framework/hermes/plugin/proto/hermes/backend/v1"
)

// serverExec is the plugin's end of one Exec.
type serverExec struct {
	stream  grpc.BidiStreamingServer[pb.ExecRequest, pb.ExecResponse]
	cancel  context.CancelCauseFunc
	control chan Control
	stdin   *stdinReader // nil when there is none
	stdout  *outputWriter
	stderr  *outputWriter

	mu      sync.Mutex // held while a message is sent
	started bool       // the first message has been sent
	ended   bool       // no message may follow
}

// Exec runs the call's process in the goroutine of the handler; a second goroutine receives.
func (s *server) Exec(stream grpc.BidiStreamingServer[pb.ExecRequest, pb.ExecResponse]) error {
	return s.call(stream.Context(), "exec", func(ctx context.Context) error {
		first, err := stream.Recv()
		if err != nil {
			return err
		}
		start := first.GetStart()
		if start == nil {
			return Errorf(CodeInvalid, NotStarted, "exec: the first message is not start")
		}
		cmd, err := commandFromWire(start)
		if err != nil {
			return err
		}
		env, err := s.environment(start.GetEnvironment())
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)

		x := newServerExec(stream, start, cancel)
		defer x.close()
		defer context.AfterFunc(stream.Context(), x.abandon)()
		defer context.AfterFunc(ctx, func() { x.breakStdin(context.Cause(ctx)) })()
		s.calls.Go(x.receive) // ends with the stream; Shutdown waits for it

		var status ExitStatus
		err = s.protect("exec", func() error {
			var err error
			status, err = env.Exec(ctx, cmd, x.stdio())
			return err
		})
		if err != nil {
			return x.failed(ctx, err)
		}
		return x.exit(status)
	})
}

func commandFromWire(start *pb.ExecStart) (Command, error) {
	if len(start.GetArgv()) == 0 {
		return Command{}, Errorf(CodeInvalid, NotStarted, "exec: argv is empty")
	}
	cmd := Command{
		Argv:       start.GetArgv(),
		Env:        start.GetEnv(),
		InheritEnv: start.GetInheritEnv(),
		Dir:        start.GetDir(),
	}
	if start.GetTty() != nil {
		cmd.TTY = windowFromWire(start.GetTty())
	}
	return cmd, nil
}

func windowFromWire(w *pb.Window) *Window {
	return &Window{Rows: uint16(min(w.GetRows(), 1<<16-1)), Cols: uint16(min(w.GetCols(), 1<<16-1))}
}

func newServerExec(stream grpc.BidiStreamingServer[pb.ExecRequest, pb.ExecResponse], start *pb.ExecStart, cancel context.CancelCauseFunc) *serverExec {
	x := &serverExec{stream: stream, cancel: cancel, control: make(chan Control, 64)}
	if start.GetStdin() {
		x.stdin = &stdinReader{x: x, queue: newQueue(), limit: initialStdin}
	}
	x.stdout = newOutputWriter(x, pb.Stream_STREAM_STDOUT, start.GetStdoutLimit())
	x.stderr = newOutputWriter(x, pb.Stream_STREAM_STDERR, start.GetStderrLimit())
	return x
}

// stdio is what the backend gets. Output that the client does not want is discarded there, and stdin that it has not is nil.
func (x *serverExec) stdio() IO {
	stdio := IO{Control: x.control, Started: x.start}
	if x.stdin != nil {
		stdio.Stdin = x.stdin
	}
	if x.stdout != nil {
		stdio.Stdout = x.stdout
	}
	if x.stderr != nil {
		stdio.Stderr = x.stderr
	}
	return stdio
}

// send sends one message, after started.
func (x *serverExec) send(resp *pb.ExecResponse) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return errAfterExit
	}
	if err := x.sendStarted(); err != nil {
		return err
	}
	return x.stream.Send(resp)
}

// sendLimit grants stdin. A backend may want all of stdin before it starts anything, so this may come before started.
// A connection that is gone shows elsewhere.
func (x *serverExec) sendLimit(limit uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.ended {
		_ = x.stream.Send(&pb.ExecResponse{Message: &pb.ExecResponse_StdinLimit{StdinLimit: limit}})
	}
}

// sendStarted sends started unless that was done, with mu held.
func (x *serverExec) sendStarted() error {
	if x.started {
		return nil
	}
	x.started = true
	return x.stream.Send(&pb.ExecResponse{Message: &pb.ExecResponse_Started{Started: &pb.Started{}}})
}

var errAfterExit = errors.New("write after the end of the command")

// start is IO.Started. A connection that is gone shows elsewhere.
func (x *serverExec) start() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.ended {
		_ = x.sendStarted()
	}
}

// exit sends the last message.
func (x *serverExec) exit(status ExitStatus) error {
	err := x.send(&pb.ExecResponse{Message: &pb.ExecResponse_Exit{Exit: &pb.Exit{
		Code:        int32(status.Code),
		Signal:      status.Signal,
		StdoutBytes: x.stdout.sent(),
		StderrBytes: x.stderr.sent(),
	}}})
	x.close()
	return err
}

// failed returns err as it is to travel. What has started cannot be said not to have.
func (x *serverExec) failed(ctx context.Context, err error) error {
	x.mu.Lock()
	started := x.started
	x.mu.Unlock()

	delivery := MayHaveRun
	if started {
		delivery = Ran
	}
	e := AsError(err, delivery)
	if started && e.Delivery == NotStarted {
		c := *e
		c.Delivery = Ran
		e = &c
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) && errors.Is(cause, ErrClosed) {
		return &Error{Code: CodeClosed, Delivery: e.Delivery, Message: cause.Error(), Cause: cause}
	}
	return e
}

// close ends the streams of a call whose backend has returned.
func (x *serverExec) close() {
	x.mu.Lock()
	x.ended = true
	x.mu.Unlock()
	x.abandon()
}

var errClientGone = errors.New("the client is gone")

// abandon frees whoever waits for a client that will not answer any more.
func (x *serverExec) abandon() {
	x.breakStdin(errClientGone)
	x.stdout.stop()
	x.stderr.stop()
}

// breakStdin makes a Read of stdin fail. It must not look like the end: a command could take half of its input for all of it.
func (x *serverExec) breakStdin(err error) {
	if x.stdin != nil {
		x.stdin.queue.fail(err)
	}
}

// receive handles the client's messages until it closes its side or the call ends. It never waits for the backend.
func (x *serverExec) receive() {
	for {
		req, err := x.stream.Recv()
		if errors.Is(err, io.EOF) {
			x.stdin.receiveEnd()
			return
		}
		if err != nil {
			x.abandon()
			return
		}
		switch m := req.GetMessage().(type) {
		case *pb.ExecRequest_Stdin:
			x.stdin.receive(m.Stdin)
		case *pb.ExecRequest_StdinEnd:
			x.stdin.receiveEnd()
		case *pb.ExecRequest_Control:
			x.receiveControl(m.Control)
		case *pb.ExecRequest_OutputLimit:
			x.output(m.OutputLimit.GetStream()).raise(m.OutputLimit.GetLimit())
		case *pb.ExecRequest_Cancel:
			x.cancel(context.Canceled)
		}
	}
}

func (x *serverExec) output(s pb.Stream) *outputWriter {
	switch s {
	case pb.Stream_STREAM_STDOUT:
		return x.stdout
	case pb.Stream_STREAM_STDERR:
		return x.stderr
	default:
		return nil
	}
}

// receiveControl hands a signal or size to the backend. A backend that takes none of 64 loses the rest.
func (x *serverExec) receiveControl(m *pb.Control) {
	c := Control{Signal: m.GetSignal()}
	if m.GetResize() != nil {
		c.Resize = windowFromWire(m.GetResize())
	}
	select {
	case x.control <- c:
	default:
	}
}

// stdinReader is IO.Stdin in the plugin.
type stdinReader struct {
	x     *serverExec
	queue *queue

	// Only the goroutine that reads uses these.
	read  uint64
	limit uint64 // granted
}

func (r *stdinReader) Read(p []byte) (int, error) {
	n, err := r.queue.Read(p)
	r.read += uint64(n)
	if err == nil && r.limit-r.read <= window/2 {
		r.limit = r.read + window
		r.x.sendLimit(r.limit)
	}
	return n, err
}

// receive takes what the client sent. A client that sends more than it may is cut off.
func (r *stdinReader) receive(p []byte) {
	if r == nil {
		return
	}
	if r.queue.push(p) > 2*window {
		r.queue.fail(errors.New("client sent more stdin than it was granted"))
	}
}

func (r *stdinReader) receiveEnd() {
	if r != nil {
		r.queue.end(io.EOF)
	}
}

// outputWriter is IO.Stdout or IO.Stderr in the plugin. A nil one is an output that the client does not want.
type outputWriter struct {
	x      *serverExec
	credit *credit

	mu     sync.Mutex // one Write at a time, and what follows
	offset uint64
	output *pb.Output
	resp   *pb.ExecResponse
}

func newOutputWriter(x *serverExec, s pb.Stream, limit uint64) *outputWriter {
	if limit == 0 {
		return nil
	}
	out := &pb.Output{Stream: s}
	return &outputWriter{
		x:      x,
		credit: newCredit(limit),
		output: out,
		resp:   &pb.ExecResponse{Message: &pb.ExecResponse_Output{Output: out}},
	}
}

func (w *outputWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	written := 0
	for written < len(p) {
		n, err := w.credit.wait(w.offset, min(len(p)-written, MaxChunk))
		if err != nil {
			return written, err
		}
		// The message is encoded before send returns, so it can be used again.
		w.output.Offset, w.output.Data = w.offset, p[written:written+n]
		if err := w.x.send(w.resp); err != nil {
			return written, err
		}
		w.offset += uint64(n)
		written += n
	}
	return written, nil
}

func (w *outputWriter) raise(limit uint64) {
	if w != nil {
		w.credit.raise(limit)
	}
}

func (w *outputWriter) stop() {
	if w != nil {
		w.credit.stop(io.ErrClosedPipe)
	}
}

func (w *outputWriter) sent() uint64 {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.offset
}
