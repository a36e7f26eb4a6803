package launch

import (
	"context"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
)

var errGone = errors.New("the plugin has ended")

// link owns the connections to one plugin. go-plugin's client may wait on a connection under its lock and loses one
// that fails while it is set up; through link they can be cut and closed from outside.
type link struct {
	mu      sync.Mutex
	network string
	address string
	gone    bool
	conns   map[net.Conn]struct{}
	clients map[*grpc.ClientConn]struct{}
}

// at records the address that the handshake named.
func (l *link) at(network, address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.network, l.address = network, address
}

// dial is the dialer of the gRPC connection.
func (l *link) dial(ctx context.Context, _ string) (net.Conn, error) {
	l.mu.Lock()
	network, address, gone := l.network, l.address, l.gone
	l.mu.Unlock()
	if gone {
		return nil, errGone
	}

	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		_ = conn.Close()
		return nil, errGone
	}
	if l.conns == nil {
		l.conns = make(map[net.Conn]struct{})
	}
	l.conns[conn] = struct{}{}
	return conn, nil
}

// remember is a stream interceptor: the only place where go-plugin shows the connection it has just made.
func (l *link) remember(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	l.mu.Lock()
	if l.clients == nil {
		l.clients = make(map[*grpc.ClientConn]struct{})
	}
	l.clients[cc] = struct{}{}
	l.mu.Unlock()
	return streamer(ctx, desc, cc, method, opts...)
}

// cut breaks every connection and lets none be made.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	for conn := range l.conns {
		_ = conn.Close()
	}
	clear(l.conns)
}

// close closes the gRPC clients, and with them their goroutines.
func (l *link) close() {
	l.mu.Lock()
	clients := l.clients
	l.clients = nil
	l.mu.Unlock()
	for cc := range clients {
		_ = cc.Close() // already closed: fine
	}
}

// waitReady asks the health service that every go-plugin server has, so that a plugin which shook hands but does not
// serve fails here and not in the first call.
func waitReady(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "plugin"})
	return err
}
