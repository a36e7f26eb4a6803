package kernelhost

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugins/local"
)

// cutting is a kernel host whose first connection breaks after a number of bytes in either direction.
type cutting struct {
	*Host
	up, down int // negative: never
	conns    int
}

func (c *cutting) Connect(ctx context.Context, hello cell.Fields) (io.ReadWriteCloser, cell.Fields, error) {
	conn, welcome, err := c.Host.Connect(ctx, hello)
	if c.conns++; err == nil && c.conns == 1 {
		conn = &cutConn{ReadWriteCloser: conn, up: c.up, down: c.down}
	}
	return conn, welcome, err
}

type cutConn struct {
	io.ReadWriteCloser
	up, down int
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.up < 0 || len(p) <= c.up {
		c.up = max(-1, c.up-len(p))
		return c.ReadWriteCloser.Write(p)
	}
	n, _ := c.ReadWriteCloser.Write(p[:c.up])
	c.up = 0
	_ = c.Close()
	return n, io.ErrClosedPipe
}

func (c *cutConn) Read(p []byte) (int, error) {
	if c.down < 0 {
		return c.ReadWriteCloser.Read(p)
	}
	if c.down == 0 {
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.ReadWriteCloser.Read(p[:min(len(p), c.down)])
	c.down -= n
	return n, err
}

// TestAConnectionToARealHostIsCutAtEveryByte of a cell's conversation: the cell runs once, its output comes whole.
func TestAConnectionToARealHostIsCutAtEveryByte(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	env, err := local.New().Open(ctx, sdk.OpenRequest{ID: t.Name(), Target: "local:"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = env.Close(ctx) }()
	p := &Place{Name: "local:", Env: env, Caps: []sdk.Capability{sdk.CapSocket, sdk.CapStdin, sdk.CapStream}, Interpreter: pythons(t)[0]}
	h := &Host{Place: p, Token: NewToken()}
	if h.Info, err = Start(ctx, p, h.Token, false); err != nil {
		t.Fatal(err)
	}
	owner := kernel.NewHost(h, kernel.Identity{Incarnation: h.Info.Incarnation})
	defer owner.Close(ctx)
	opened, err := owner.Open(ctx, kernel.OpenRequest{Language: cell.Python})
	if err != nil {
		t.Fatal(err)
	}
	ran := filepath.Join(t.TempDir(), "ran")
	const most, step = 900, 3
	var ids []string
	for at := 0; at < most; at += step {
		for _, c := range []*cutting{{Host: h, up: at, down: -1}, {Host: h, up: -1, down: at}} {
			id := fmt.Sprintf("%d/%d", c.up, c.down)
			ids = append(ids, id)
			conversation := kernel.NewHost(c, kernel.Identity{Incarnation: h.Info.Incarnation, Detached: true})
			code := fmt.Sprintf("for i in range(9): print(i, '.' * 20, flush=True)\nwith open(%q, 'a') as f: f.write(%q + '\\n')", ran, id)
			var out strings.Builder
			k := kernel.Kernel{ID: opened.Kernel.ID, Host: conversation}
			end, err := k.Run(ctx, kernel.Submission{ID: id, Language: cell.Python, Code: code}, noTools{}, func(f cell.Frame) { out.Write(f.Data) })
			var want strings.Builder
			for i := range 9 {
				fmt.Fprintln(&want, i, strings.Repeat(".", 20))
			}
			if err != nil || end.Text("outcome") != "ok" || out.String() != want.String() {
				t.Fatalf("cut after %d bytes there, %d back: end %v, error %v, output %q", c.up, c.down, end, err, out.String())
			}
			conversation.Close(ctx)
		}
	}
	data, err := os.ReadFile(ran)
	if got := strings.Fields(string(data)); err != nil || strings.Join(got, " ") != strings.Join(ids, " ") {
		t.Errorf("%d cells ran %d times (%v): %v", len(ids), len(got), err, got)
	}
}

// cuttable is a kernel host whose connection can be cut.
type cuttable struct {
	*Host
	mu   sync.Mutex
	conn io.Closer
}

func (c *cuttable) Connect(ctx context.Context, hello cell.Fields) (io.ReadWriteCloser, cell.Fields, error) {
	conn, welcome, err := c.Host.Connect(ctx, hello)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	return conn, welcome, err
}

func (c *cuttable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.Close()
}

// BenchmarkReconnect is the time from a cut connection to the next output of a cell that prints all the time.
func BenchmarkReconnect(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	env, err := local.New().Open(ctx, sdk.OpenRequest{ID: b.Name(), Target: "local:"})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = env.Close(context.Background()) }()
	p := &Place{Name: "local:", Env: env, Caps: []sdk.Capability{sdk.CapSocket, sdk.CapStdin, sdk.CapStream}, Interpreter: "python3"}
	c := &cuttable{Host: &Host{Place: p, Token: NewToken()}}
	if c.Info, err = Start(ctx, p, c.Token, false); err != nil {
		b.Fatal(err)
	}
	owner := kernel.NewHost(c, kernel.Identity{Incarnation: c.Info.Incarnation})
	defer owner.Close(context.Background())
	opened, err := owner.Open(ctx, kernel.OpenRequest{Language: cell.Python})
	if err != nil {
		b.Fatal(err)
	}
	came := make(chan int64)
	var wg sync.WaitGroup
	wg.Go(func() { // ends when the cell is cancelled
		code := "import time\nwhile True:\n    print('x', flush=True)\n    time.sleep(0.001)"
		sub := kernel.Submission{ID: "c", Language: cell.Python, Code: code}
		_, _ = opened.Kernel.Run(ctx, sub, noTools{}, func(f cell.Frame) {
			select {
			case came <- f.Offset:
			case <-ctx.Done():
			}
		})
	})
	for range 3 {
		<-came
	}
	for b.Loop() {
		c.cut()
		<-came // it was on its way to us, perhaps
		<-came
	}
	cancel()
	wg.Wait()
}
