package sdk

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/hermes-framework/hermes/plugin/proto/hermes/backend/v1"
)

// Exec implements Environment. When ctx ends the far side is told to stop the process; Exec returns when it has, and at the latest
// a while after Grace.
func (e *remote) Exec(ctx context.Context, cmd Command, stdio IO) (ExitStatus, error) {
	if ctx.Err() != nil {
		return ExitStatus{}, canceled(ctx, NotStarted, "exec")
	}
	// The call outlives ctx by the time that the far side needs to stop the process and to send what is left.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stream, err := e.rpc.Exec(life, callOptions...)
	if err != nil {
		return ExitStatus{}, openError(ctx, err, "exec")
	}
	x := newClientExec(stream, cancel, stdio)
	if err := stream.Send(x.start(e.id, cmd)); err != nil && !errors.Is(err, io.EOF) {
		return ExitStatus{}, openError(ctx, err, "exec")
	}
	return x.run(ctx)
}

// clientExec is the host's end of one Exec.
type clientExec struct {
	stream  grpc.BidiStreamingClient[pb.ExecRequest, pb.ExecResponse]
	cancel  context.CancelFunc // ends the call, whatever the far side does
	stdio   IO
	stdin   *credit
	outputs map[pb.Stream]*clientOutput
	done    chan struct{} // closed when the call has ended

	sending sync.Mutex // held while a message is sent
	closed  bool       // no message may follow

	mu    sync.Mutex
	fault error       // why this side gave up
	timer *time.Timer // ends the call when the far side does not

	started bool // only the receiving goroutine uses it
}

func newClientExec(stream grpc.BidiStreamingClient[pb.ExecRequest, pb.ExecResponse], cancel context.CancelFunc, stdio IO) *clientExec {
	x := &clientExec{
		stream:  stream,
		cancel:  cancel,
		stdio:   stdio,
		stdin:   newCredit(initialStdin),
		outputs: make(map[pb.Stream]*clientOutput),
		done:    make(chan struct{}),
	}
	x.want(pb.Stream_STREAM_STDOUT, stdio.Stdout)
	x.want(pb.Stream_STREAM_STDERR, stdio.Stderr)
	return x
}

func (x *clientExec) want(s pb.Stream, w io.Writer) {
	if w != nil {
		x.outputs[s] = &clientOutput{x: x, stream: s, w: w, queue: newQueue()}
	}
}

func (x *clientExec) start(id string, cmd Command) *pb.ExecRequest {
	start := &pb.ExecStart{
		Environment: id,
		Argv:        cmd.Argv,
		Env:         cmd.Env,
		InheritEnv:  cmd.InheritEnv,
		Dir:         cmd.Dir,
		Stdin:       x.stdio.Stdin != nil,
	}
	if cmd.TTY != nil {
		start.Tty = windowToWire(cmd.TTY)
	}
	if x.stdio.Stdout != nil {
		start.StdoutLimit = window
	}
	if x.stdio.Stderr != nil {
		start.StderrLimit = window
	}
	return &pb.ExecRequest{Message: &pb.ExecRequest_Start{Start: start}}
}

func windowToWire(w *Window) *pb.Window {
	return &pb.Window{Rows: uint32(w.Rows), Cols: uint32(w.Cols)}
}

// run receives until the call has ended and returns when everything that it began has, except a Read of Stdin that is blocked.
func (x *clientExec) run(ctx context.Context) (ExitStatus, error) {
	defer context.AfterFunc(ctx, func() { x.giveUp(nil) })()
	var wg sync.WaitGroup
	for _, o := range x.outputs {
		wg.Go(o.copy) // ends with its queue
	}
	if x.stdio.Control != nil {
		wg.Go(x.sendControls) // ends with x.done
	}
	if x.stdio.Stdin != nil {
		go x.sendStdin() // ends with the call, or when a Read that is blocked then returns
	}

	status, err := x.receive()
	close(x.done)
	x.stdin.stop(io.ErrClosedPipe)
	for _, o := range x.outputs {
		o.queue.end(io.EOF)
	}
	x.closeSend()
	wg.Wait()
	return status, x.outcome(ctx, err)
}

// outcome puts what this side knows about a failure before what the far side says.
func (x *clientExec) outcome(ctx context.Context, err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.timer != nil {
		x.timer.Stop()
	}
	if x.fault != nil {
		return AsError(x.fault, Ran)
	}
	if err == nil {
		return nil
	}
	delivery := MayHaveRun
	if x.started {
		delivery = Ran
	}
	e := AsError(fromStatus(err, MayHaveRun), delivery)
	if ctx.Err() != nil && (e.Code == CodeCanceled || e.Code == CodeTimeout) {
		return canceled(ctx, max(e.Delivery, delivery), "exec")
	}
	return e
}

// stopWait is how long the far side may take to stop a process and to say so: TERM, Grace, KILL, and the way there and back.
func stopWait() time.Duration { return 2*Grace + 3*time.Second }

