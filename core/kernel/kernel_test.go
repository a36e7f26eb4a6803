package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core/cell"
)

// noTools refuses every call.
type noTools struct{}

func (noTools) Answer(call cell.Fields) cell.Fields {
	return cell.Fields{"t": "tool_refused", "cell": call.Text("cell"), "n": call.Int("n"), "reason": "no_tools"}
}

// runFake runs the cell with id "c" and returns its end, its output and the error.
func runFake(ctx context.Context, h *Host) (cell.Fields, string, error) {
	var out strings.Builder
	end, err := Kernel{"k", h}.Run(ctx, Submission{ID: "c", Code: "1"}, noTools{}, func(f cell.Frame) { out.Write(f.Data) })
	return end, out.String(), err
}

func TestACellRunsOnceHoweverOftenTheConnectionBreaks(t *testing.T) {
	const text = "the output of a cell"
	for every := 1; every <= len(text); every++ {
		fake := newFakeHost(t)
		fake.cell("c", text).end <- cell.Fields{"outcome": "ok"}
		fake.cut = func(sent int) bool { return sent%(every+1) == 0 }
		end, out, err := runFake(t.Context(), fake.conn(t))
		if err != nil || end.Text("outcome") != "ok" || out != text {
			t.Errorf("cut before every byte %d: end %v, output %q, error %v", every+1, end, out, err)
		}
		if len(fake.submits) != 1 {
			t.Errorf("cut before every byte %d: submitted %d times", every+1, len(fake.submits))
		}
	}
}

// What cannot be understood breaks the connection, and the host is asked over another one. That has an end, should it say nothing else.
func TestRubbishFromTheHostIsNotTheEndOfACell(t *testing.T) {
	for _, always := range []bool{false, true} {
		fake := newFakeHost(t)
		fake.cell("c", "abc").end <- cell.Fields{"outcome": "ok"}
		fake.rubbish = []byte{0, 0, 0, 2, 'X', 'Y'}
		fake.cut = func(sent int) bool { return sent == 2 || always && sent > 2 }
		end, out, err := runFake(t.Context(), fake.conn(t))
		if !always && (err != nil || end.Text("outcome") != "ok" || out != "abc") {
			t.Errorf("once: end %v, output %q, error %v", end, out, err)
		}
		if always && (!errors.Is(err, cell.ErrMalformed) || fake.dials < mostFutile) {
			t.Errorf("always: error %v after %d connections", err, fake.dials)
		}
		if len(fake.submits) != 1 {
			t.Errorf("submitted %d times", len(fake.submits))
		}
	}
}

func TestACellWhoseHostIsGoneIsUnknown(t *testing.T) {
	fake := newFakeHost(t)
	fake.cell("c", "abc")
	h := fake.conn(t)
	var out strings.Builder
	_, err := Kernel{"k", h}.Run(t.Context(), Submission{ID: "c"}, noTools{}, func(f cell.Frame) {
		if out.Write(f.Data); out.String() == "abc" {
			fake.kill()
		}
	})
	if !errors.Is(err, errGone) || !errors.Is(err, errNoJournal) || out.String() != "abc" {
		t.Errorf("output %q, error %v, want errGone and why nothing is left", out.String(), err)
	}
}

func TestAnotherIncarnationIsNotAsked(t *testing.T) {
	fake := newFakeHost(t)
	fake.cell("c", "").end <- cell.Fields{"outcome": "ok"}
	h := fake.conn(t)
	fake.inc = "inc-2"
	if err := h.Reach(t.Context()); !IsGone(err) {
		t.Errorf("Reach: got %v, want one that is gone", err)
	}
	if _, _, err := runFake(t.Context(), h); !errors.Is(err, ErrNeverSent) || !IsGone(err) || len(fake.submits) != 0 {
		t.Errorf("error %v after %d submits, want ErrNeverSent of one that is gone after none", err, len(fake.submits))
	}
}

