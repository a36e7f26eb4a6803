package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// dialer is a backend whose environment only dials.
type dialer func(context.Context, sdk.DialRequest) (sdk.Endpoint, error)

func (d dialer) Info(context.Context) (sdk.Info, error) {
	return sdk.Info{Name: "dialer", Version: "1", Capabilities: []sdk.Capability{sdk.CapSocket}}, nil
}

func (d dialer) Open(context.Context, sdk.OpenRequest) (sdk.Environment, error) {
	return dialerEnvironment{dial: d}, nil
}

type dialerEnvironment struct {
	sdk.UnimplementedEnvironment
	dial dialer
}

func (e dialerEnvironment) Dial(ctx context.Context, req sdk.DialRequest) (sdk.Endpoint, error) {
	return e.dial(ctx, req)
}

// byAddress answers with the path itself, as a backend on this machine may.
var byAddress = dialer(func(_ context.Context, req sdk.DialRequest) (sdk.Endpoint, error) {
	return sdk.Endpoint{Addr: req.Path}, nil
})

// byConn answers with a connection whatever was asked for, as a backend on another machine must.
var byConn = dialer(func(ctx context.Context, req sdk.DialRequest) (sdk.Endpoint, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", req.Path)
	return sdk.Endpoint{Conn: conn}, err
})

// listen serves each connection to a socket with handle until the test ends, and returns its path.
func listen(t *testing.T, handle func(*net.UnixConn)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "d") //nolint:usetesting // a socket path must fit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
				handle(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return path
}

// halfCloser is what the connection of a Dial can do.
type halfCloser interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// dial dials path over the wire and wants a connection.
func dial(t *testing.T, b sdk.Backend, path string) halfCloser {
	t.Helper()
	end, err := environment(t, b).(sdk.Dialer).Dial(t.Context(), sdk.DialRequest{Path: path, Stream: true})
	if err != nil {
		t.Fatal(err)
	}
	conn, ok := end.Conn.(halfCloser)
	if !ok || end.Addr != "" {
		t.Fatalf("got %+v, want a connection that can be half closed", end)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestDialAnswersWithAnAddress(t *testing.T) {
	end, err := environment(t, byAddress).(sdk.Dialer).Dial(t.Context(), sdk.DialRequest{Path: "/a/b"})
	if err != nil || end.Addr != "/a/b" || end.Conn != nil {
		t.Errorf("got %+v, %v, want the address alone", end, err)
	}
}

// TestDialCarriesBulkBothWays: an echo of many windows' size, read while it is written.
func TestDialCarriesBulkBothWays(t *testing.T) {
	for name, b := range map[string]dialer{"the backend's connection": byConn, "the SDK's, where the backend knows an address": byAddress} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, b, listen(t, func(c *net.UnixConn) { _, _ = io.Copy(c, struct{ io.Reader }{c}) }))
			in := make([]byte, 16<<20+5)
			for i := range in {
				in[i] = byte(i*i>>9 ^ i)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				if n, err := conn.Write(in); err != nil || n != len(in) {
					t.Errorf("write: %d, %v", n, err)
				}
				if err := conn.CloseWrite(); err != nil {
					t.Errorf("half close: %v", err)
				}
			})
			out, err := io.ReadAll(conn)
			wg.Wait()
			if err != nil || !bytes.Equal(out, in) {
				t.Errorf("%d bytes came back as %d other ones (%v)", len(in), len(out), err)
			}
		})
	}
}

// TestDialHalfCloses: each side can end its direction and go on with the other.
func TestDialHalfCloses(t *testing.T) {
	t.Run("the caller first", func(t *testing.T) {
		conn := dial(t, byConn, listen(t, func(c *net.UnixConn) {
			all, _ := io.ReadAll(c) // only a half close ends it
			_, _ = c.Write(append([]byte("got "), all...))
		}))
		_, _ = io.WriteString(conn, "a question")
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if out, err := io.ReadAll(conn); err != nil || string(out) != "got a question" {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("the far side first", func(t *testing.T) {
		got := make(chan string, 1)
		conn := dial(t, byConn, listen(t, func(c *net.UnixConn) {
			_, _ = io.WriteString(c, "hello")
			_ = c.CloseWrite()
			all, _ := io.ReadAll(c)
			got <- string(all)
		}))
		if out, err := io.ReadAll(conn); err != nil || string(out) != "hello" {
			t.Errorf("got %q, %v", out, err)
		}
		if _, err := io.WriteString(conn, "and an answer"); err != nil {
			t.Errorf("write after the far side's end: %v", err)
		}
		_ = conn.CloseWrite()
		if s := <-got; s != "and an answer" {
			t.Errorf("the far side got %q", s)
		}
	})
}

// TestDialOutlivesItsContext: ctx is for the dialling; Close ends the connection, on the far side too.
func TestDialOutlivesItsContext(t *testing.T) {
	gone := make(chan struct{})
	path := listen(t, func(c *net.UnixConn) {
		defer close(gone)
		_, _ = io.Copy(c, struct{ io.Reader }{c})
	})
	env := environment(t, byConn).(sdk.Dialer)
	ctx, cancel := context.WithCancel(t.Context())
	end, err := env.Dial(ctx, sdk.DialRequest{Path: path, Stream: true})
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4)
	_, _ = io.WriteString(end.Conn, "ping")
	if _, err := io.ReadFull(end.Conn, buf); err != nil || string(buf) != "ping" {
		t.Errorf("after ctx ended: %q, %v", buf, err)
	}

	blocked := make(chan error, 1)
	go func() {
		_, err := end.Conn.Read(buf)
		blocked <- err
	}()
	_ = end.Conn.Close()
	if err := <-blocked; err == nil {
		t.Error("a Read that was blocked at Close gave no error")
	}
	<-gone
	if _, err := end.Conn.Write(buf); err == nil {
		t.Error("a Write after Close gave no error")
	}

	if _, err := env.Dial(ctx, sdk.DialRequest{Path: path, Stream: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a ctx that has ended: %v", err)
	}
}

func TestDialFailures(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	refused := sdk.Errorf(sdk.CodePermission, sdk.NotStarted, "not yours")
	for name, c := range map[string]struct {
		backend sdk.Backend
		want    error
	}{
		"no such socket, dialled by the backend": {byConn, sdk.ErrNotFound},
		"no such socket, dialled by the SDK":     {byAddress, sdk.ErrNotFound},
		"no capability":                          {&fake{}, sdk.ErrUnsupported},
		"an error of the backend's":              {dialer(func(context.Context, sdk.DialRequest) (sdk.Endpoint, error) { return sdk.Endpoint{}, refused }), sdk.ErrPermission},
		"a panic":                                {dialer(func(context.Context, sdk.DialRequest) (sdk.Endpoint, error) { panic("oh no") }), sdk.ErrInternal},
	} {
		end, err := environment(t, c.backend).(sdk.Dialer).Dial(t.Context(), sdk.DialRequest{Path: missing, Stream: true})
		if !errors.Is(err, c.want) || end.Conn != nil {
			t.Errorf("%s: got %+v, %v, want %v", name, end, err, c.want)
		}
	}
}
