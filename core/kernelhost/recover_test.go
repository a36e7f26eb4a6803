package kernelhost

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugins/local"
)

// muted is a host whose connections say nothing more after a mark in a cell's output, until it is killed.
type muted struct {
	*Host
	mark  []byte
	heard chan struct{} // closed when the mark came
	dead  chan struct{} // closed when the host was killed
	once  atomic.Bool
}

func (m *muted) Connect(ctx context.Context, hello cell.Fields) (io.ReadWriteCloser, cell.Fields, error) {
	conn, welcome, err := m.Host.Connect(ctx, hello)
	if err != nil {
		return nil, nil, err
	}
	return &mutedConn{conn, m}, welcome, nil
}

type mutedConn struct {
	io.ReadWriteCloser
	host *muted
}

func (c *mutedConn) Read(b []byte) (int, error) {
	if c.host.once.Load() {
		<-c.host.dead
		return 0, io.EOF
	}
	n, err := c.ReadWriteCloser.Read(b[:min(len(b), 1)]) // one by one: what follows the mark stays unread
	c.host.mark = append(c.host.mark, b[:n]...)
	if bytes.HasSuffix(c.host.mark, []byte("MARK")) && !c.host.once.Swap(true) {
		close(c.host.heard)
	}
	return n, err
}

// TestAResultThatNobodySawIsInTheJournal, by each way to attach: the host is killed when the cell has ended, and before the engine knows.
func TestAResultThatNobodySawIsInTheJournal(t *testing.T) {
	python := pythons(t)[0]
	for name, caps := range map[string][]sdk.Capability{
		"socket": {sdk.CapSocket, sdk.CapStdin, sdk.CapStream},
		"relay":  {sdk.CapStdin, sdk.CapStream},
		"calls":  {sdk.CapStdin},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			env, err := local.New().Open(ctx, sdk.OpenRequest{ID: name, Target: "local:"})
			if err != nil {
				t.Fatal(err)
			}
			h := &muted{
				Host:  &Host{Place: &Place{Name: "local:", Env: env, Caps: caps, Interpreter: python}, Token: NewToken()},
				heard: make(chan struct{}), dead: make(chan struct{}),
			}
			if h.Info, err = Start(ctx, h.Place, h.Token, false); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.Remove(h.Info.Journal) }()
			k := kernel.NewHost(h, kernel.Identity{Incarnation: h.Info.Incarnation})
			opened, err := k.Open(ctx, kernel.OpenRequest{Language: cell.Python})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.Recover(ctx, "c"); !errors.Is(err, sdk.ErrConflict) || !strings.Contains(err.Error(), "local: ask the journal") {
				t.Errorf("while the host lives: got %v, want ErrConflict", err)
			}
			go func() { // ends with the kill
				defer close(h.dead)
				select {
				case <-h.heard:
				case <-ctx.Done():
					return
				}
				for data := []byte(nil); !bytes.Contains(data, []byte("finished")) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) { // a file of others: no event
					data, _ = os.ReadFile(h.Info.Journal)
				}
				_ = syscall.Kill(h.Info.PID, syscall.SIGKILL)
			}()
			const code = "import sys\nprint('MA' + 'RK', flush=True)\nprint('x' * 3_000_000)\nprint('err', file=sys.stderr)\n6 * 7"
			var got [3]strings.Builder
			var gaps int64
			end, err := opened.Kernel.Run(ctx, kernel.Submission{ID: "c", Code: code}, noTools{}, func(f cell.Frame) {
				if f.Msg == nil {
					got[f.Stream].Write(f.Data)
				} else if f.Msg.Text("t") == "gap" {
					gaps += f.Msg.Int("to") - f.Msg.Int("from")
				}
			})
			if err != nil || end.Text("outcome") != "ok" || end.Text("value") != "42" || !end.Flag("host_gone") {
				t.Errorf("end %v, error %v", end, err)
			}
			const total = 5 + 3_000_001
			if out := got[1].String(); end.Int("out") != total || int64(len(out))+gaps != total || len(out) < 1<<20 || !strings.HasPrefix(out, "MARK\nxxx") || !strings.HasSuffix(out, "x\n") {
				t.Errorf("%d bytes of output, %d left out, of %d", len(out), gaps, end.Int("out"))
			}
			if got[2].String() != "err\n" {
				t.Errorf("stderr %q", got[2].String())
			}
			if left, err := h.Recover(ctx, "another"); err != nil || left.Text("state") != "none" {
				t.Errorf("a cell that never came: %v, %v", left, err)
			}
			if err := os.Remove(h.Info.Journal); err != nil {
				t.Error(err)
			}
			if _, err := h.Recover(ctx, "c"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("without a journal: got %v, want fs.ErrNotExist", err)
			}
			if _, err := (&Host{Place: h.Place}).Recover(ctx, "c"); !errors.Is(err, sdk.ErrUnsupported) {
				t.Errorf("of a host that kept none: got %v, want ErrUnsupported", err)
			}
			k.Close(ctx)
			if err := env.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

type noTools struct{}

func (noTools) Answer(cell.Fields) cell.Fields { return cell.Fields{"t": "tool_refused"} }

// The loader asks for the source where nobody has left it.
func TestRecoverSendsTheSourceIfItMust(t *testing.T) {
	env := &scripted{stdout: "hermes-need-source\n", status: sdk.ExitStatus{Code: 3}}
	h := &Host{Place: &Place{Name: "fake:", Env: env}, Info: Info{Journal: "/j", Executable: "py"}}
	if _, err := h.Recover(t.Context(), "c"); !errors.Is(err, cell.ErrMalformed) || env.execs != 2 {
		t.Errorf("after %d commands: %v; want two, and that the answer makes no sense", env.execs, err)
	}
	env.stdout = line("hermes-ready", cell.Fields{"state": "finished", "out": []any{[]any{0, bytes.Repeat([]byte("x"), 4<<20)}}})
	if left, err := h.Recover(t.Context(), "c"); err != nil || left.Text("state") != "finished" {
		t.Errorf("an answer of 8 MiB: %v", err)
	}
}
