package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	pb "github.com/hermes-framework/hermes/plugin/proto/hermes/backend/v1"
)

// server serves a Backend over hermes.backend.v1.
type server struct {
	pb.UnimplementedBackendServiceServer

	backend Backend
	log     hclog.Logger
	envs    Environments[Environment]
	done    chan struct{} // closed when Shutdown has been answered, or may be

	// ctx ends when the server stops; it ends every call.
	ctx  context.Context
	stop context.CancelCauseFunc

	mu       sync.Mutex
	closed   bool
	calls    sync.WaitGroup // handlers, and the goroutines that receive for them
	doneOnce sync.Once
}

var _ pb.BackendServiceServer = (*server)(nil)

func newServer(ctx context.Context, b Backend, log hclog.Logger) *server {
	s := &server{backend: b, log: log, done: make(chan struct{})}
	s.ctx, s.stop = context.WithCancelCause(ctx)
	return s
}

// begin counts a call in; the caller calls s.calls.Done when it has ended.
func (s *server) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return &Error{Code: CodeClosed, Message: "backend plugin is shutting down"}
	}
	s.calls.Add(1)
	return nil
}

// call runs a unary call: fn's error and its panic become a status. fn's ctx also ends when the server stops.
func (s *server) call(ctx context.Context, what string, fn func(ctx context.Context) error) error {
	if err := s.begin(); err != nil {
		return toStatus(err, NotStarted)
	}
	defer s.calls.Done()
	ctx, cancel := s.bound(ctx)
	defer cancel(nil)
	return toStatus(s.protect(what, func() error { return fn(ctx) }), MayHaveRun)
}

// bound returns a ctx that ends with ctx and with the server.
func (s *server) bound(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return ctx, func(cause error) {
		unhook()
		cancel(cause)
	}
}

// protect runs fn; a panic of the backend is an error of this call and the plugin lives on.
func (s *server) protect(what string, fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("the backend panicked", "call", what, "panic", fmt.Sprint(r), "stack", clip(string(debug.Stack()), maxDetail))
			err = Errorf(CodeInternal, MayHaveRun, "%s: the backend panicked: %v", what, r)
		}
	}()
	return fn()
}

// environment returns the open environment with this ID.
func (s *server) environment(id string) (Environment, error) {
	if env, ok := s.envs.Get(id); ok {
		return env, nil
	}
	return nil, Errorf(CodeClosed, NotStarted, "environment %q is not open in the backend plugin", id)
}

// ability returns env as the optional interface that goes with a capability.
func ability[T any](env Environment, c Capability) (T, error) {
	if a, ok := env.(T); ok {
		return a, nil
	}
	var none T
	return none, unsupported(c)
}

func (s *server) Info(ctx context.Context, _ *pb.InfoRequest) (*pb.InfoResponse, error) {
	var resp *pb.InfoResponse
	err := s.call(ctx, "info", func(ctx context.Context) error {
		info, err := s.backend.Info(ctx)
		resp = infoToWire(info)
		return err
	})
	return resp, err
}

func (s *server) Open(ctx context.Context, req *pb.OpenRequest) (*pb.OpenResponse, error) {
	err := s.call(ctx, "open", func(ctx context.Context) error {
		if req.GetId() == "" {
			return Errorf(CodeInvalid, NotStarted, "open: no id")
		}
		_, err := s.envs.Open(ctx, req.GetId(), func(ctx context.Context) (Environment, error) {
			env, err := s.backend.Open(ctx, OpenRequest{ID: req.GetId(), Target: req.GetTarget(), Config: req.GetConfig()})
			if err == nil && env == nil {
				err = Errorf(CodeInternal, MayHaveRun, "open %s: the backend returned no environment", req.GetTarget())
			}
			return env, err
		})
		return err
	})
	return &pb.OpenResponse{}, err
}

func (s *server) CloseEnvironment(ctx context.Context, req *pb.CloseEnvironmentRequest) (*pb.CloseEnvironmentResponse, error) {
	err := s.call(ctx, "close", func(ctx context.Context) error { return s.closeEnvironment(ctx, req.GetId()) })
	return &pb.CloseEnvironmentResponse{}, err
}

