package core_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core/cell"
)

// resumedLines is how many lines of 100 bytes the cell of the resumed runs prints: 10 MB.
const resumedLines = 100_000

// resumedCode prints them with pauses, in about half a second.
const resumedCode = `import sys, time
w = sys.stdout.buffer
for i in range(0, 100_000, 2_000):
    w.write(b''.join(b'%099d\n' % n for n in range(i, i + 2_000)))
    w.flush()
    time.sleep(0.01)
sys.stderr.write('done\n')
i`

func resumedLine(n int) []byte { return fmt.Appendf(nil, "%099d\n", n) }

// view is what a program saw of a cell: its verdict, its result, and what was emitted.
type view struct {
	Verdict verdict
	Cell    cell.Cell
	Wrong   string // what was emitted and is not what the cell printed
	Emitted string // the pieces of stdout, joined where they meet, and the gaps
	Gaps    [][2]int64
}

// follower notes what is emitted of stdout.
type follower struct {
	at     int64
	from   int64
	pieces []string
	gaps   [][2]int64
	wrong  string
}

func (s *follower) emit(ev cell.Event) {
	if ev.Stream != "stdout" {
		return
	}
	if ev.Offset != s.at {
		s.wrong += fmt.Sprintf("%s at %d after %d; ", ev.Kind, ev.Offset, s.at)
	}
	switch ev.Kind {
	case cell.EventOutput:
		for i := 0; i < len(ev.Data); {
			at := ev.Offset + int64(i)
			line := resumedLine(int(at / 100))[at%100:]
			n := min(len(line), len(ev.Data)-i)
			if !bytes.Equal(line[:n], ev.Data[i:i+n]) {
				s.wrong += fmt.Sprintf("other bytes at %d; ", at)
				break
			}
			i += n
		}
		s.at = ev.Offset + int64(len(ev.Data))
	case cell.EventGap:
		s.piece()
		s.pieces = append(s.pieces, fmt.Sprintf("gap %d-%d", ev.Offset, ev.Offset+ev.Omitted))
		s.gaps = append(s.gaps, [2]int64{ev.Offset, ev.Offset + ev.Omitted})
		s.at = ev.Offset + ev.Omitted
		s.from = s.at
	}
}

func (s *follower) piece() {
	if s.at > s.from {
		s.pieces = append(s.pieces, fmt.Sprintf("%d-%d", s.from, s.at))
	}
	s.from = s.at
}

func (s *follower) view(v verdict, res cell.Result) view {
	s.piece()
	v.Took = 0
	c := res.Cell
	c.Spill = nil // a file of the program's own
	return view{Verdict: v, Cell: c, Wrong: s.wrong, Emitted: fmt.Sprint(s.pieces), Gaps: s.gaps}
}

// within reports whether what is left out in gaps is left out in most, too. They need not be the same: as long as the host keeps the link of a program
// that was killed (two minutes) it keeps more of the output of the cell that the program followed than the head and the tail of a result.
func within(gaps, most [][2]int64) bool {
	for _, g := range gaps {
		if !slices.ContainsFunc(most, func(m [2]int64) bool { return m[0] <= g[0] && g[1] <= m[1] }) {
			return false
		}
	}
	return true
}

// TestCampaignResume kills programs with SIGKILL at random moments of a cell that prints 10 MB. What the next ones see is what programs see that
// follow a cell whose program nobody killed.
func TestCampaignResume(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the campaign takes half a minute")
	}
	t.Parallel()
	r := seeded(t)
	f := newField(t, rand.New(rand.NewPCG(r.Uint64(), 0)))
	look := func(id string, kill <-chan time.Time) (seen *view, killed bool) {
		a := assignment{Output: true, Orders: []order{{N: 1, ID: id, Session: "s", Code: resumedCode}}}
		killed = f.program(a, nil, kill, func(line []byte) {
			seen = &view{}
			if err := json.Unmarshal(line, seen); err != nil {
				t.Errorf("a line of a program: %v: %q", err, line)
			}
		})
		return seen, killed
	}
	live, _ := look("undisturbed", nil)
	late, _ := look("undisturbed", nil)
	if live == nil || late == nil || live.Verdict.Outcome != cell.OutcomeOK || live.Wrong+late.Wrong != "" || live.Cell.StdoutBytes != 100*resumedLines {
		t.Fatalf("undisturbed: %+v\nlate: %+v", live, late)
	}
	want := func(what string, seen, other *view, id string) {
		t.Helper()
		seen.Cell.ID = other.Cell.ID
		seen.Cell.DurationMS = other.Cell.DurationMS
		if diff := cmp.Diff(other.Cell, seen.Cell); diff != "" || seen.Wrong != "" {
			t.Errorf("%s, %s: %s (-undisturbed +it)\n%s", id, what, seen.Wrong, diff)
		}
	}
	want("late", late, live, "undisturbed")
	t.Logf("live: %s; late: %s", live.Emitted, late.Emitted)
	kills, gaps := 0, 0
	for i := range longOr(100, 3) {
		id := fmt.Sprintf("killed-%d", i)
		first, killed := look(id, time.After(time.Duration(50+r.IntN(1200))*time.Millisecond))
		if killed {
			kills++
		}
		next, _ := look(id, nil)
		last, _ := look(id, nil)
		if next == nil || last == nil {
			t.Errorf("%s: nothing was seen", id)
			continue
		}
		if first != nil {
			want("the killed program", first, live, id)
		}
		if next.Emitted != live.Emitted {
			gaps++
		}
		want("the next program", next, live, id)
		want("the last program", last, late, id)
		if !within(last.Gaps, late.Gaps) {
			t.Errorf("%s: a late follower saw %s, of the undisturbed one %s", id, last.Emitted, late.Emitted)
		}
	}
	t.Logf("%d programs were killed, %d of the next ones saw gaps", kills, gaps)
	f.program(assignment{Prune: true}, nil, nil, func([]byte) {})
	f.checkLeft()
}
