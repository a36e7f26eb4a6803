// Package toolrpc answers the tool calls of cells.
package toolrpc

import (
	"fmt"

	"github.com/hermes-framework/hermes/core/cell"
)

// Reason says why a call was refused, in the word that the code in the cell sees.
type Reason string

// The reasons that this engine gives.
const (
	NoTools      Reason = "no_tools"  // the cell was submitted without any
	BadArguments Reason = "arguments" // the call is malformed
)

// Call is one call as it arrives: a frame of kind tool, see docs/protocol.md, section 2.4.
type Call struct {
	Cell string // the id of the cell that calls
	N    int64  // of the call in the cell, from 0
	Tool string // the exact name
	Args []byte // a JSON object
}

// Decode reads a call. Its error wraps cell.ErrMalformed: a frame that is not a call must never be dispatched.
func Decode(msg cell.Fields) (Call, error) {
	n, ok := msg["n"].(int64)
	c := Call{Cell: msg.Text("cell"), N: n, Tool: msg.Text("tool"), Args: msg.Bytes("args")}
	switch {
	case !ok || n < 0:
		return Call{}, fmt.Errorf("%w: a tool call whose number is %v", cell.ErrMalformed, msg["n"])
	case c.Cell == "" || c.Tool == "":
		return c, fmt.Errorf("%w: a tool call without a cell or a tool", cell.ErrMalformed)
	}
	return c, nil
}

// Refuse is the message that refuses the call: it certainly did not run.
func (c Call) Refuse(reason Reason, text string) cell.Fields {
	return cell.Fields{"t": "tool_refused", "cell": c.Cell, "n": c.N, "reason": string(reason), "msg": text}
}

// None is the table of a cell without tools, a kernel.Tools.
type None struct{}

// Answer refuses every call.
func (None) Answer(msg cell.Fields) cell.Fields {
	call, err := Decode(msg)
	if err != nil {
		return call.Refuse(BadArguments, err.Error())
	}
	return call.Refuse(NoTools, "this cell was submitted without tools")
}
