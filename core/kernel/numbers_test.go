package kernel

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hermes-framework/hermes/core/cell"
)

// numbersStep is one step of a vector: what happens to one end of a link, and what must come of it.
type numbersStep struct {
	Op     string   `json:"op"`               // send, take, heard, resume
	Body   string   `json:"body,omitempty"`   // send: the kind of the message
	Number int64    `json:"number,omitempty"` // take
	Heard  int64    `json:"heard,omitempty"`  // take, heard, resume
	Frame  string   `json:"frame,omitempty"`  // send: what is sent, in hex
	Fresh  bool     `json:"fresh,omitempty"`  // take: whether it is to be handled
	Again  []string `json:"again,omitempty"`  // resume: what is sent again, in hex
	Fails  bool     `json:"fails,omitempty"`  // the other end is at fault
}

// TestNumbersFollowTheVectors, which core/kernelhost/hosttest/test_numbers.py reads, too.
func TestNumbersFollowTheVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/link.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name  string        `json:"name"`
		Steps []numbersStep `json:"steps"`
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			var n numbers
			for i, want := range v.Steps {
				got := numbersStep{Op: want.Op, Body: want.Body, Number: want.Number, Heard: want.Heard}
				var err error
				switch want.Op {
				case "send":
					got.Frame = hex.EncodeToString(n.send(cell.Fields{"t": want.Body}))
				case "take":
					got.Fresh, err = n.take(want.Number, want.Heard)
				case "heard":
					err = n.acknowledge(want.Heard)
				case "resume":
					var again [][]byte
					again, err = n.resume(want.Heard)
					for _, frame := range again {
						got.Again = append(got.Again, hex.EncodeToString(frame))
					}
				}
				got.Fails = errors.Is(err, cell.ErrMalformed)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("step %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// TestALinkLosesNothingAndRepeatsNothing: whatever breaks, each request is handled once and answered, each cell is submitted once, its output comes
// whole and in order, its end once.
func TestALinkLosesNothingAndRepeatsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fates := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) fate {
			return fate{rapid.IntRange(0, 900).Draw(t, "up"), rapid.IntRange(0, 900).Draw(t, "down"), rapid.Bool().Draw(t, "late")}
		}), 0, 15).Draw(t, "fates")
		host := newModelHost(fates...)
		opens := rapid.IntRange(0, 40).Draw(t, "opens")
		sizes := rapid.SliceOfN(rapid.IntRange(0, 300), 0, 6).Draw(t, "cells")
		for i, size := range sizes {
			host.outputs[fmt.Sprint("c", i)] = bytes.Repeat(fmt.Appendf(nil, "<%d>", i), size)[:size]
		}
		playModel(t, host, opens, len(sizes))
	})
}

// TestALinkIsCutAtEveryByte of a conversation, in either direction.
func TestALinkIsCutAtEveryByte(t *testing.T) {
	for _, late := range []bool{false, true} {
		for at := range 700 {
			for _, its := range []fate{{at, -1, late}, {-1, at, late}} {
				host := newModelHost(its)
				host.outputs["c0"] = []byte("some output of the first cell, enough for a few frames")
				host.outputs["c1"] = []byte("other output")
				playModel(t, host, 4, 2)
			}
		}
	}
}

// TestACellSurvivesALinkThatTheHostForgot: it is asked for by its id then.
func TestACellSurvivesALinkThatTheHostForgot(t *testing.T) {
	for at := range 400 {
		for _, its := range []fate{{at, -1, false}, {-1, at, true}} {
			host := newModelHost(its, its)
			host.forgets = true
			host.outputs["c0"] = []byte("some output of the first cell, enough for a few frames")
			host.outputs["c1"] = []byte("other output")
			playModel(t, host, 0, 2)
		}
	}
}

// fatal is what tests of both kinds can do.
type fatal interface {
	Helper()
	Errorf(string, ...any)
	Fatalf(string, ...any)
}

// playModel runs opens requests and cells at once and checks what the host did and what came back.
func playModel(t fatal, host *modelHost, opens, cells int) {
	t.Helper()
	ctx, cancel := testContext()
	defer cancel()
	h := NewHost(host, Identity{Incarnation: "inc-1", Detached: true})
	var wg sync.WaitGroup
	var mu sync.Mutex
	kernels := map[string]int{}
	for range opens {
		wg.Go(func() {
			got, err := h.Open(ctx, OpenRequest{Language: cell.Python})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("open: %v", err)
			}
			kernels[got.Kernel.ID]++
		})
	}
	for i := range cells {
		wg.Go(func() {
			id := fmt.Sprint("c", i)
			var out []byte
			end, err := Kernel{"k", h}.Run(ctx, Submission{ID: id, Code: "1"}, noTools{}, func(f cell.Frame) { out = append(out, f.Data...) })
			if err != nil || end.Text("outcome") != "ok" || !bytes.Equal(out, host.outputs[id]) {
				t.Errorf("cell %s: end %v, error %v, output %q, want %q", id, end, err, out, host.outputs[id])
			}
		})
	}
	wg.Wait()
	h.Close(ctx)
	host.mu.Lock()
	for _, link := range host.links {
		_ = link.conn.Close()
	}
	host.mu.Unlock()
	host.wg.Wait()

	if host.opens != opens || len(kernels) != opens {
		t.Errorf("%d requests were handled and %d answered, of %d", host.opens, len(kernels), opens)
	}
	for id := range host.outputs {
		if host.submits[id] != 1 {
			t.Errorf("cell %s was submitted %d times", id, host.submits[id])
		}
	}
	if len(host.links) > 1 && !host.forgets {
		t.Errorf("%d links, want one that goes on", len(host.links))
	}
	if host.most > 64<<10 {
		t.Errorf("%d bytes were kept", host.most)
	}
}

func testContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 30*time.Second)
}
