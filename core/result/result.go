// Package result folds a cell's frames into its Result.
package result

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hermes-framework/hermes/core/cell"
)

// What a Result shows of each stream: the first 40 % and the last 60 % of shownMax bytes.
const (
	shownMax  = 50_000
	shownHead = shownMax * 2 / 5
	shownTail = shownMax - shownHead
	spillMax  = 64 << 20
)

// Collector folds the frames of one cell, and tells of each as an Event. One goroutine uses it.
type Collector struct {
	cell     string
	emit     func(cell.Event)
	spillDir func() (string, error)
	streams  [2]streamFold
}

// New makes the Collector of the cell with that id. emit may be nil. spillDir is asked, once for each stream that needs it, for a directory of the
// caller's own in which large output is kept, one 0600 file for each stream.
func New(cell string, emit func(cell.Event), spillDir func() (string, error)) *Collector {
	c := &Collector{cell: cell, emit: emit, spillDir: spillDir}
	c.streams[0].name, c.streams[1].name = "stdout", "stderr"
	return c
}

// Take folds one frame in. It does not keep the frame.
func (c *Collector) Take(f cell.Frame) {
	if f.Msg == nil {
		c.output(&c.streams[f.Stream-1], f)
		return
	}
	switch f.Msg.Text("t") {
	case "accepted":
		c.Tell(cell.Event{Kind: cell.EventAccepted})
	case "started":
		c.Tell(cell.Event{Kind: cell.EventStarted})
	case "gap":
		if n := f.Msg.Int("stream"); n == cell.StreamOut || n == cell.StreamErr {
			c.gap(&c.streams[n-1], f.Msg.Int("from"), f.Msg.Int("to"))
		}
	}
}

// Tell passes an event of the cell on, in the goroutine of the caller.
func (c *Collector) Tell(e cell.Event) {
	e.Cell = c.cell
	if c.emit != nil {
		c.emit(e)
	}
}

// Note tells the user something.
func (c *Collector) Note(text string) { c.Tell(cell.Event{Kind: cell.EventNote, Text: text}) }

func (c *Collector) output(s *streamFold, f cell.Frame) {
	if err := s.add(f.Data, c.spillDir, c.cell); err != nil {
		c.Note(fmt.Sprintf("the whole %s is not kept: %v", s.name, err))
	}
	if c.emit != nil {
		c.Tell(cell.Event{Kind: cell.EventOutput, Stream: s.name, Offset: f.Offset, Data: f.Data, Text: s.text(f.Data)})
	}
}

func (c *Collector) gap(s *streamFold, from, to int64) {
	if to <= from {
		return
	}
	s.skip(to-from, c.spillDir, c.cell)
	c.Tell(cell.Event{Kind: cell.EventGap, Stream: s.name, Offset: from, Omitted: to - from})
}

// Complete asks for the last bytes of a stream of total bytes whose end never came, if that is so. fetch returns what is there between two offsets;
// what is missing before data ends at begins. What fetch cannot return is counted as omitted.
func (c *Collector) Complete(stream byte, total int64, fetch func(from, to int64) (data []byte, begins int64, err error)) {
	s := &c.streams[stream-1]
	if s.total >= total {
		return
	}
	from := max(s.total, total-shownTail)
	c.gap(s, s.total, from)
	data, begins, err := fetch(from, total)
	if err == nil {
		c.gap(s, from, begins)
		c.output(s, cell.Frame{Stream: stream, Offset: s.total, Data: data})
	}
	c.gap(s, s.total, total)
}

// Finish completes done with what was collected. Nothing may be called after it but Tell.
func (c *Collector) Finish(done *cell.Cell) {
	for i := range c.streams {
		if rest := c.streams[i].carry; len(rest) > 0 {
			c.Tell(cell.Event{Kind: cell.EventOutput, Stream: c.streams[i].name, Offset: c.streams[i].total, Text: decodeText(rest)})
		}
	}
	done.Stdout, done.StdoutBytes, done.StdoutOmitted = c.streams[0].shown()
	done.Stderr, done.StderrBytes, done.StderrOmitted = c.streams[1].shown()
	if out, err := c.streams[0].closeSpill(), c.streams[1].closeSpill(); out != "" || err != "" {
		done.Spill = &cell.Spill{Stdout: out, Stderr: err}
	}
}

// streamFold is what is kept of one stream: all of it while that is little, then head and tail, and a file with the rest.
type streamFold struct {
	name    string
	total   int64
	omitted int64  // by gaps
	head    []byte // everything, until it is more than shownMax
	tail    []byte // what follows head: up to twice shownTail, cut when full
	cut     bool
	carry   []byte // the beginning of a character whose end has not come
	spill   *os.File
	spilled int64
	failed  bool
}

