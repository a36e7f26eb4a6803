package toolrpc_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/core/toolrpc"
)

var _ kernel.Tools = toolrpc.None{}

func TestEveryCallIsRefused(t *testing.T) {
	const malformed = "malformed message: "
	for _, c := range []struct {
		name   string
		call   cell.Fields
		cell   string
		n      int64
		reason string
		msg    string
	}{
		{"good", cell.Fields{"cell": "c-1", "n": int64(3), "tool": "lookup", "args": []byte("{}")}, "c-1", 3, "no_tools", "this cell was submitted without tools"},
		{"the first, without arguments", cell.Fields{"cell": "c-1", "n": int64(0), "tool": "lookup"}, "c-1", 0, "no_tools", "this cell was submitted without tools"},
		{"no tool", cell.Fields{"cell": "c-1", "n": int64(3)}, "c-1", 3, "arguments", malformed + "a tool call without a cell or a tool"},
		{"a tool that is no text", cell.Fields{"cell": "c-1", "n": int64(3), "tool": []byte("x")}, "c-1", 3, "arguments", malformed + "a tool call without a cell or a tool"},
		{"no cell", cell.Fields{"n": int64(3), "tool": "lookup"}, "", 3, "arguments", malformed + "a tool call without a cell or a tool"},
		// A call whose number is none cannot be told from another call of the cell, so its refusal names neither.
		{"n is a text", cell.Fields{"cell": "c-1", "n": "3", "tool": "lookup"}, "", 0, "arguments", malformed + "a tool call whose number is 3"},
		{"n is a boolean", cell.Fields{"cell": "c-1", "n": true, "tool": "lookup"}, "", 0, "arguments", malformed + "a tool call whose number is true"},
		{"n has a fraction", cell.Fields{"cell": "c-1", "n": 3.5, "tool": "lookup"}, "", 0, "arguments", malformed + "a tool call whose number is 3.5"},
		{"n is negative", cell.Fields{"cell": "c-1", "n": int64(-1), "tool": "lookup"}, "", 0, "arguments", malformed + "a tool call whose number is -1"},
		{"no n", cell.Fields{"cell": "c-1", "tool": "lookup"}, "", 0, "arguments", malformed + "a tool call whose number is <nil>"},
		{"nothing", cell.Fields{}, "", 0, "arguments", malformed + "a tool call whose number is <nil>"},
	} {
		c.call["t"] = "tool"
		want := cell.Fields{"t": "tool_refused", "cell": c.cell, "n": c.n, "reason": c.reason, "msg": c.msg}
		got := toolrpc.None{}.Answer(c.call)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: the answer to %v (-want +got):\n%s", c.name, c.call, diff)
		}
		if _, err := cell.DecodeFields(cell.AppendValue(nil, got)); err != nil {
			t.Errorf("%s: the answer cannot be sent: %v", c.name, err)
		}
		call, err := toolrpc.Decode(c.call)
		if malformed := c.reason == "arguments"; malformed != errors.Is(err, cell.ErrMalformed) || malformed != (err != nil) {
			t.Errorf("%s: decoding %v gives %+v and %v", c.name, c.call, call, err)
		}
	}
}

// FuzzDecode: what is accepted is a call, and says so when it is sent again. Whatever is not is refused.
func FuzzDecode(f *testing.F) {
	for _, msg := range []cell.Fields{
		{"t": "tool", "cell": "c-1", "n": int64(3), "tool": "lookup", "args": []byte("{}")},
		{"t": "tool", "cell": "c-1", "n": int64(3)},
		{"t": "tool", "n": int64(3), "tool": "lookup"},
		{"t": "tool", "cell": "c-1", "n": "3", "tool": "lookup"},
		{"t": "tool", "cell": "c-1", "n": int64(-1), "tool": "lookup"},
		{"t": "tool", "cell": "c-1", "n": true, "tool": "lookup"},
		{"t": "tool", "cell": []any{"c-1"}, "n": 1.0, "tool": cell.Fields{}, "args": "{}"},
		{},
	} {
		f.Add(cell.AppendValue(nil, msg))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		msg, err := cell.DecodeFields(data)
		if err != nil {
			return
		}
		answer := toolrpc.None{}.Answer(msg)
		if answer.Text("t") != "tool_refused" || answer.Text("reason") == "" || answer.Text("msg") == "" {
			t.Errorf("%v is answered by %v", msg, answer)
		}
		call, err := toolrpc.Decode(msg)
		if err != nil {
			if !errors.Is(err, cell.ErrMalformed) {
				t.Errorf("%v: %v", msg, err)
			}
			return
		}
		if call.Cell == "" || call.Tool == "" || call.N < 0 || answer.Text("cell") != call.Cell || answer.Int("n") != call.N {
			t.Errorf("%v is the call %+v, answered by %v", msg, call, answer)
		}
		again, err := toolrpc.Decode(cell.Fields{"cell": call.Cell, "n": call.N, "tool": call.Tool, "args": call.Args})
		if diff := cmp.Diff(call, again); err != nil || diff != "" {
			t.Errorf("again: %v, (-want +got):\n%s", err, diff)
		}
	})
}
