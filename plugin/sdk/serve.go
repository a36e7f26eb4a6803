package sdk

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pb "github.com/hermes-framework/hermes/plugin/proto/hermes/backend/v1"
)

// Grace is how long a process gets between the polite signal and KILL. A program may set it before it serves.
var Grace = 2 * time.Second

// Logger is where a backend logs while it is served: the host turns the records into its own. Before, it writes to stderr all the same.
func Logger() hclog.Logger { return logger() }

var logger = sync.OnceValue(func() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: os.Stderr, JSONFormat: true})
})

// ServeOption changes how Serve works.
type ServeOption func(*serveConfig)

type serveConfig struct {
	log      hclog.Logger
	deadline time.Duration
}

// WithLogger makes Serve log to l instead of Logger.
func WithLogger(l hclog.Logger) ServeOption {
	return func(c *serveConfig) { c.log = l }
}

// WithStopDeadline bounds what a plugin whose host is gone does to end its work, before it exits regardless. The default is 5 s.
func WithStopDeadline(d time.Duration) ServeOption {
	return func(c *serveConfig) { c.deadline = d }
}

// Serve serves b to the host that started this process and returns when the host wants no more of it: after a Shutdown, when the
// process' stdin ends (the host is gone) and at SIGTERM. Everything that b started has then been told to end.
// In a process that no host started it says so and exits with status 1. The backend may be a program's only one or built into another:
//
//	func main() { sdk.Serve(myBackend{}) }
func Serve(b Backend, opts ...ServeOption) {
	cfg := serveConfig{log: Logger(), deadline: defaultDeadline}
	for _, opt := range opts {
		opt(&cfg)
	}
	if os.Getenv(CookieKey) != CookieValue {
		fmt.Fprintf(os.Stderr, "%s is a Hermes backend plugin and is not run by hand; hermes starts it when a target needs it (see: hermes plugin ls)\n", programName())
		os.Exit(1) //nolint:forbidigo // documented; the author's main has nothing left to do
	}
	if err := serve(b, cfg); err != nil {
		cfg.log.Error("serve", "error", err)
		os.Exit(1) //nolint:forbidigo // documented; the host reads the status
	}
}

func programName() string {
	name := os.Args[0]
	return name[strings.LastIndexByte(name, '/')+1:]
}

// serve runs go-plugin's server, which offers no way to stop it but its gRPC server, and stops that when it is time.
func serve(b Backend, cfg serveConfig) error {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // the root: Serve is all that main does
	defer cancel()
	s := newServer(ctx, b, cfg.log)
	p := &goPlugin{server: s}

	// Before the handshake is printed: whoever reads it may send the signal at once.
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	defer signal.Stop(term)

	var served error
	ended := make(chan struct{})
	go func() { // ends when p is stopped
		defer close(ended)
		served = p.serve(cfg.log)
	}()

	select {
	case <-ended:
	case <-s.done: // the host stops the process once it has the answer, or ends its stdin
		wait := time.NewTimer(time.Second)
		defer wait.Stop()
		select {
		case <-stdinEnd():
		case <-ended:
		case <-wait.C:
		}
	case <-stdinEnd():
	case <-term:
	}

	ctx, cancelClose := context.WithTimeout(ctx, cfg.deadline)
	defer cancelClose()
	err := s.close(ctx)
	p.stop()
	select {
	case <-ended: // its socket is removed
		err = errors.Join(served, err)
	case <-ctx.Done():
	}
	return err
}

// stdinEnd is closed when the process' stdin has ended: its host holds the other end. A host that gives no pipe says nothing by it.
var stdinEnd = sync.OnceValue(func() <-chan struct{} {
	fi, err := os.Stdin.Stat()
	if err != nil || fi.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return nil
	}
	end := make(chan struct{})
	go func() { // lives as long as the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(end)
	}()
	return end
})

// goPlugin is the backend as go-plugin sees it.
type goPlugin struct {
	goplugin.NetRPCUnsupportedPlugin
	server *server

	mu   sync.Mutex
	grpc *grpc.Server
}

var _ goplugin.GRPCPlugin = (*goPlugin)(nil)

func (p *goPlugin) serve(log hclog.Logger) error {
	config := &goplugin.ServeConfig{
		HandshakeConfig: goplugin.HandshakeConfig{
			ProtocolVersion:  ProtocolVersion,
			MagicCookieKey:   CookieKey,
			MagicCookieValue: CookieValue,
		},
		Plugins:    goplugin.PluginSet{PluginName: p},
		Logger:     log,
		GRPCServer: p.newGRPCServer,
	}
	if host := os.Getenv("PLUGIN_CLIENT_CERT"); host != "" {
		tlsConfig, der, err := mutualTLS(host)
		if err != nil {
			return err
		}
		config.TLSProvider = func() (*tls.Config, error) { return tlsConfig, nil }
		restore, err := announce(der)
		if err != nil {
			return err
		}
		defer restore()
	}
	goplugin.Serve(config)
	return nil
}

func (p *goPlugin) newGRPCServer(opts []grpc.ServerOption) *grpc.Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.grpc = grpc.NewServer(serverOptions(opts)...)
	return p.grpc
}

// stop ends go-plugin's server.
func (p *goPlugin) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.grpc != nil {
		p.grpc.Stop()
	}
}

// GRPCServer registers the backend. go-plugin has read its variables by now: nothing that the backend starts should find them.
func (p *goPlugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	for _, kv := range os.Environ() {
		key, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(key, "PLUGIN_") || key == CookieKey {
			_ = os.Unsetenv(key)
		}
	}
	pb.RegisterBackendServiceServer(s, p.server)
	return nil
}

// GRPCClient makes a *Client of go-plugin's connection.
func (p *goPlugin) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, cc *grpc.ClientConn) (any, error) {
	return NewClient(cc), nil
}
