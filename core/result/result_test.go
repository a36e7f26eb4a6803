package result

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core/cell"
)

func spillTo(t *testing.T) func() (string, error) {
	dir := t.TempDir()
	return func() (string, error) { return dir, nil }
}

// feed gives data to a collector's stdout in chunks of the given size, and returns the finished cell.
func feed(t *testing.T, data []byte, chunk int, emit func(cell.Event)) cell.Cell {
	t.Helper()
	c := New("c-1", emit, spillTo(t))
	for off := 0; off < len(data); off += chunk {
		c.Take(cell.Frame{Channel: 1, Stream: cell.StreamOut, Offset: int64(off), Data: data[off:min(off+chunk, len(data))]})
	}
	var done cell.Cell
	c.Finish(&done)
	return done
}

func TestLittleOutputIsWhole(t *testing.T) {
	for _, size := range []int{0, 1, 100, shownMax} {
		data := bytes.Repeat([]byte("x"), size)
		done := feed(t, data, 7000, nil)
		if done.Stdout != string(data) || done.StdoutBytes != int64(size) || done.StdoutOmitted != 0 || done.Spill != nil {
			t.Errorf("%d bytes: shown %d, total %d, omitted %d, spill %v", size, len(done.Stdout), done.StdoutBytes, done.StdoutOmitted, done.Spill)
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
			done := feed(t, data, chunk, nil)
			head, tail := string(data[:shownHead]), string(data[size-shownTail:])
			if !strings.HasPrefix(done.Stdout, head) || !strings.HasSuffix(done.Stdout, tail) {
				t.Errorf("%d bytes in chunks of %d: head or tail differ", size, chunk)
			}
			if done.StdoutBytes != int64(size) || done.StdoutOmitted != int64(size-shownMax) {
				t.Errorf("%d bytes in chunks of %d: total %d, omitted %d, want %d and %d", size, chunk, done.StdoutBytes, done.StdoutOmitted, size, size-shownMax)
			}
			spilled, err := os.ReadFile(done.Spill.Stdout)
			if err != nil || !bytes.Equal(spilled, data) {
				t.Errorf("%d bytes in chunks of %d: the spill has %d, error %v", size, chunk, len(spilled), err)
			}
			if info, err := os.Stat(done.Spill.Stdout); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the spill's mode is %v, error %v, want 0600", info.Mode(), err)
			}
		}
	}
}

func TestOutputIsDecodedAcrossChunks(t *testing.T) {
	const text = "aé€😀z"
	for chunk := 1; chunk < len(text); chunk++ {
		var events strings.Builder
		done := feed(t, []byte(text), chunk, func(e cell.Event) { events.WriteString(e.Text) })
		if events.String() != text || done.Stdout != text {
			t.Errorf("chunks of %d: events %q, result %q, want %q", chunk, events.String(), done.Stdout, text)
		}
	}
}

func TestBytesThatAreNoTextBecomeReplacementCharacters(t *testing.T) {
	done := feed(t, []byte{0xff, 0xfe, '\n'}, 1, nil)
	if done.Stdout != "\ufffd\ufffd\n" || done.StdoutBytes != 3 {
		t.Errorf("got %q of %d bytes", done.Stdout, done.StdoutBytes)
	}
}

// A cut between head and tail never makes a character that was not there.
func TestTheCutIsBetweenCharacters(t *testing.T) {
	for shift := range 4 {
		data := []byte(strings.Repeat("x", shift) + strings.Repeat("€", 40_000))
		if done := feed(t, data, 65536, nil); strings.Contains(done.Stdout, "\ufffd") {
			t.Errorf("shifted by %d: a replacement character in the result", shift)
		}
	}
}

func TestGapsAreMarkedAndCounted(t *testing.T) {
	var gaps []cell.Event
	c := New("c-1", func(e cell.Event) {
		if e.Kind == cell.EventGap {
			gaps = append(gaps, e)
		}
	}, spillTo(t))
	c.Take(cell.Frame{Stream: cell.StreamOut, Data: []byte("abc")})
	c.Take(cell.Frame{Msg: cell.Fields{"t": "gap", "stream": int64(cell.StreamOut), "from": int64(3), "to": int64(1003)}})
	c.Take(cell.Frame{Stream: cell.StreamOut, Offset: 1003, Data: []byte("xyz")})
	var done cell.Cell
	c.Finish(&done)
	if done.Stdout != "abc\n[hermes: 1000 bytes not kept]\nxyz" || done.StdoutBytes != 1006 || done.StdoutOmitted != 1000 {
		t.Errorf("got %q, %d bytes, %d omitted", done.Stdout, done.StdoutBytes, done.StdoutOmitted)
	}
	if len(gaps) != 1 || gaps[0].Offset != 3 || gaps[0].Omitted != 1000 {
		t.Errorf("gap events: %+v", gaps)
	}
}

// Failing to save never fails the cell.
func TestASpillThatCannotBeWrittenIsANote(t *testing.T) {
	var notes int
	c := New("c-1", func(e cell.Event) {
		if e.Kind == cell.EventNote {
			notes++
		}
	}, func() (string, error) { return "", os.ErrPermission })
	for range 3 {
		c.Take(cell.Frame{Stream: cell.StreamOut, Data: bytes.Repeat([]byte("x"), shownMax)})
	}
	var done cell.Cell
	c.Finish(&done)
	if notes != 1 || done.Spill != nil || done.StdoutBytes != 3*shownMax {
		t.Errorf("%d notes, spill %v, %d bytes", notes, done.Spill, done.StdoutBytes)
	}
}

// FuzzText: however output is cut into frames, the events' texts together are the output's text, and so is the result's.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "plain", "aé€😀z", "\xff\xfe", "€\xe2\x82", "\xf0\x9f\x98\x80\xf0\x9f", "\xe2\x82A\xc3", "\x80\x80\x80\x80\x80", "\xed\xa0\x80"} {
		for chunk := range 4 {
			f.Add([]byte(s), uint8(chunk))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, chunk uint8) {
		var events strings.Builder
		done := feed(t, data, 1+int(chunk), func(e cell.Event) {
			if !utf8.ValidString(e.Text) {
				t.Errorf("%q in chunks of %d: an event says %q", data, chunk, e.Text)
			}
			events.WriteString(e.Text)
		})
		want := string([]rune(string(data))) // U+FFFD for each byte that is not UTF-8
		if diff := cmp.Diff(want, events.String()); diff != "" {
			t.Errorf("%q in chunks of %d: events (-want +got):\n%s", data, 1+int(chunk), diff)
		}
		if diff := cmp.Diff(want, done.Stdout); diff != "" && len(data) <= shownMax {
			t.Errorf("%q in chunks of %d: result (-want +got):\n%s", data, 1+int(chunk), diff)
		}
	})
}
