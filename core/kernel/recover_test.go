package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core/cell"
)

// dying runs the cell "c", whose host dies when the sink has the three bytes that it sent, and leaves left behind.
func dying(t *testing.T, left cell.Fields) (end cell.Fields, seen []string, err error) {
	fake := newFakeHost(t)
	fake.cell("c", "abc")
	fake.left = func(id string) (cell.Fields, error) {
		if id != "c" {
			return nil, fmt.Errorf("asked for %q", id)
		}
		return left, nil
	}
	h := fake.conn(t)
	end, err = Kernel{"k", h}.Run(t.Context(), Submission{ID: "c"}, noTools{}, func(f cell.Frame) {
		switch {
		case f.Msg == nil:
			seen = append(seen, fmt.Sprintf("%d@%d %.20s", f.Stream, f.Offset, f.Data))
		case f.Msg.Text("t") == "gap":
			seen = append(seen, fmt.Sprintf("%d gap %d-%d", f.Msg.Int("stream"), f.Msg.Int("from"), f.Msg.Int("to")))
		}
		if f.Msg == nil && f.Stream == cell.StreamOut && f.Offset == 2 {
			fake.kill()
		}
	})
	return end, seen, err
}

func TestACellWhoseHostWasKilled(t *testing.T) {
	for state, want := range map[string]string{
		"none": "refused no_kernel", "accepted": "refused no_kernel", "started": "lost the kernel host was killed while the cell ran", "revoked": "refused revoked",
	} {
		end, _, err := dying(t, cell.Fields{"state": state, "digest": Submission{ID: "c"}.Digest()})
		if got := end.Text("outcome") + " " + end.Text("reason"); err != nil || got != want || !end.Flag("host_gone") || end.Flag("kernel_alive") {
			t.Errorf("%s: %v, error %v; want %s", state, end, err, want)
		}
	}
	for _, left := range []cell.Fields{{"state": "unknown"}, {"state": "expired"}, {"state": "finished"}, {"state": "from a later version"}, {}} {
		if end, _, err := dying(t, left); !errors.Is(err, errGone) || end != nil {
			t.Errorf("%v: end %v, error %v; want none, and errGone", left, end, err)
		}
	}
	end, _, err := dying(t, cell.Fields{"state": "started", "digest": []byte("another's")})
	if err != nil || end.Text("reason") != "conflict" {
		t.Errorf("another cell has the id: %v, error %v", end, err)
	}
}

func TestTheOutputOfARecoveredCellGoesOnWhereItWas(t *testing.T) {
	ended := func(out, errs int64) cell.Fields {
		return cell.Fields{"outcome": "ok", "value": "42", "kernel_alive": true, "out": out, "err": errs}
	}
	part := func(from int, text string) any { return []any{int64(from), []byte(text)} }
	long := strings.Repeat("x", replayChunk)
	for name, c := range map[string]struct {
		left cell.Fields
		want []string
	}{
		"whole":         {cell.Fields{"end": ended(6, 2), "out": []any{part(0, "abcdef")}, "err": []any{part(0, "no")}}, []string{"1@3 def", "2@0 no"}},
		"all was there": {cell.Fields{"end": ended(3, 0), "out": []any{part(0, "abc")}}, nil},
		"head and tail": {cell.Fields{"end": ended(12, 0), "out": []any{part(0, "abcd"), part(10, "kl")}}, []string{"1@3 d", "1 gap 4-10", "1@10 kl"}},
		"head was seen": {cell.Fields{"end": ended(12, 0), "out": []any{part(0, "a"), part(10, "kl")}}, []string{"1 gap 3-10", "1@10 kl"}},
		"nothing kept":  {cell.Fields{"end": ended(9, 1)}, []string{"1 gap 3-9", "2 gap 0-1"}},
		"in chunks":     {cell.Fields{"end": ended(3+2*replayChunk, 0), "out": []any{part(3, long+long)}}, []string{"1@3 " + long[:20], fmt.Sprintf("1@%d %s", 3+replayChunk, long[:20])}},
		"odd parts":     {cell.Fields{"end": ended(4, 0), "out": []any{"x", []any{}, part(0, "abcd")}}, []string{"1@3 d"}},
	} {
		c.left["state"] = "finished"
		end, seen, err := dying(t, c.left)
		if err != nil || end.Text("value") != "42" || !end.Flag("host_gone") || end.Flag("kernel_alive") {
			t.Errorf("%s: end %v, error %v", name, end, err)
		}
		if diff := cmp.Diff(append([]string{"1@0 a", "1@1 b", "1@2 c"}, c.want...), seen); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
	}
}

// A cell that is cancelled when its host is gone has an end like any other.
func TestACancelledCellWhoseHostWasKilled(t *testing.T) {
	fake := newFakeHost(t)
	fake.cell("c", "x")
	fake.left = func(string) (cell.Fields, error) { return cell.Fields{"state": "started"}, nil }
	h := fake.conn(t)
	ctx, cancel := context.WithCancel(t.Context())
	end, err := Kernel{"k", h}.Run(ctx, Submission{ID: "c"}, noTools{}, func(f cell.Frame) {
		if len(f.Data) > 0 {
			fake.kill()
			cancel()
		}
	})
	if err != nil || end.Text("outcome") != "lost" {
		t.Errorf("end %v, error %v; want lost", end, err)
	}
}
