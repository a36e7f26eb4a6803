package sdk

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/hermes-framework/hermes/plugin/proto/hermes/backend/v1"
)

// Pipe serves b in this process, over a Unix socket and everything that lies between a host and a plugin, for tests of a backend.
// stop ends it as a host would, and returns when all of it has ended.
func Pipe(ctx context.Context, b Backend) (client *Client, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "hermes-pipe-")
	if err != nil {
		return nil, nil, Errorf(AsError(err, NotStarted).Code, NotStarted, "pipe: %w", err)
	}
	p := &pipe{dir: dir}
	if err := p.open(ctx, b); err != nil {
		return nil, nil, errors.Join(err, p.stop())
	}
	return NewClient(p.conn), p.stop, nil
}

type pipe struct {
	dir    string
	server *server
	grpc   *grpc.Server
	conn   *grpc.ClientConn
	served sync.WaitGroup
	once   sync.Once
	err    error
}

func (p *pipe) open(ctx context.Context, b Backend) error {
	path := filepath.Join(p.dir, "s")
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return Errorf(CodeInternal, NotStarted, "pipe: %w", err)
	}
	p.server = newServer(context.WithoutCancel(ctx), b, Logger())
	p.grpc = grpc.NewServer(serverOptions(nil)...)
	pb.RegisterBackendServiceServer(p.grpc, p.server)
	p.served.Go(func() { _ = p.grpc.Serve(l) }) // ends with grpc.Stop
	opts := append(DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	p.conn, err = grpc.NewClient("unix:"+path, opts...)
	if err != nil {
		return Errorf(CodeInternal, NotStarted, "pipe: %w", err)
	}
	return nil
}

func (p *pipe) stop() error {
	p.once.Do(func() { p.err = p.close() })
	return p.err
}

func (p *pipe) close() error {
	var errs []error
	if p.server != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.server.ctx), stopWait()+time.Second)
		defer cancel()
		errs = append(errs, p.server.close(ctx))
	}
	if p.conn != nil {
		errs = append(errs, p.conn.Close())
	}
	if p.grpc != nil {
		p.grpc.Stop()
	}
	p.served.Wait()
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}
