package cell

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// The types of frame, see docs/protocol.md.
const (
	frameMessage  = 'M'
	frameNumbered = 'C'
	frameOutput   = 'O'
)

// MaxFrame bounds what a frame's length may say, in bytes; a larger one is not read.
const MaxFrame = 16 << 20

// numberedHead is the size of a numbered message's number and of the one it says was heard.
const numberedHead = 8 + 8

// outputHead is the size of an output frame's channel, stream and offset.
const outputHead = 4 + 1 + 8

// The streams of a cell, as frames number them.
const (
	StreamOut = 1 // stdout
	StreamErr = 2 // stderr
)

// Frame is one frame of the kernel protocol (docs/protocol.md, section 2): a message, or output when Msg is nil.
type Frame struct {
	Msg     Fields
	Number  int64  // of a numbered message, from 1 on; 0: Msg has none
	Heard   int64  // with Number: the last number that its sender has heard
	Channel uint32 // of the cell whose output it is
	Stream  byte   // StreamOut or StreamErr
	Offset  int64  // of Data in the stream, in bytes
	Data    []byte // belongs to the receiver, until it recycles the frame
	body    []byte // what Data is a part of
}

// EncodeMessage returns the frame that carries msg. It panics if msg holds a value of a type that Fields does not list.
func EncodeMessage(msg Fields) []byte {
	b := AppendValue([]byte{0, 0, 0, 0, frameMessage}, msg)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// EncodeNumbered returns the frame that carries msg as the message with that number, of a sender that has heard so many of the other's.
// It panics as EncodeMessage does.
func EncodeNumbered(number, heard int64, msg Fields) []byte {
	b := append(make([]byte, 4, 512), frameNumbered)
	b = binary.BigEndian.AppendUint64(b, uint64(number))
	b = binary.BigEndian.AppendUint64(b, uint64(heard))
	b = AppendValue(b, msg)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// ReadFrame reads the next frame of at most limit bytes, and nothing beyond it. It returns io.EOF only between frames; the error of a frame that
// cannot be decoded wraps ErrMalformed.
func ReadFrame(r io.Reader, limit int) (Frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 1 || int64(n) > int64(limit) {
		return Frame{}, fmt.Errorf("%w: a frame of %d bytes", ErrMalformed, n)
	}
	body := newBody(int(n))
	if _, err := io.ReadFull(r, body); err != nil {
		return Frame{}, fmt.Errorf("inside a frame: %w", noEOF(err))
	}
	return DecodeFrame(body)
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

// Recycle gives the frame's memory to frames that are read later. Nobody may use its Data afterwards. It need not be called.
func (f Frame) Recycle() {
	const before = 1 + outputHead
	if f.Msg != nil || len(f.Data) == 0 || cap(f.Data) != bodySize-before {
		return
	}
	body := f.body[:bodySize]
	bodies.Put(&body)
}

// EncodeFrame returns the bytes that ReadFrame reads as f.
func EncodeFrame(f Frame) []byte {
	switch {
	case f.Number > 0:
		return EncodeNumbered(f.Number, f.Heard, f.Msg)
	case f.Msg != nil:
		return EncodeMessage(f.Msg)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(1+outputHead+len(f.Data)))
	b = append(b, frameOutput)
	b = binary.BigEndian.AppendUint32(b, f.Channel)
	b = append(b, f.Stream)
	b = binary.BigEndian.AppendUint64(b, uint64(f.Offset))
	return append(b, f.Data...)
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// DecodeFrame decodes a frame without its length. Data of the result is a part of body. Its errors wrap ErrMalformed.
func DecodeFrame(body []byte) (Frame, error) {
	if len(body) == 0 {
		return Frame{}, fmt.Errorf("%w: an empty frame", ErrMalformed)
	}
	switch body[0] {
	case frameMessage:
		msg, err := decodeMessage(body[1:])
		return Frame{Msg: msg}, err
	case frameNumbered:
		return decodeNumbered(body[1:])
	case frameOutput:
		f, err := decodeOutput(body[1:])
		f.body = body
		return f, err
	}
	return Frame{}, fmt.Errorf("%w: frame type %#x", ErrMalformed, body[0])
}

func decodeMessage(b []byte) (Fields, error) {
	msg, err := DecodeFields(b)
	if err == nil && msg.Text("t") == "" {
		err = fmt.Errorf("%w: a message without a kind", ErrMalformed)
	}
	return msg, err
}

func decodeNumbered(b []byte) (Frame, error) {
	if len(b) < numberedHead {
		return Frame{}, fmt.Errorf("%w: a numbered message of %d bytes", ErrMalformed, len(b))
	}
	f := Frame{Number: int64(binary.BigEndian.Uint64(b)), Heard: int64(binary.BigEndian.Uint64(b[8:]))}
	if f.Number < 1 || f.Heard < 0 {
		return Frame{}, fmt.Errorf("%w: message number %d, heard %d", ErrMalformed, f.Number, f.Heard)
	}
	var err error
	f.Msg, err = decodeMessage(b[numberedHead:])
	return f, err
}

func decodeOutput(b []byte) (Frame, error) {
	if len(b) < outputHead {
		return Frame{}, fmt.Errorf("%w: an output frame of %d bytes", ErrMalformed, len(b))
	}
	f := Frame{Channel: binary.BigEndian.Uint32(b), Stream: b[4], Offset: int64(binary.BigEndian.Uint64(b[5:])), Data: b[outputHead:]}
	if f.Stream != StreamOut && f.Stream != StreamErr {
		return Frame{}, fmt.Errorf("%w: stream %d", ErrMalformed, f.Stream)
	}
	if f.Offset < 0 {
		return Frame{}, fmt.Errorf("%w: an offset beyond 2^63", ErrMalformed)
	}
	return f, nil
}
