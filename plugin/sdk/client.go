package sdk

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/hermes-framework/hermes/plugin/proto/hermes/backend/v1"
)

// Client is the host's end of a plugin: a Backend over a connection. The Environments it opens implement Dialer and Files too;
// what the far side cannot do fails with ErrUnsupported.
type Client struct {
	rpc pb.BackendServiceClient
}

var _ Backend = (*Client)(nil)

// NewClient returns a Client that calls over cc. It does no I/O; the caller keeps cc and closes it.
func NewClient(cc grpc.ClientConnInterface) *Client {
	return &Client{rpc: pb.NewBackendServiceClient(cc)}
}

// Info implements Backend.
func (c *Client) Info(ctx context.Context) (Info, error) {
	resp, err := c.rpc.Info(ctx, &pb.InfoRequest{}, callOptions...)
	if err != nil {
		return Info{}, callError(ctx, err, "info")
	}
	return infoFromWire(resp), nil
}

// Open implements Backend.
func (c *Client) Open(ctx context.Context, req OpenRequest) (Environment, error) {
	_, err := c.rpc.Open(ctx, &pb.OpenRequest{Id: req.ID, Target: req.Target, Config: req.Config}, callOptions...)
	if err != nil {
		return nil, callError(ctx, err, "open")
	}
	return &remote{rpc: c.rpc, id: req.ID}, nil
}

// Health asks the plugin for an answer. How long it may take is ctx's business.
func (c *Client) Health(ctx context.Context) error {
	_, err := c.rpc.Health(ctx, &pb.HealthRequest{}, callOptions...)
	return callError(ctx, err, "health")
}

// Shutdown lets the plugin end what runs and close every environment until ctx's deadline (5 s without one). The plugin exits after that.
func (c *Client) Shutdown(ctx context.Context) error {
	req := &pb.ShutdownRequest{}
	if d, ok := ctx.Deadline(); ok {
		req.DeadlineMs = max(time.Until(d).Milliseconds()*9/10, 1)
	}
	_, err := c.rpc.Shutdown(ctx, req, callOptions...)
	return callError(ctx, err, "shut down")
}

// callError is the error of a call whose request was handed to the connection.
func callError(ctx context.Context, err error, what string) error {
	if err == nil {
		return nil
	}
	e := fromStatus(err, MayHaveRun)
	if ctx.Err() != nil && (errors.Is(e, ErrCanceled) || errors.Is(e, ErrTimeout)) {
		return canceled(ctx, MayHaveRun, what)
	}
	return e
}

// openError is the error of a stream that could not be opened: nothing was sent.
func openError(ctx context.Context, err error, what string) error {
	if ctx.Err() != nil {
		return canceled(ctx, NotStarted, what)
	}
	return fromStatus(err, NotStarted)
}

// remote is an Environment in a plugin.
type remote struct {
	rpc pb.BackendServiceClient
	id  string
}

var (
	_ Environment = (*remote)(nil)
	_ Dialer      = (*remote)(nil)
	_ Files       = (*remote)(nil)
)

// Close implements Environment.
func (e *remote) Close(ctx context.Context) error {
	_, err := e.rpc.CloseEnvironment(ctx, &pb.CloseEnvironmentRequest{Id: e.id}, callOptions...)
	return callError(ctx, err, "close")
}

// dialAddr connects to an address that a Dial was answered with.
func dialAddr(ctx context.Context, addr string) (io.ReadWriteCloser, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", addr)
	if err != nil {
		e := AsError(err, NotStarted)
		if e.Code == CodeInternal {
			e.Code = CodeUnavailable
		}
		return nil, e
	}
	return conn, nil
}

// Dial implements Dialer. The connection has a CloseWrite method.
func (e *remote) Dial(ctx context.Context, req DialRequest) (Endpoint, error) {
	// The connection outlives ctx, which is for the dialling only.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, cancel)
	end, err := e.dialUntil(ctx, life, cancel, &pb.DialStart{Environment: e.id, Path: req.Path, Stream: req.Stream})
	if !unhook() && err == nil && end.Conn != nil {
		err = canceled(ctx, NotStarted, "dial")
	}
	if err != nil || end.Conn == nil {
		cancel()
	}
	if err != nil {
		return Endpoint{}, err
	}
	return end, nil
}

func (e *remote) dialUntil(ctx, life context.Context, cancel context.CancelFunc, start *pb.DialStart) (Endpoint, error) {
	s, err := e.rpc.Dial(life, callOptions...)
	if err != nil {
		return Endpoint{}, openError(ctx, err, "dial")
	}
	if err := s.Send(&pb.DialRequest{Message: &pb.DialRequest_Start{Start: start}}); err != nil && !errors.Is(err, io.EOF) {
		return Endpoint{}, openError(ctx, err, "dial")
	}
	resp, err := s.Recv()
	if err != nil {
		return Endpoint{}, callError(ctx, noEOF(err), "dial")
	}
	switch m := resp.GetMessage().(type) {
	case *pb.DialResponse_Address:
		return Endpoint{Addr: m.Address}, nil
	case *pb.DialResponse_Connected:
		return Endpoint{Conn: newStreamConn(s, cancel)}, nil
	default:
		return Endpoint{}, errProtocol("dial: the first answer is neither an address nor a connection")
	}
}

