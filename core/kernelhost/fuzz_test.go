package kernelhost

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// What a far side prints is read from between whatever else it prints there. None of it may be taken for more than it is.

var answers = []string{
	"", "hello\n", "hermes-need-source\n", "noise\r\nhermes-need-source",
	line("hermes-ready", cell.Fields{"inc": "i", "sock": "/s", "pid": 1, "existing": true, "warnings": []any{"w", nil}}),
	line("hermes-ready", cell.Fields{"inc": 1, "sock": nil, "pid": "x", "warnings": cell.Fields{}}),
	"noise\n" + line("hermes-error", cell.Fields{"code": "not_found", "msg": "m", "hint": "h"}),
	line("hermes-error", cell.Fields{}),
	"hermes-ready \n", "hermes-ready 80", "hermes-error zz\n", "hermes-ready c0\n", "hermes-readyx 80\n",
}

// FuzzStartAnswer: an answer is what one whole line says, and without one there is an error.
func FuzzStartAnswer(f *testing.F) {
	for _, s := range answers {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, printed string) {
		p := &Place{Name: "fake:", Env: &scripted{stdout: printed}, Interpreter: "py"}
		l := launcher{place: p, interpreter: "py", mode: "start", step: "start the kernel host"}
		ready, needSource, err := l.once(t.Context(), nil, nil)
		switch {
		case err != nil && (ready != nil || needSource):
			t.Errorf("%q: %+v, need of the source %v, and %v", printed, ready, needSource, err)
		case err == nil && needSource == (ready != nil):
			t.Errorf("%q: neither ready nor in need of the source, or both: %+v", printed, ready)
		case err == nil && needSource && !strings.Contains(printed, "hermes-need-source"),
			err == nil && ready != nil && !strings.Contains(printed, "hermes-ready "):
			t.Errorf("%q: nothing of it says so: %+v", printed, ready)
		}
		var e *sdk.Error
		if err != nil && !errors.Is(err, cell.ErrMalformed) && (!errors.As(err, &e) || e.Delivery != sdk.NotStarted) {
			t.Errorf("%q: %v", printed, err)
		}
	})
}

// FuzzRelayAnswer: what follows the marker is left alone, to the byte.
func FuzzRelayAnswer(f *testing.F) {
	for _, s := range append(answers, "hermes-relay\n", "noise\nhermes-relay\r\n") {
		f.Add(s, "after")
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		if strings.Contains(before, "hermes-") {
			after = "" // the marker may be anywhere
		}
		r := strings.NewReader(before + "\nhermes-relay\n" + after)
		c := &relayConn{Reader: r, place: &Place{Name: "fake:"}, cancel: func() {}}
		err := c.skipTo(t.Context(), "hermes-relay")
		if strings.Contains(before, "hermes-") {
			return
		}
		rest, _ := io.ReadAll(r)
		if err != nil || string(rest) != after {
			t.Errorf("%q: error %v, left %q, want %q", before, err, rest, after)
		}
	})
}

// FuzzCallAnswer: only whole frames get through, as they are.
func FuzzCallAnswer(f *testing.F) {
	pong := string(cell.EncodeMessage(cell.Fields{"t": "pong"}))
	out := string(cell.EncodeFrame(cell.Frame{Channel: 1, Stream: cell.StreamOut, Data: []byte("x")}))
	end := string(cell.EncodeMessage(cell.Fields{"t": "end", "ch": 1}))
	for _, s := range append(answers, "hermes-call\n", "hermes-call\n"+pong+out+end, "noise\nhermes-call\n"+out[:len(out)-1], "hermes-call\n\xff\xff\xff\xff") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, printed string) {
		c := newCallConn(t.Context(), &Place{Name: "fake:"}, Info{}, nil)
		c.cells[1] = &calledCell{id: "c"}
		var got []byte
		c.wg.Go(func() { got, _ = io.ReadAll(c.r) })
		err := c.deliver(bufio.NewReader(strings.NewReader(printed)))
		_ = c.w.Close()
		c.wg.Wait()
		_ = c.Close()

		r := bytes.NewReader(got)
		frames := 0
		for ; r.Len() > 0; frames++ {
			if _, err := cell.ReadFrame(r, cell.MaxFrame); err != nil {
				t.Fatalf("%q: what got through is no frame: %v", printed, err)
			}
		}
		if frames > 0 && !strings.Contains(printed, "hermes-call\n") || err == nil && !strings.Contains(printed, "hermes-call\n") {
			t.Errorf("%q: %d frames without the marker, error %v", printed, frames, err)
		}
	})
}

// FuzzHello: nobody is welcomed who does not have the token, whatever they say.
func FuzzHello(f *testing.F) {
	theirs := cell.EncodeMessage(cell.Fields{"t": "hello", "v": 1, "nonce": make([]byte, tokenSize), "proof": make([]byte, 32)})
	welcome := cell.EncodeMessage(cell.Fields{"t": "welcome", "inc": "i"})
	f.Add(append(theirs, welcome...))
	f.Add(welcome)
	f.Add(cell.EncodeMessage(cell.Fields{"t": "error", "code": "version", "v": []any{2}}))
	f.Add(cell.EncodeMessage(cell.Fields{"t": "error", "code": "closed", "msg": "m"}))
	f.Add(cell.EncodeMessage(cell.Fields{"t": "hello"}))
	f.Add(cell.EncodeFrame(cell.Frame{Channel: 1, Stream: cell.StreamOut}))
	f.Add([]byte{0, 0, 0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, said []byte) {
		var sent bytes.Buffer
		token := NewToken()
		conn := struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(said), &sent}
		if got, err := hello(conn, token, "", cell.Fields{"client": "client"}); err == nil {
			t.Errorf("%q is welcomed: %v", said, got)
		}
		if bytes.Contains(sent.Bytes(), token) {
			t.Error("the token was sent")
		}
		if _, err := cell.ReadFrame(&sent, helloLimit); err != nil || sent.Len() > 0 {
			t.Errorf("%q: more was sent than a hello", said)
		}
	})
}