func (s *server) closeEnvironment(ctx context.Context, id string) error {
	return s.envs.Close(ctx, id, func(ctx context.Context, env Environment) error {
		return s.protect("close", func() error { return env.Close(ctx) })
	})
}

func (s *server) Health(context.Context, *pb.HealthRequest) (*pb.HealthResponse, error) {
	return &pb.HealthResponse{}, nil
}

// defaultDeadline bounds a Shutdown that names no deadline.
const defaultDeadline = 5 * time.Second

func (s *server) Shutdown(ctx context.Context, req *pb.ShutdownRequest) (*pb.ShutdownResponse, error) {
	deadline := defaultDeadline
	if ms := req.GetDeadlineMs(); ms > 0 {
		deadline = time.Duration(min(ms, 600_000)) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	err := s.close(ctx)
	s.doneOnce.Do(func() { close(s.done) })
	return &pb.ShutdownResponse{}, toStatus(err, Ran)
}

// errStopped is why calls end when the plugin does.
var errStopped = &Error{Code: CodeClosed, Delivery: Ran, Message: "backend plugin was shut down"}

// close refuses new calls, ends those that run and closes every environment. It returns when all of it has ended or ctx has.
func (s *server) close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop(errStopped)

	ids := s.envs.IDs()
	errs := make(chan error, len(ids)+1)
	for _, id := range ids {
		go func() { errs <- s.closeEnvironment(ctx, id) }() // waited for below until the deadline, after which the process ends
	}
	go func() { // likewise
		s.calls.Wait()
		errs <- nil
	}()

	var all []error
	for range cap(errs) {
		select {
		case err := <-errs:
			all = append(all, err)
		case <-ctx.Done():
			return Errorf(CodeTimeout, Ran, "shut down: work was still running at the deadline")
		}
	}
	return errors.Join(all...)
}

func (s *server) Dial(stream grpc.BidiStreamingServer[pb.DialRequest, pb.DialResponse]) error {
	return s.call(stream.Context(), "dial", func(ctx context.Context) error {
		first, err := stream.Recv()
		if err != nil {
			return err
		}
		start := first.GetStart()
		if start == nil {
			return Errorf(CodeInvalid, NotStarted, "dial: the first message is not start")
		}
		end, err := s.dial(ctx, start)
		if err != nil {
			return err
		}
		if end.Conn == nil {
			return stream.Send(&pb.DialResponse{Message: &pb.DialResponse_Address{Address: end.Addr}})
		}
		return s.relay(ctx, stream, end.Conn)
	})
}

func (s *server) dial(ctx context.Context, start *pb.DialStart) (Endpoint, error) {
	env, err := s.environment(start.GetEnvironment())
	if err != nil {
		return Endpoint{}, err
	}
	d, err := ability[Dialer](env, CapSocket)
	if err != nil {
		return Endpoint{}, err
	}
	end, err := d.Dial(ctx, DialRequest{Path: start.GetPath(), Stream: start.GetStream()})
	if err != nil {
		return Endpoint{}, err
	}
	if end.Conn == nil && start.GetStream() { // the backend leaves that to us
		end.Conn, err = dialAddr(ctx, end.Addr)
	}
	return end, err
}

// relay carries bytes between stream and conn until both directions have ended or the call has.
func (s *server) relay(ctx context.Context, stream grpc.BidiStreamingServer[pb.DialRequest, pb.DialResponse], conn io.ReadWriteCloser) error {
	closeConn := sync.OnceFunc(func() { _ = conn.Close() })
	defer closeConn()
	defer context.AfterFunc(ctx, closeConn)()
	if err := stream.Send(&pb.DialResponse{Message: &pb.DialResponse_Connected{Connected: &pb.Connected{}}}); err != nil {
		return err
	}

	// The client's direction ends when the client closes its side or cancels, which it does when it has no more use for the other.
	received := make(chan error, 1)
	// It ends with the stream; Shutdown waits for it.
	s.calls.Go(func() { received <- receiveInto(stream, conn) })

	chunk := &pb.DialResponse_Data{}
	resp := &pb.DialResponse{Message: chunk}
	err := copyChunks(conn, func(p []byte) error {
		chunk.Data = p
		return stream.Send(resp)
	})
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.DialResponse{Message: &pb.DialResponse_DataEnd{DataEnd: &pb.DataEnd{}}}); err != nil {
		return err
	}
	select {
	case err := <-received:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// receiveInto writes the data of a Dial to conn. A far side that reads no more is not a failure.
func receiveInto(stream grpc.BidiStreamingServer[pb.DialRequest, pb.DialResponse], conn io.Writer) error {
	var broken bool
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			closeWrite(conn)
			return nil
		}
		if err != nil {
			return err
		}
		if !broken {
			_, err = conn.Write(req.GetData())
			broken = err != nil
		}
	}
}