func TestAWrongTokenIsSaidAtOnce(t *testing.T) {
	fake := newFakeHost(t)
	h := fake.conn(t)
	fake.denied = fmt.Errorf("a wrong token: %w", fs.ErrPermission)
	_, _, err := runFake(t.Context(), h)
	for _, want := range []error{fake.denied, fs.ErrPermission, ErrNeverSent} {
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if fake.dials != 1 || IsGone(err) {
		t.Errorf("after %d connections the host is gone: %v; want one, and that it is there", fake.dials, IsGone(err))
	}
}

func TestCancellingInterruptsTheCellAndWaitsForItsEnd(t *testing.T) {
	fake := newFakeHost(t)
	fake.cell("c", "x")
	h := fake.conn(t)
	ctx, cancel := context.WithCancel(t.Context())
	end, err := Kernel{"k", h}.Run(ctx, Submission{ID: "c"}, noTools{}, func(f cell.Frame) {
		if len(f.Data) > 0 {
			cancel()
		}
	})
	if err != nil || end.Text("outcome") != "interrupted" {
		t.Errorf("end %v, error %v", end, err)
	}
}

func TestCancellingBeforeTheSubmitRunsNothing(t *testing.T) {
	fake := newFakeHost(t)
	h := fake.conn(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := runFake(ctx, h); !errors.Is(err, ErrNotSubmitted) || len(fake.submits) != 0 {
		t.Errorf("error %v after %d submits, want ErrNotSubmitted after none", err, len(fake.submits))
	}
}

func TestARequestSurvivesABrokenConnection(t *testing.T) {
	fake := newFakeHost(t)
	h := fake.conn(t)
	l, err := h.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.update(func(s *linkState) { _ = s.conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := h.request(ctx, cell.Fields{"t": "state", "cell": "c"}); err != nil {
		t.Error(err)
	}
}

// deaf is a host that died a moment ago: what is written to it fails, and nothing has been read from it yet.
type deaf struct {
	fakeHost
	conns   int
	version int64 // of the frames
}

func (d *deaf) Connect(context.Context, cell.Fields) (io.ReadWriteCloser, cell.Fields, error) {
	if d.conns++; d.conns > 1 {
		return nil, nil, syscall.ECONNREFUSED
	}
	r, w := io.Pipe()
	return &deafConn{r, w}, cell.Fields{"inc": "inc-1", "v": d.version}, nil
}

type deafConn struct {
	*io.PipeReader
	w *io.PipeWriter
}

func (*deafConn) Write([]byte) (int, error) { return 0, syscall.EPIPE }
func (c *deafConn) Close() error            { return c.w.Close() }

func TestACellThatADeadHostDidNotTakeWasNeverSent(t *testing.T) {
	for _, version := range []int64{1, 2} {
		h := NewHost(&deaf{version: version}, Identity{Incarnation: "inc-1", Detached: true})
		t.Cleanup(func() { h.Close(t.Context()) })
		if _, _, err := runFake(t.Context(), h); !errors.Is(err, ErrNeverSent) || !IsGone(err) {
			t.Errorf("frames of version %d: got %v, want ErrNeverSent of one that is gone", version, err)
		}
	}
}

// A cell that could not be followed although its host is there is asked for in another way: it must not run later, when nobody expects it any more.
func TestACellThatCannotBeFollowedIsRevoked(t *testing.T) {
	fake := newFakeHost(t)
	fake.swallows = mostFutile + 1
	end, _, err := runFake(t.Context(), fake.conn(t))
	if err != nil || end.Text("outcome") != "refused" || end.Text("reason") != "no_kernel" || !end.Flag("kernel_alive") {
		t.Errorf("end %v, error %v, want refused by a kernel that is there", end, err)
	}
	if len(fake.submits) != 0 || fake.revokes != 1 {
		t.Errorf("%d submits, %d revokes, want one revoke", len(fake.submits), fake.revokes)
	}
}

// One that runs is followed after all.
func TestACellThatCannotBeRevokedIsFollowed(t *testing.T) {
	fake := newFakeHost(t)
	fake.cell("c", "text").end <- cell.Fields{"outcome": "ok"}
	fake.cut = func(sent int) bool { return sent <= mostFutile+1 }
	end, out, err := runFake(t.Context(), fake.conn(t))
	if err != nil || end.Text("outcome") != "ok" || out != "text" {
		t.Errorf("end %v, output %q, error %v", end, out, err)
	}
	if len(fake.submits) != 1 || fake.revokes != 1 {
		t.Errorf("%d submits, %d revokes, want one of each", len(fake.submits), fake.revokes)
	}
}

// Who only asks for a cell leaves it as it is, whatever comes of the question.
func TestACellThatIsAskedForIsNotRevoked(t *testing.T) {
	fake := newFakeHost(t)
	h := fake.conn(t)
	if _, err := h.Join(t.Context(), Joining{ID: "never"}, noTools{}, func(cell.Frame) {}); !errors.Is(err, ErrNoCell) {
		t.Errorf("got %v, want ErrNoCell", err)
	}
	fake.cell("c", "text")
	fake.submits = append(fake.submits, "c")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := h.Join(ctx, Joining{ID: "c"}, noTools{}, func(cell.Frame) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if fake.revokes != 0 {
		t.Errorf("%d revokes, want none", fake.revokes)
	}
}

// A tool call is answered while the cell waits for it, and is nothing that the sink has to know.
func TestAToolCallIsAnsweredBeforeTheCellGoesOn(t *testing.T) {
	fake := newFakeHost(t)
	c := fake.cell("c", "before and after")
	c.call = cell.Fields{"t": "tool", "cell": "c", "n": int64(3), "tool": "lookup", "args": []byte("{}")}
	c.end <- cell.Fields{"outcome": "ok"}
	h := fake.conn(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()

	var out strings.Builder
	var kinds []string
	end, err := Kernel{"k", h}.Run(ctx, Submission{ID: "c"}, noTools{}, func(f cell.Frame) {
		out.Write(f.Data)
		if f.Msg != nil {
			kinds = append(kinds, f.Msg.Text("t"))
		}
	})
	if err != nil || end.Text("outcome") != "ok" || out.String() != "before and after" {
		t.Fatalf("end %v, output %q, error %v", end, out.String(), err)
	}
	if diff := cmp.Diff([]string{"accepted"}, kinds); diff != "" {
		t.Errorf("messages in the sink (-want +got):\n%s", diff)
	}
	if _, err := h.request(ctx, cell.Fields{"t": "state", "cell": "c"}); err != nil { // whatever was sent before has arrived now
		t.Fatal(err)
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	want := []cell.Fields{{"t": "tool_refused", "cell": "c", "n": int64(3), "reason": "no_tools"}}
	if diff := cmp.Diff(want, fake.answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

func TestAHostThatIsNotThereIsGone(t *testing.T) {
	fake := newFakeHost(t)
	h := fake.conn(t)
	fake.kill()
	if err := h.Reach(t.Context()); !IsGone(err) {
		t.Errorf("Reach: got %v, want one that is gone", err)
	}
	_, _, err := runFake(t.Context(), h)
	if !errors.Is(err, ErrNeverSent) || !IsGone(err) {
		t.Errorf("Run: got %v, want ErrNeverSent of one that is gone", err)
	}
}

// What a living host says is not there is no sign that the host is not.
func TestEndingAKernelThatIsGone(t *testing.T) {
	fake := newFakeHost(t)
	h := fake.conn(t)
	if err := (Kernel{"k", h}).End(t.Context()); !errors.Is(err, fs.ErrNotExist) || IsGone(err) {
		t.Errorf("got %v, the host is gone: %v; want fs.ErrNotExist of one that is there", err, IsGone(err))
	}
}

func TestAClosedConversationIsOver(t *testing.T) {
	fake := newFakeHost(t)
	h := fake.conn(t)
	if err := h.Reach(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.Close(t.Context())
	if err := h.Reach(t.Context()); !IsGone(err) {
		t.Errorf("got %v, want one that is gone", err)
	}
}

// dumb is a host that lives and never answers.
type dumb struct{ fakeHost }

func (*dumb) Connect(context.Context, cell.Fields) (io.ReadWriteCloser, cell.Fields, error) {
	here, there := net.Pipe()
	go func() { // ends with the connection
		for {
			f, err := cell.ReadFrame(there, cell.MaxFrame)
			if err != nil {
				return
			}
			if f.Msg.Text("t") == "ping" {
				_, _ = there.Write(cell.EncodeMessage(cell.Fields{"t": "pong"}))
			}
		}
	}()
	return here, cell.Fields{"inc": "inc-1"}, nil
}

func TestAHostThatNeverAnswersIsNotWaitedForForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHost(&dumb{}, Identity{Incarnation: "inc-1", Detached: true})
		defer h.Close(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // should there be no bound
		defer cancel()
		begun := time.Now()
		if _, err := h.List(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
	})
}
