package core

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
)

func spillTo(t *testing.T) func() (string, error) {
	dir := t.TempDir()
	return func() (string, error) { return dir, nil }
}

// feed gives data to a collector's stdout in chunks of the given size, and returns the finished cell.
func feed(t *testing.T, data []byte, chunk int, emit func(Event)) Cell {
	t.Helper()
	c := newCollector("c-1", emit, spillTo(t))
	for off := 0; off < len(data); off += chunk {
		c.take(frame{channel: 1, stream: streamOut, offset: int64(off), data: data[off:min(off+chunk, len(data))]})
	}
	var cell Cell
	c.finish(&cell)
	return cell
}

func TestLittleOutputIsWhole(t *testing.T) {
	for _, size := range []int{0, 1, 100, shownMax} {
		data := bytes.Repeat([]byte("x"), size)
		cell := feed(t, data, 7000, nil)
		if cell.Stdout != string(data) || cell.StdoutBytes != int64(size) || cell.StdoutOmitted != 0 || cell.Spill != nil {
			t.Errorf("%d bytes: shown %d, total %d, omitted %d, spill %v", size, len(cell.Stdout), cell.StdoutBytes, cell.StdoutOmitted, cell.Spill)
		}
	}
}

func TestMuchOutputShowsHeadAndTailAndSpillsTheWhole(t *testing.T) {
	for _, size := range []int{shownMax + 1, shownMax + shownTail, 300_000} {
		for _, chunk := range []int{1 << 20, 65536, 999} {
			var data []byte
			for i := 0; len(data) < size; i++ {
				data = fmt.Appendf(data, "line %d\n", i)
			}
			data = data[:size]
			cell := feed(t, data, chunk, nil)
			head, tail := string(data[:shownHead]), string(data[size-shownTail:])
			if !strings.HasPrefix(cell.Stdout, head) || !strings.HasSuffix(cell.Stdout, tail) {
				t.Errorf("%d bytes in chunks of %d: head or tail differ", size, chunk)
			}
			if cell.StdoutBytes != int64(size) || cell.StdoutOmitted != int64(size-shownMax) {
				t.Errorf("%d bytes in chunks of %d: total %d, omitted %d, want %d and %d", size, chunk, cell.StdoutBytes, cell.StdoutOmitted, size, size-shownMax)
			}
			spilled, err := os.ReadFile(cell.Spill.Stdout)
			if err != nil || !bytes.Equal(spilled, data) {
				t.Errorf("%d bytes in chunks of %d: the spill has %d, error %v", size, chunk, len(spilled), err)
			}
			if info, err := os.Stat(cell.Spill.Stdout); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the spill's mode is %v, error %v, want 0600", info.Mode(), err)
			}
		}
	}
}

func TestOutputIsDecodedAcrossChunks(t *testing.T) {
	const text = "aé€😀z"
	for chunk := 1; chunk < len(text); chunk++ {
		var events strings.Builder
		cell := feed(t, []byte(text), chunk, func(e Event) { events.WriteString(e.Text) })
		if events.String() != text || cell.Stdout != text {
			t.Errorf("chunks of %d: events %q, result %q, want %q", chunk, events.String(), cell.Stdout, text)
		}
	}
}

func TestBytesThatAreNoTextBecomeReplacementCharacters(t *testing.T) {
	cell := feed(t, []byte{0xff, 0xfe, '\n'}, 1, nil)
	if cell.Stdout != "\ufffd\ufffd\n" || cell.StdoutBytes != 3 {
		t.Errorf("got %q of %d bytes", cell.Stdout, cell.StdoutBytes)
	}
}

// A cut between head and tail never makes a character that was not there.
func TestTheCutIsBetweenCharacters(t *testing.T) {
	for shift := range 4 {
		data := []byte(strings.Repeat("x", shift) + strings.Repeat("€", 40_000))
		if cell := feed(t, data, 65536, nil); strings.Contains(cell.Stdout, "\ufffd") {
			t.Errorf("shifted by %d: a replacement character in the result", shift)
		}
	}
}

func TestGapsAreMarkedAndCounted(t *testing.T) {
	var gaps []Event
	c := newCollector("c-1", func(e Event) {
		if e.Kind == EventGap {
			gaps = append(gaps, e)
		}
	}, spillTo(t))
	c.take(frame{stream: streamOut, data: []byte("abc")})
	c.take(frame{msg: fields{"t": "gap", "stream": int64(streamOut), "from": int64(3), "to": int64(1003)}})
	c.take(frame{stream: streamOut, offset: 1003, data: []byte("xyz")})
	var cell Cell
	c.finish(&cell)
	if cell.Stdout != "abc\n[hermes: 1000 bytes not kept]\nxyz" || cell.StdoutBytes != 1006 || cell.StdoutOmitted != 1000 {
		t.Errorf("got %q, %d bytes, %d omitted", cell.Stdout, cell.StdoutBytes, cell.StdoutOmitted)
	}
	if len(gaps) != 1 || gaps[0].Offset != 3 || gaps[0].Omitted != 1000 {
		t.Errorf("gap events: %+v", gaps)
	}
}

// Failing to save never fails the cell.
func TestASpillThatCannotBeWrittenIsANote(t *testing.T) {
	var notes int
	c := newCollector("c-1", func(e Event) {
		if e.Kind == EventNote {
			notes++
		}
	}, func() (string, error) { return "", os.ErrPermission })
	for range 3 {
		c.take(frame{stream: streamOut, data: bytes.Repeat([]byte("x"), shownMax)})
	}
	var cell Cell
	c.finish(&cell)
	if notes != 1 || cell.Spill != nil || cell.StdoutBytes != 3*shownMax {
		t.Errorf("%d notes, spill %v, %d bytes", notes, cell.Spill, cell.StdoutBytes)
	}
}
