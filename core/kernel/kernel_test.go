package core

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hermes-framework/hermes/plugin"
)

// runFake runs the cell with id "c" and returns its end, its output and the error.
func runFake(ctx context.Context, h *hostConn) (fields, string, error) {
	var out strings.Builder
	end, err := h.run(ctx, submission{id: "c", kernel: "k", code: "1", digest: []byte{1}}, func(f frame) { out.Write(f.data) })
	return end, out.String(), err
}

func TestACellRunsOnceHoweverOftenTheConnectionBreaks(t *testing.T) {
	const text = "the output of a cell"
	for every := 1; every <= len(text); every++ {
		fake := newFakeHost(t)
		fake.cell("c", text).end <- fields{"outcome": "ok"}
		fake.cut = func(sent int) bool { return sent%(every+1) == 0 }
		end, out, err := runFake(t.Context(), fake.conn(t))
		if err != nil || end.str("outcome") != "ok" || out != text {
			t.Errorf("cut before every byte %d: end %v, output %q, error %v", every+1, end, out, err)
		}
		if len(fake.submits) != 1 {
			t.Errorf("cut before every byte %d: submitted %d times", every+1, len(fake.submits))
		}
	}
}

func TestACellWhoseHostIsGoneIsUnknown(t *testing.T) {
	fake := newFakeHost(t)
	fake.cell("c", "abc")
	h := fake.conn(t)
	var out strings.Builder
	_, err := h.run(t.Context(), submission{id: "c"}, func(f frame) {
		if out.Write(f.data); out.String() == "abc" {
			fake.kill()
		}
	})
	if !errors.Is(err, errHostGone) || out.String() != "abc" {
		t.Errorf("output %q, error %v, want errHostGone", out.String(), err)
	}
}

// hangs is an environment whose commands never end by themselves.
type hangs struct {
	plugin.UnimplementedEnvironment
}

func (hangs) Exec(ctx context.Context, _ plugin.Command, _ plugin.IO) (plugin.ExitStatus, error) {
	<-ctx.Done()
	return plugin.ExitStatus{}, plugin.Errorf(plugin.CodeCanceled, plugin.Ran, "%w", ctx.Err())
}

func TestAnInterpreterThatHangsIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{name: "fake:", env: hangs{}, caps: []plugin.Capability{plugin.CapStdin}, interpreter: "slow"}
		_, err := startHost(t.Context(), p, newToken(), false)
		if e := plugin.AsError(err, plugin.MayHaveRun); e.Code != plugin.CodeUnavailable || e.Delivery != plugin.NotStarted || e.Hint == "" {
			t.Errorf("got %s, %s, hint %q: %v", e.Code, e.Delivery, e.Hint, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = startHost(ctx, p, newToken(), false)
		if e := plugin.AsError(err, plugin.MayHaveRun); e.Code != plugin.CodeCanceled || e.Delivery != plugin.NotStarted {
			t.Errorf("cancelled: got %s, %s: %v", e.Code, e.Delivery, err)
		}
	})
}

func TestAnotherIncarnationIsNotAsked(t *testing.T) {
	fake := newFakeHost(t)
	fake.cell("c", "")
	h := fake.conn(t)
	fake.inc = "inc-2"
	if _, _, err := runFake(t.Context(), h); !errors.Is(err, errHostGone) || len(fake.submits) != 0 {
		t.Errorf("error %v after %d submits, want errHostGone after none", err, len(fake.submits))
	}
}

func TestAWrongTokenIsSaidAtOnce(t *testing.T) {
	fake := newFakeHost(t)
	h := fake.conn(t)
	h.token = newToken()
	if _, _, err := runFake(t.Context(), h); !errors.Is(err, errWrongToken) {
		t.Errorf("got %v, want errWrongToken", err)
	}
}

func TestCancellingInterruptsTheCellAndWaitsForItsEnd(t *testing.T) {
	fake := newFakeHost(t)
	fake.cell("c", "x")
	h := fake.conn(t)
	ctx, cancel := context.WithCancel(t.Context())
	end, err := h.run(ctx, submission{id: "c"}, func(f frame) {
		if len(f.data) > 0 {
			cancel()
		}
	})
	if err != nil || end.str("outcome") != "interrupted" {
		t.Errorf("end %v, error %v", end, err)
	}
}

func TestCancellingBeforeTheSubmitRunsNothing(t *testing.T) {
	fake := newFakeHost(t)
	h := fake.conn(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := runFake(ctx, h); !errors.Is(err, errNotSubmitted) || len(fake.submits) != 0 {
		t.Errorf("error %v after %d submits, want errNotSubmitted after none", err, len(fake.submits))
	}
}

func TestARequestSurvivesABrokenConnection(t *testing.T) {
	fake := newFakeHost(t)
	h := fake.conn(t)
	l, err := h.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = l.conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := h.request(ctx, fields{"t": "state", "cell": "c"}); err != nil {
		t.Error(err)
	}
}
