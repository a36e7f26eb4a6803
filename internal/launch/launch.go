// Package launch runs one verified, bounded go-plugin process.
//
// It stands between go-plugin's client and the operating system: the client gets a runner of ours, so that the bytes
// that run are the bytes that were checked, nothing that a plugin prints can hurt the host, and every wait has an end.
package launch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
)

// MaxMessage is the largest gRPC message that the host sends or accepts.
const MaxMessage = 16 << 20

const defaultStartTimeout = 10 * time.Second

// Spec says what to launch. It is a value: Start copies what it needs and never changes it, so one Spec serves any
// number of attempts.
type Spec struct {
	// Name is the backend's name, for messages.
	Name string
	// Path is the plugin's binary. With Trusted, empty means the running program.
	Path string
	// Trusted runs Path where it is: no copy, no checks. It is for the program itself.
	Trusted bool
	// Check decides whether the bytes with this SHA-256 (lower-case hex) may run. It is called once the copy that will
	// be executed is complete. Nil refuses everything; Trusted does not ask.
	Check func(sha256 string) error
	// Args are the arguments, without the program's name.
	Args []string
	// Env is added to the allow-listed part of the host's environment; of two entries with one name the last counts.
	Env []string
	// RuntimeDir is where the run directory is made. It must exist and be ours alone; see Start for what happens if its
	// path is too long for a socket or its file system executes nothing.
	RuntimeDir string
	// Handshake is the cookie and the protocol versions that this host speaks.
	Handshake Handshake
	// StartTimeout bounds everything from the start of the process to its first answer. 0 means 10 s.
	StartTimeout time.Duration
	// DialOptions are added to those of the connection.
	DialOptions []grpc.DialOption
	// Shutdown asks the plugin to end on its own, as the first step of Stop. Nil skips that step.
	Shutdown func(ctx context.Context, conn *grpc.ClientConn) error
	// Logger gets the plugin's log records and whatever else it prints. Nil means none.
	Logger *slog.Logger
}

// Handshake is what host and plugin agree on before they talk.
type Handshake struct {
	CookieKey   string
	CookieValue string
	Versions    []int
}

// Process is a plugin that has started and answered.
type Process struct {
	spec    Spec
	child   *child
	client  *goplugin.Client
	conn    *grpc.ClientConn
	version int
	steps   ladder
	stop    onceError
}

// Start launches the plugin and returns once it has answered. Cancelling ctx abandons the start; it does not end a
// plugin that has started. A failed start leaves nothing behind, and its error is an *Error.
//
// The run directory, which holds the socket and the verified copy, is made in Spec.RuntimeDir. Where that path is too long for a
// socket (108 bytes on Linux) or its file system is mounted noexec, a directory under /tmp is taken.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	spec = spec.clone()

	ctx, cancel := context.WithTimeoutCause(ctx, spec.StartTimeout, errStartTimeout)
	defer cancel()

	dir, binary, err := prepare(spec)
	if err != nil {
		return nil, err
	}

	p, err := connect(ctx, spec, newChild(spec, dir, binary))
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (s Spec) clone() Spec {
	s.Args = slices.Clone(s.Args)
	s.Env = slices.Clone(s.Env)
	s.Handshake.Versions = slices.Clone(s.Handshake.Versions)
	slices.Sort(s.Handshake.Versions)
	if s.StartTimeout <= 0 {
		s.StartTimeout = defaultStartTimeout
	}
	return s
}

// connect runs go-plugin's own start in a goroutine, because none of its waits take a context. The goroutine ends when
// the child is dead, and connect waits for it.
func connect(ctx context.Context, spec Spec, c *child) (*Process, error) {
	config, err := clientConfig(spec, c)
	if err != nil {
		c.discard()
		return nil, spec.fail(PhaseExec, KindInternal, "no certificate: "+err.Error(), err)
	}
	p := &Process{spec: spec, child: c, client: goplugin.NewClient(config), steps: defaultLadder}

	answered := make(chan error, 1)
	go func() { answered <- p.dispense(ctx) }() // waited for below: it ends with ctx or the process

	select {
	case err = <-answered:
	case <-ctx.Done():
		c.kill()
		<-answered //nolint:errcheck // it says how the kill looked from there
		err = ctx.Err()
	}
	if err != nil {
		if ctx.Err() != nil { // whatever else it may look like
			err = &gaveUpError{context.Cause(ctx)}
		}
		return nil, p.abandon(err)
	}
	p.version = p.client.NegotiatedVersion()
	return p, nil
}