// errProtocol describes a plugin that does not keep to the protocol.
func errProtocol(what string) error {
	return &Error{Code: CodeInternal, Delivery: MayHaveRun, Message: "backend plugin broke the protocol: " + what}
}

// noEOF replaces the end of a stream that must not end yet.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return errProtocol("the call ended too early")
	}
	return err
}

// streamConn is a connection that a Dial made, carried by its call.
type streamConn struct {
	stream grpc.BidiStreamingClient[pb.DialRequest, pb.DialResponse]
	cancel context.CancelFunc

	readMu sync.Mutex
	rest   []byte
	err    error

	writeMu sync.Mutex
	chunk   *pb.DialRequest_Data
	req     *pb.DialRequest
}

func newStreamConn(s grpc.BidiStreamingClient[pb.DialRequest, pb.DialResponse], cancel context.CancelFunc) *streamConn {
	chunk := &pb.DialRequest_Data{}
	return &streamConn{stream: s, cancel: cancel, chunk: chunk, req: &pb.DialRequest{Message: chunk}}
}

// Read implements io.Reader.
func (c *streamConn) Read(p []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	for len(c.rest) == 0 && c.err == nil {
		c.rest, c.err = c.receive()
	}
	if len(c.rest) == 0 && len(p) > 0 {
		return 0, c.err
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *streamConn) receive() ([]byte, error) {
	resp, err := c.stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, err
	}
	if err != nil {
		return nil, fromStatus(err, Ran)
	}
	if resp.GetDataEnd() != nil {
		return nil, io.EOF
	}
	return resp.GetData(), nil
}

// Write implements io.Writer.
func (c *streamConn) Write(p []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	written := 0
	for written < len(p) {
		n := min(len(p)-written, MaxChunk)
		c.chunk.Data = p[written : written+n]
		if err := c.stream.Send(c.req); err != nil {
			return written, io.ErrClosedPipe // why, Read says
		}
		written += n
	}
	return written, nil
}

// CloseWrite tells the far side that no more follows.
func (c *streamConn) CloseWrite() error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	return c.stream.CloseSend()
}

// Close ends the connection; blocked calls return.
func (c *streamConn) Close() error {
	c.cancel()
	return nil
}

// Put implements Files.
func (e *remote) Put(ctx context.Context, req PutRequest) error {
	if err := checkContent(req); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := e.rpc.Put(ctx, callOptions...)
	if err != nil {
		return openError(ctx, err, "put "+req.Path)
	}
	start := &pb.PutStart{Environment: e.id, Path: req.Path, Mode: req.Mode, Source: req.Source}
	err = s.Send(&pb.PutRequest{Message: &pb.PutRequest_Start{Start: start}})
	if err == nil && req.Content != nil {
		err = sendContent(s, req.Content)
	}
	// At io.EOF the far side has ended the call; its answer says why. Any other error is on this side, and nothing must be written there.
	if err != nil && !errors.Is(err, io.EOF) {
		return AsError(err, NotStarted)
	}
	_, err = s.CloseAndRecv()
	return callError(ctx, err, "put "+req.Path)
}

func sendContent(s grpc.ClientStreamingClient[pb.PutRequest, pb.PutResponse], r io.Reader) error {
	chunk := &pb.PutRequest_Data{}
	req := &pb.PutRequest{Message: chunk}
	buf := make([]byte, MaxChunk)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			chunk.Data = buf[:n]
			if err := s.Send(req); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return nil
		default:
			return Errorf(AsError(err, NotStarted).Code, NotStarted, "read the content: %w", err)
		}
	}
}

// Get implements Files.
func (e *remote) Get(ctx context.Context, path string, w io.Writer) (FileInfo, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := e.rpc.Get(ctx, &pb.GetRequest{Environment: e.id, Path: path}, callOptions...)
	if err != nil {
		return FileInfo{}, openError(ctx, err, "get "+path)
	}
	var got int64
	for {
		resp, err := s.Recv()
		if err != nil {
			return FileInfo{}, callError(ctx, noEOF(err), "get "+path)
		}
		if info := resp.GetInfo(); info != nil {
			if info.GetSize() != got {
				return FileInfo{}, errProtocol("get: size and content differ")
			}
			return FileInfo{Size: info.GetSize(), Mode: info.GetMode()}, nil
		}
		n, err := w.Write(resp.GetData())
		if err != nil {
			return FileInfo{}, Errorf(AsError(err, Ran).Code, Ran, "get %s: write the content: %w", path, err)
		}
		got += int64(n)
	}
}
