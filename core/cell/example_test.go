package cell_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"

	"github.com/hermes-framework/hermes/core/cell"
)

// Frames come one after the other: messages, which are maps, and output of cells. Between two of them io.EOF is the end of the connection.
func ExampleReadFrame() {
	var conn bytes.Buffer
	conn.Write(cell.EncodeMessage(cell.Fields{"t": "started", "cell": "a-1", "ch": 1}))
	conn.Write(cell.EncodeFrame(cell.Frame{Channel: 1, Stream: cell.StreamOut, Offset: 0, Data: []byte("hello\n")}))
	conn.Write(cell.EncodeMessage(cell.Fields{"t": "end", "cell": "a-1", "ch": 1, "outcome": "ok"}))

	for {
		f, err := cell.ReadFrame(&conn, cell.MaxFrame)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		if f.Msg != nil {
			fmt.Println(f.Msg.Text("t"), "of cell", f.Msg.Text("cell"))
			continue
		}
		fmt.Printf("output of channel %d at %d: %q\n", f.Channel, f.Offset, f.Data)
		f.Recycle() // f.Data is not used any more
	}
	// Output:
	// started of cell a-1
	// output of channel 1 at 0: "hello\n"
	// end of cell a-1
}

// A cell that did not run to its own end is an error that errors.Is tells apart. An exception in the cell's code is none: it is in the result.
func ExampleOutcome_Err() {
	err := cell.OutcomeTimeout.Err("after 30s")
	fmt.Println(err)
	fmt.Println(errors.Is(err, cell.ErrTimeout), errors.Is(err, cell.ErrLost))

	if ended, ok := errors.AsType[*cell.RunError](err); ok {
		fmt.Println(ended.Outcome, ended.Reason)
	}
	fmt.Println(cell.OutcomeError.Err(""))
	// Output:
	// the cell's time limit passed: after 30s
	// true false
	// timeout after 30s
	// <nil>
}