// closeWrite tells the far side of conn that no more follows, if conn can.
func closeWrite(conn any) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}

// copyChunks calls send with what r yields, at most MaxChunk at a time. The end of r, and a connection that its owner closed, is no error.
func copyChunks(r io.Reader, send func([]byte) error) error {
	buf := make([]byte, MaxChunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

func (s *server) Put(stream grpc.ClientStreamingServer[pb.PutRequest, pb.PutResponse]) error {
	return s.call(stream.Context(), "put", func(ctx context.Context) error {
		first, err := stream.Recv()
		if err != nil {
			return err
		}
		start := first.GetStart()
		if start == nil {
			return Errorf(CodeInvalid, NotStarted, "put: the first message is not start")
		}
		files, err := s.files(start.GetEnvironment())
		if err != nil {
			return err
		}
		req := PutRequest{Path: start.GetPath(), Mode: start.GetMode(), Source: start.GetSource()}
		if req.Source == "" {
			req.Content = &putReader{stream: stream}
		}
		if err := files.Put(ctx, req); err != nil {
			return err
		}
		return stream.SendAndClose(&pb.PutResponse{})
	})
}

func (s *server) files(id string) (Files, error) {
	env, err := s.environment(id)
	if err != nil {
		return nil, err
	}
	return ability[Files](env, CapFiles)
}

// putReader is the content of a Put.
type putReader struct {
	stream grpc.ClientStreamingServer[pb.PutRequest, pb.PutResponse]
	rest   []byte
	err    error
}

func (r *putReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 && r.err == nil {
		var req *pb.PutRequest
		req, r.err = r.stream.Recv()
		r.rest = req.GetData()
	}
	if len(r.rest) == 0 {
		return 0, r.err
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (s *server) Get(req *pb.GetRequest, stream grpc.ServerStreamingServer[pb.GetResponse]) error {
	return s.call(stream.Context(), "get", func(ctx context.Context) error {
		files, err := s.files(req.GetEnvironment())
		if err != nil {
			return err
		}
		chunk := &pb.GetResponse_Data{}
		w := &getWriter{stream: stream, chunk: chunk, resp: &pb.GetResponse{Message: chunk}}
		info, err := files.Get(ctx, req.GetPath(), w)
		if err != nil {
			return err
		}
		return stream.Send(&pb.GetResponse{Message: &pb.GetResponse_Info{Info: &pb.FileInfo{Size: info.Size, Mode: info.Mode}}})
	})
}

// getWriter sends the content of a Get.
type getWriter struct {
	stream grpc.ServerStreamingServer[pb.GetResponse]
	chunk  *pb.GetResponse_Data
	resp   *pb.GetResponse
}

func (w *getWriter) Write(p []byte) (int, error) {
	for part := range slices.Chunk(p, MaxChunk) {
		w.chunk.Data = part
		if err := w.stream.Send(w.resp); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func infoToWire(info Info) *pb.InfoResponse {
	resp := &pb.InfoResponse{
		Name:         info.Name,
		Version:      info.Version,
		Description:  info.Description,
		Schemes:      info.Schemes,
		ConfigSchema: info.ConfigSchema,
	}
	for _, c := range info.Capabilities {
		resp.Capabilities = append(resp.Capabilities, string(c))
	}
	return resp
}

func infoFromWire(resp *pb.InfoResponse) Info {
	info := Info{
		Name:         resp.GetName(),
		Version:      resp.GetVersion(),
		Description:  resp.GetDescription(),
		Schemes:      resp.GetSchemes(),
		ConfigSchema: resp.GetConfigSchema(),
	}
	for _, c := range resp.GetCapabilities() {
		info.Capabilities = append(info.Capabilities, Capability(c))
	}
	return info
}
