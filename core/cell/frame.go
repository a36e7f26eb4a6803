package core

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// The types of frame, see docs/protocol.md.
const (
	frameMessage = 'M'
	frameOutput  = 'O'
)

// maxFrame bounds what a frame's length may say; a larger one is not read.
const maxFrame = 16 << 20

// outputHead is the size of an output frame's channel, stream and offset.
const outputHead = 4 + 1 + 8

// The streams of a cell.
const (
	streamOut = 1
	streamErr = 2
)

// frame is one decoded frame: a message, or output when msg is nil.
type frame struct {
	msg     fields
	channel uint32
	stream  byte
	offset  int64
	data    []byte // belongs to the receiver, until it recycles the frame
	body    []byte // what data is a part of
}

// encodeMessage returns the frame that carries msg.
func encodeMessage(msg fields) []byte {
	b := appendValue([]byte{0, 0, 0, 0, frameMessage}, msg)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// readFrame reads the next frame of at most limit bytes. It returns io.EOF only between frames.
func readFrame(r *bufio.Reader, limit int) (frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 1 || int64(n) > int64(limit) {
		return frame{}, fmt.Errorf("%w: a frame of %d bytes", errMalformed, n)
	}
	body := newBody(int(n))
	if _, err := io.ReadFull(r, body); err != nil {
		return frame{}, fmt.Errorf("inside a frame: %w", noEOF(err))
	}
	return decodeFrame(body)
}

// bodies recycles the memory of output frames: without it the garbage collector has more work with bulk output than everybody else.
var bodies = sync.Pool{New: func() any { b := make([]byte, bodySize); return &b }}

// bodySize is the size of a full output frame without its length.
const bodySize = 1 + outputHead + 64<<10

func newBody(n int) []byte {
	if n > bodySize || n < bodySize/2 {
		return make([]byte, n)
	}
	return (*bodies.Get().(*[]byte))[:n]
}

// recycle gives a frame's memory back. Nobody may use its data afterwards.
func (f frame) recycle() {
	const before = 1 + outputHead
	if f.msg != nil || len(f.data) == 0 || cap(f.data) != bodySize-before {
		return
	}
	body := f.body[:bodySize]
	bodies.Put(&body)
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decodeFrame decodes type and body of a frame; output data aliases body.
func decodeFrame(body []byte) (frame, error) {
	if len(body) == 0 {
		return frame{}, fmt.Errorf("%w: an empty frame", errMalformed)
	}
	switch body[0] {
	case frameMessage:
		msg, err := decodeFields(body[1:])
		if err == nil && msg.str("t") == "" {
			err = fmt.Errorf("%w: a message without a kind", errMalformed)
		}
		return frame{msg: msg}, err
	case frameOutput:
		f, err := decodeOutput(body[1:])
		f.body = body
		return f, err
	}
	return frame{}, fmt.Errorf("%w: frame type %#x", errMalformed, body[0])
}

func decodeOutput(b []byte) (frame, error) {
	if len(b) < outputHead {
		return frame{}, fmt.Errorf("%w: an output frame of %d bytes", errMalformed, len(b))
	}
	f := frame{channel: binary.BigEndian.Uint32(b), stream: b[4], offset: int64(binary.BigEndian.Uint64(b[5:])), data: b[outputHead:]}
	if f.stream != streamOut && f.stream != streamErr {
		return frame{}, fmt.Errorf("%w: stream %d", errMalformed, f.stream)
	}
	if f.offset < 0 {
		return frame{}, fmt.Errorf("%w: an offset beyond 2^63", errMalformed)
	}
	return f, nil
}