// giveUp has the process stopped, because of fault or (nil) because ctx ended.
func (x *clientExec) giveUp(fault error) {
	x.mu.Lock()
	if x.fault == nil {
		x.fault = fault
	}
	first := x.timer == nil
	if first {
		x.timer = time.AfterFunc(stopWait(), x.cancel)
	}
	x.mu.Unlock()
	if first {
		x.send(&pb.ExecRequest{Message: &pb.ExecRequest_Cancel{Cancel: &pb.Cancel{}}})
	}
}

// send sends one message and reports whether it could. Why it could not is what receive returns.
func (x *clientExec) send(req *pb.ExecRequest) bool {
	x.sending.Lock()
	defer x.sending.Unlock()
	return !x.closed && x.stream.Send(req) == nil
}

func (x *clientExec) closeSend() {
	x.sending.Lock()
	defer x.sending.Unlock()
	x.closed = true
	_ = x.stream.CloseSend()
}

// receive handles the plugin's messages until the last.
func (x *clientExec) receive() (ExitStatus, error) {
	for {
		resp, err := x.stream.Recv()
		if err != nil {
			return ExitStatus{}, noEOF(err)
		}
		switch m := resp.GetMessage().(type) {
		case *pb.ExecResponse_Started:
			if !x.started && x.stdio.Started != nil {
				x.stdio.Started()
			}
			x.started = true
		case *pb.ExecResponse_Output:
			if err := x.receiveOutput(m.Output); err != nil {
				return ExitStatus{}, err
			}
		case *pb.ExecResponse_StdinLimit:
			x.stdin.raise(m.StdinLimit)
		case *pb.ExecResponse_Exit:
			return x.receiveExit(m.Exit)
		}
	}
}

func (x *clientExec) receiveOutput(m *pb.Output) error {
	o := x.outputs[m.GetStream()]
	if o == nil {
		return nil
	}
	if m.GetOffset() != o.received {
		return errProtocol("exec: a part of the output is missing")
	}
	o.received += uint64(len(m.GetData()))
	if o.queue.push(m.GetData()) > window {
		return errProtocol("exec: more output than was asked for")
	}
	return nil
}

func (x *clientExec) receiveExit(m *pb.Exit) (ExitStatus, error) {
	for s, total := range map[pb.Stream]uint64{pb.Stream_STREAM_STDOUT: m.GetStdoutBytes(), pb.Stream_STREAM_STDERR: m.GetStderrBytes()} {
		if o := x.outputs[s]; o != nil && o.received != total {
			return ExitStatus{}, errProtocol("exec: the end of the output is missing")
		}
	}
	// The status that ends the call follows; without waiting for it gRPC would count the call as abandoned.
	if _, err := x.stream.Recv(); err != nil && !errors.Is(err, io.EOF) {
		return ExitStatus{}, err
	}
	return ExitStatus{Code: int(m.GetCode()), Signal: m.GetSignal()}, nil
}

// sendStdin sends stdin as far as it is granted. A process that has ended reads no more, which is not a failure.
func (x *clientExec) sendStdin() {
	chunk := &pb.ExecRequest_Stdin{}
	req := &pb.ExecRequest{Message: chunk}
	buf := make([]byte, MaxChunk)
	var offset uint64
	for {
		n, err := x.stdio.Stdin.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			may, err := x.stdin.wait(offset, len(p))
			if err != nil {
				return
			}
			chunk.Stdin = p[:may]
			if !x.send(req) {
				return
			}
			offset += uint64(may)
			p = p[may:]
		}
		if err == io.EOF {
			x.send(&pb.ExecRequest{Message: &pb.ExecRequest_StdinEnd{StdinEnd: &pb.StdinEnd{}}})
			return
		}
		if err != nil {
			// Half of the input must not look like all of it.
			x.giveUp(Errorf(CodeInternal, Ran, "exec: read stdin: %w", err))
			return
		}
	}
}

func (x *clientExec) sendControls() {
	for {
		select {
		case c, ok := <-x.stdio.Control:
			if !ok {
				return
			}
			m := &pb.Control{Signal: c.Signal}
			if c.Resize != nil {
				m.Resize = windowToWire(c.Resize)
			}
			x.send(&pb.ExecRequest{Message: &pb.ExecRequest_Control{Control: m}})
		case <-x.done:
			return
		}
	}
}

// clientOutput carries one output from the goroutine that receives to the caller's writer.
type clientOutput struct {
	x        *clientExec
	stream   pb.Stream
	w        io.Writer
	queue    *queue
	received uint64 // only the receiving goroutine uses it
}

// copy writes what arrives and grants more as it goes. When the writer fails the process is stopped and the rest dropped.
func (o *clientOutput) copy() {
	var written, granted uint64 = 0, window
	var spare []byte
	broken := false
	for {
		p, err := o.queue.take(spare)
		if err != nil {
			return
		}
		if !broken {
			if _, err := o.w.Write(p); err != nil {
				broken = true
				o.x.giveUp(Errorf(CodeInternal, Ran, "exec: write output: %w", err))
			}
		}
		spare = p
		written += uint64(len(p))
		if granted-written <= window/2 {
			granted = written + window
			o.x.send(&pb.ExecRequest{Message: &pb.ExecRequest_OutputLimit{
				OutputLimit: &pb.OutputLimit{Stream: o.stream, Limit: granted},
			}})
		}
	}
}