// add keeps data. An error says that it could not be spilled; it is given once.
func (s *streamFold) add(data []byte, dir func() (string, error), cell string) error {
	s.total += int64(len(data))
	if !s.cut && len(s.head)+len(data) <= shownMax {
		s.head = append(s.head, data...)
		return nil
	}
	err := s.save(data, dir, cell)
	if !s.cut {
		s.cut = true
		s.tail = append(s.tail, s.head[min(shownHead, len(s.head)):]...)
		short := shownHead - len(s.head)
		if short > 0 {
			n := min(short, len(data))
			s.head = append(s.head, data[:n]...)
			data = data[n:]
		}
		s.head = s.head[:min(shownHead, len(s.head))]
	}
	s.keepTail(data)
	return err
}

func (s *streamFold) keepTail(data []byte) {
	if len(data) >= shownTail {
		s.tail = append(s.tail[:0], data[len(data)-shownTail:]...)
		return
	}
	if len(s.tail)+len(data) > 2*shownTail {
		s.tail = append(s.tail[:0], s.tail[len(s.tail)-shownTail:]...)
	}
	s.tail = append(s.tail, data...)
}

// skip accounts for n bytes that did not come.
func (s *streamFold) skip(n int64, dir func() (string, error), cell string) {
	mark := fmt.Sprintf("\n[hermes: %d bytes not kept]\n", n)
	_ = s.add([]byte(mark), dir, cell)
	s.total += n - int64(len(mark))
	s.omitted += n
}

// save appends data to the spill file, which begins with what head holds already.
func (s *streamFold) save(data []byte, dir func() (string, error), cell string) error {
	if s.failed || s.spilled >= spillMax {
		return nil
	}
	err := s.openSpill(dir, cell)
	if err == nil {
		var n int
		n, err = s.spill.Write(data[:min(int64(len(data)), spillMax-s.spilled)])
		s.spilled += int64(n)
	}
	if err != nil {
		s.failed = true
		s.dropSpill()
	}
	return err
}

func (s *streamFold) openSpill(dir func() (string, error), cell string) error {
	if s.spill != nil {
		return nil
	}
	d, err := dir()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(d, fileName(cell)+"."+s.name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	s.spill = f
	n, err := f.Write(s.head)
	s.spilled = int64(n)
	return err
}

// fileName is a cell's id as a file name: ids that users chose may hold anything.
func fileName(id string) string {
	if len(id) <= 64 && !strings.ContainsFunc(id, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}

func (s *streamFold) dropSpill() {
	if s.spill != nil {
		_ = s.spill.Close()
		_ = os.Remove(s.spill.Name())
		s.spill = nil
	}
}

func (s *streamFold) closeSpill() string {
	if s.spill == nil {
		return ""
	}
	if err := s.spill.Close(); err != nil {
		_ = os.Remove(s.spill.Name())
		return ""
	}
	return s.spill.Name()
}

// shown is the text of the stream, its size, and how many bytes of it the text leaves out.
func (s *streamFold) shown() (text string, total, omitted int64) {
	if !s.cut {
		return decodeText(s.head), s.total, s.omitted
	}
	tail := s.tail[max(0, len(s.tail)-shownTail):]
	head := trimEnd(s.head)
	tail = trimStart(tail)
	omitted = max(s.total-int64(len(head)+len(tail)), s.omitted)
	if omitted == 0 {
		return decodeText(append(slices.Clip(head), tail...)), s.total, 0
	}
	return decodeText(head) + fmt.Sprintf("\n[hermes: %d bytes left out]\n", omitted) + decodeText(tail), s.total, omitted
}

// text returns what data and the carry hold in whole characters.
func (s *streamFold) text(data []byte) string {
	all := append(s.carry, data...)
	whole := trimEnd(all)
	s.carry = append([]byte(nil), all[len(whole):]...)
	return decodeText(whole)
}

// trimEnd cuts the beginning of a character that is not complete off the end.
func trimEnd(b []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		c := b[len(b)-n]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return b[:len(b)-n]
			}
			break
		}
	}
	return b
}

// trimStart cuts the rest of a character off the beginning.
func trimStart(b []byte) []byte {
	for n := 0; n < utf8.UTFMax && n < len(b); n++ {
		if utf8.RuneStart(b[n]) {
			return b[n:]
		}
	}
	return b
}

// decodeText is b with U+FFFD for each byte that is not UTF-8.
func decodeText(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b)))
}