// dispense starts the process, reads its handshake and makes the connection. The first stream of go-plugin's client
// proves that the plugin answers.
func (p *Process) dispense(ctx context.Context) error {
	protocol, err := p.client.Client()
	if err != nil {
		return err
	}
	raw, err := protocol.Dispense(pluginKey)
	if err != nil {
		return err
	}
	conn, ok := raw.(*grpc.ClientConn)
	if !ok {
		return fmt.Errorf("unexpected client type %T", raw)
	}
	p.conn = conn
	return waitReady(ctx, conn)
}

// abandon clears up after a failed start and explains it.
func (p *Process) abandon(err error) error {
	c := p.child
	if !c.started() {
		c.discard()
		return c.explain(err)
	}
	c.settle()
	c.kill()
	if stuck := p.clear(); stuck != nil {
		return p.spec.fail(PhaseHandshake, KindInternal, stuck.Error(), err)
	}
	return c.explain(err)
}

func clientConfig(spec Spec, c *child) (*goplugin.ClientConfig, error) {
	cert, certPEM, err := newCertificate()
	if err != nil {
		return nil, err
	}
	c.certPEM = certPEM

	sets := make(map[int]goplugin.PluginSet, len(spec.Handshake.Versions))
	for _, v := range spec.Handshake.Versions {
		sets[v] = goplugin.PluginSet{pluginKey: connPlugin{}}
	}
	return &goplugin.ClientConfig{
		HandshakeConfig: goplugin.HandshakeConfig{
			MagicCookieKey:   spec.Handshake.CookieKey,
			MagicCookieValue: spec.Handshake.CookieValue,
		},
		VersionedPlugins: sets,
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			c.pluginEnv = cmd.Env
			return c, nil
		},
		// Mutual TLS as AutoMTLS does it, but with a P-256 key: generating and using go-plugin's P-521 key takes tens of milliseconds.
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{cert},
			MinVersion:   tls.VersionTLS13,
			ServerName:   "localhost",
		},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		GRPCDialOptions: append(slices.Clone(spec.DialOptions),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
			grpc.WithContextDialer(c.link.dial),
			grpc.WithChainStreamInterceptor(c.link.remember),
		),
		StartTimeout:     2 * spec.StartTimeout, // ours comes first
		Logger:           hclog.NewNullLogger(), // our filters log
		SkipHostEnv:      true,
		SyncStdout:       c.stdout.remote(),
		SyncStderr:       c.stderr.remote(),
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: c.dir.path},
	}, nil
}

// Conn is the connection to the plugin. It fails once the plugin has ended.
func (p *Process) Conn() *grpc.ClientConn { return p.conn }

// PID is the plugin's process id.
func (p *Process) PID() int { return p.child.pid() }

// Version is the protocol version that host and plugin agreed on.
func (p *Process) Version() int { return p.version }

// RunDir is the directory that this launch has to itself.
func (p *Process) RunDir() string { return p.child.dir.path }

// Done is closed when the process has ended, its last output has been read, and Exit says why.
func (p *Process) Done() <-chan struct{} { return p.child.done }

// Exit says how the process ended. It waits for Done.
func (p *Process) Exit() Exit {
	<-p.child.done
	return p.child.exit
}

// pluginKey is go-plugin's name for what we dispense; it does not cross the wire.
const pluginKey = "backend"

// connPlugin hands out the connection itself: what is spoken over it is not launch's concern.
type connPlugin struct {
	goplugin.NetRPCUnsupportedPlugin
}

var _ goplugin.GRPCPlugin = connPlugin{}

func (connPlugin) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error {
	return errors.ErrUnsupported
}

func (connPlugin) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// argv0 is the name that the process is told it has.
func (s Spec) argv0(binary string) string {
	if s.Path != "" {
		return s.Path
	}
	if self, err := os.Executable(); err == nil {
		return self
	}
	return binary
}

// joinVersions prints protocol versions for a message.
func joinVersions(vs []int) string {
	parts := make([]string, len(vs))
	for i, v := range vs {
		parts[i] = fmt.Sprint(v)
	}
	return strings.Join(parts, ", ")
}
