// Package compat_test keeps the record of what became of the names of release 0.1.0: moves.json.
//
// Each package-level name of api/v0.1.txt has one row that says where it is now; new is old for what stayed where it was. A row
// with "stays" says that for a whole package. A package that is gone has a row of kind module-stub besides those of its names.
package compat_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// table is moves.json.
type table struct {
	Base  string `json:"base"` // the last commit of 0.1.0
	Moves []move `json:"moves"`
}

// move is one row: what became of a name, or of a package, of 0.1.0.
type move struct {
	Old     string   `json:"old"`               // import/path.Name, or import/path
	New     string   `json:"new,omitempty"`     // the same; empty if there is nothing in its place
	Kind    string   `json:"kind,omitempty"`    // a key of kinds
	Stays   bool     `json:"stays,omitempty"`   // instead of kind: Old is a package of which no name has moved
	Differs []string `json:"differs,omitempty"` // how New is not as Old was: "-" and a line of api/v0.1.txt, "+" and one of api/current.txt, without the package
	Reason  string   `json:"reason,omitempty"`  // why it differs, or why there is no pointer to it
}

// kinds says what the old name of a row of that kind is: a word, and in front of it "generic" if it has type parameters.
var kinds = map[string][]string{
	"type":          {"type"},
	"generic-type":  {"generic type"},
	"const":         {"const"},
	"func":          {"func"},
	"generic-func":  {"generic func"},
	"var-sentinel":  {"var"},                                                          // an error that nobody assigns to
	"adapter":       {"func", "generic func"},                                         // in a package below compat: the function with its old signature
	"restored-def":  {"type", "generic type", "const", "func", "generic func", "var"}, // in a package below compat: it was deleted
	"unforwardable": {"type", "generic type", "const", "func", "generic func", "var"}, // Go has no way to point there
	"module-stub":   {"package"},
}

func readTable(data []byte) (table, error) {
	var t table
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&t); err != nil {
		return table{}, err
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return table{}, errors.New("there is something after the table")
	}
	return t, nil
}

// TestMoves: each name of 0.1.0 has a row that is true.
func TestMoves(t *testing.T) {
	var texts []string
	for _, name := range []string{"moves.json", "../api/v0.1.txt", "../api/current.txt"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(data))
	}
	moves, err := readTable([]byte(texts[0]))
	if err != nil {
		t.Fatalf("moves.json: %v", err)
	}

	for _, fault := range check(moves, texts[1], texts[2]) {
		t.Error(fault)
	}
}

// check lists what is wrong with a table, given the records of what was and of what is.
func check(t table, was, now string) []string {
	old, faults := readAPI("v0.1", was)
	current, more := readAPI("current", now)
	c := checker{old: old, current: current, rows: map[string]move{}, faults: append(faults, more...)}

	if !regexp.MustCompile(`^[0-9a-f]{40}$`).MatchString(t.Base) {
		c.fault("base %q is not the id of a commit in 40 hexadecimal digits", t.Base)
	}
	for i, m := range t.Moves {
		if i > 0 && m.Old <= t.Moves[i-1].Old {
			c.fault("%s stands after %s: rows are sorted by old, each once", m.Old, t.Moves[i-1].Old)
		}
		c.rows[m.Old] = m
	}
	for _, m := range t.Moves {
		c.row(m)
	}
	for _, pkg := range slices.Sorted(maps.Keys(old.packages)) {
		c.complete(pkg)
	}
	return c.faults
}

type checker struct {
	old, current api
	rows         map[string]move
	faults       []string
}

func (c *checker) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// row checks what one row says.
func (c *checker) row(m move) {
	what := c.old.decls[m.Old].word
	switch {
	case c.old.packages[m.Old]:
		what = "package"
	case c.old.decls[m.Old].generic:
		what = "generic " + what
	case what == "":
		c.fault("%s: not in api/v0.1.txt", m.Old)
		return
	}
	needsReason := len(m.Differs) > 0 || slices.Contains([]string{"adapter", "restored-def", "unforwardable"}, m.Kind)
	if needsReason && m.Reason == "" {
		c.fault("%s: has no reason", m.Old)
	}
	if !needsReason && m.Reason != "" {
		c.fault("%s: has a reason for nothing", m.Old)
	}

	allowed, known := kinds[m.Kind]
	switch {
	case m.Stays && (what != "package" || m.Kind != "" || m.New != m.Old || !c.current.packages[m.New]):
		c.fault("%s: stays is for a package that is still there, new is old and there is no kind", m.Old)
	case m.Stays:
		for _, name := range c.names(m.Old) {
			c.compare(move{Old: name, New: name})
		}
	case !known:
		c.fault("%s: unknown kind %q", m.Old, m.Kind)
	case !slices.Contains(allowed, what):
		c.fault("%s: kind %s, but it is a %s", m.Old, m.Kind, what)
	case m.Kind == "module-stub":
		if !c.current.packages[m.New] {
			c.fault("%s: new %s is not a package in api/current.txt", m.Old, m.New)
		}
	case m.Kind == "adapter" || m.Kind == "restored-def":
		if !strings.Contains(m.New, "/compat/") {
			c.fault("%s: new %s is not below compat", m.Old, m.New)
		}
	case m.Kind == "unforwardable" && m.New == "":
	default:
		if m.Kind == "var-sentinel" && !slices.Contains(c.old.decls[m.Old].lines, "var "+m.Old[strings.LastIndex(m.Old, ".")+1:]+" error") {
			c.fault("%s: kind var-sentinel, but it is no error", m.Old)
		}
		c.compare(m)
	}
}

// compare wants New to be what Old was, once each name in it has moved, or to differ as the row says.
func (c *checker) compare(m move) {
	old, now := c.old.decls[m.Old], c.current.decls[m.New]
	switch {
	case now.word == "":
		c.fault("%s: new %s is not in api/current.txt", m.Old, m.New)
	case now.word != old.word:
		c.fault("%s: a %s, but new %s is a %s", m.Old, old.word, m.New, now.word)
	case old.alias != "":
		if got, want := c.current.resolve(m.New), c.moved(old.alias); got != want {
			c.fault("%s: stood for what is now %s, but new %s stands for %s", m.Old, want, m.New, got)
		}
	default:
		differs := difference(c.old.shapes(m.Old, c.moved), c.current.shapes(c.current.resolve(m.New), c.current.resolve))
		if d := cmp.Diff(m.Differs, differs); d != "" {
			c.fault("%s: differs from new %s (-what the row says +what is):\n%s", m.Old, m.New, d)
		}
	}
}

// difference lists what code written against was misses in now. Something may join a struct or a method set, but what joins an
// interface breaks those who implement it.
func difference(was, now map[string]string) []string {
	var differs []string
	for shape, line := range was {
		if now[shape] == "" {
			differs = append(differs, "-"+line)
		}
	}
	for shape, line := range now {
		if was[shape] == "" && strings.HasPrefix(shape, "type NAME interface, ") {
			differs = append(differs, "+"+line)
		}
	}
	slices.Sort(differs)
	return differs
}

// moved says what a name of 0.1.0 is now.
func (c *checker) moved(name string) string {
	if to := c.rows[name].New; to != "" {
		name = to
	}
	return c.current.resolve(name)
}

// complete wants a package of 0.1.0 to have a row that says that it stays, or one for each of its names, and one for itself if
// none of them is still there.
func (c *checker) complete(pkg string) {
	row, has := c.rows[pkg]
	gone := true
	for _, name := range c.names(pkg) {
		m, named := c.rows[name]
		switch {
		case named && row.Stays:
			c.fault("%s: has a row, but its package has one that says that it stays", name)
		case !named && !row.Stays:
			c.fault("%s: has no row", name)
		}
		to, _ := split(m.New)
		gone = gone && to != pkg
	}
	switch {
	case !row.Stays && gone && !has:
		c.fault("%s: has no row, and none of its names is still there", pkg)
	case !row.Stays && !gone && has:
		c.fault("%s: has a row as if it were gone, but some of its names are still there", pkg)
	}
}

// names lists the names of a package of 0.1.0.
func (c *checker) names(pkg string) []string {
	var names []string
	for name := range c.old.decls {
		if in, _ := split(name); in == pkg {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// The records of a module of which package a moved to b and on to c, but for one name, and package s stayed; and its table.
const (
	sampleWas = `pkg m/a, const Max Level = 7
pkg m/a, func Get[T any](string) (T, error)
pkg m/a, func Open(Options, ...Level) (*Thing, error)
pkg m/a, method (*Thing) Close(Options) error
pkg m/a, type Level int
pkg m/a, type Options struct
pkg m/a, type Options struct, Level Level "json:\"Level\""
pkg m/a, type Same = m/s.S
pkg m/a, type Thing struct
pkg m/a, type Thing struct, embedded Options Options
pkg m/a, type Thing struct, unexported fields
pkg m/a, type Viewer interface
pkg m/a, type Viewer interface, View() Level
pkg m/a, var ErrGone error
pkg m/a, var Limit int
pkg m/s (linux), func Linux(m/a.Options)
pkg m/s, type S struct
`
	sampleNow = `pkg m/a, func Open(m/b.Options, ...m/b.Level) (*m/b.Thing, error)
pkg m/b, const Max Level = 7
pkg m/b, func Get[T any](string) (T, error)
pkg m/b, method (*Thing) Close(m/c.Options) error
pkg m/b, method (*Thing) Reset()
pkg m/b, type Level int
pkg m/b, type Options = m/c.Options
pkg m/b, type Same = m/s.S
pkg m/b, type Thing struct
pkg m/b, type Thing struct, embedded Options m/c.Options
pkg m/b, type Thing struct, unexported fields
pkg m/b, type Viewer interface
pkg m/b, type Viewer interface, View() Level
pkg m/b, var ErrGone error
pkg m/b, var Limit int
pkg m/c, type Options struct
pkg m/c, type Options struct, Level m/b.Level "json:\"Level\""
pkg m/s (linux), func Linux(m/c.Options)
pkg m/s, type S struct
`
	sampleMoves = `{"base": "0123456789012345678901234567890123456789", "moves": [
{"old": "m/a.ErrGone", "new": "m/b.ErrGone", "kind": "var-sentinel"},
{"old": "m/a.Get", "new": "m/b.Get", "kind": "generic-func"},
{"old": "m/a.Level", "new": "m/b.Level", "kind": "type"},
{"old": "m/a.Limit", "new": "m/b.Limit", "kind": "unforwardable", "reason": "a variable"},
{"old": "m/a.Max", "new": "m/b.Max", "kind": "const"},
{"old": "m/a.Open", "new": "m/a.Open", "kind": "func"},
{"old": "m/a.Options", "new": "m/b.Options", "kind": "type"},
{"old": "m/a.Same", "new": "m/b.Same", "kind": "type"},
{"old": "m/a.Thing", "new": "m/b.Thing", "kind": "type"},
{"old": "m/a.Viewer", "new": "m/b.Viewer", "kind": "type"},
{"old": "m/s", "new": "m/s", "stays": true}
]}`
)

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name      string
		old, with string   // what is replaced in sampleMoves or sampleNow
		want      []string // how the faults begin
	}{
		{"sound", "", "", nil},
		{"short base", "0123456789012345678901234567890123456789", "0123456", []string{`base "0123456" is not`}},

		{"no row", `{"old": "m/a.Max", "new": "m/b.Max", "kind": "const"},`, "", []string{"m/a.Max: has no row"}},
		{"no row for a package", `,
{"old": "m/s", "new": "m/s", "stays": true}`, "", []string{"m/s.Linux: has no row", "m/s.S: has no row", "m/s: has no row"}},
		{"row for no name", `{"old": "m/s", `, `{"old": "m/ab", "new": "m/s", "kind": "module-stub"}, {"old": "m/s", `, []string{"m/ab: not in api/v0.1.txt"}},
		{"row for a field", `{"old": "m/s", `, `{"old": "m/a.Thing.Options", "new": "m/b.Thing.Options", "kind": "type"}, {"old": "m/s", `, []string{
			"m/a.Thing.Options stands after m/a.Viewer", "m/a.Thing.Options: not in api/v0.1.txt",
		}},
		{"row twice", `{"old": "m/a.Max", `, `{"old": "m/a.Max", "new": "m/b.Max", "kind": "const"}, {"old": "m/a.Max", `, []string{"m/a.Max stands after m/a.Max"}},
		{"rows out of order", `{"old": "m/a.Get", "new": "m/b.Get", "kind": "generic-func"},
{"old": "m/a.Level", "new": "m/b.Level", "kind": "type"},`, `{"old": "m/a.Level", "new": "m/b.Level", "kind": "type"},
{"old": "m/a.Get", "new": "m/b.Get", "kind": "generic-func"},`, []string{"m/a.Get stands after m/a.Level"}},
		{"row of a name whose package stays", `"stays": true}`, `"stays": true}, {"old": "m/s.S", "new": "m/s.S", "kind": "type"}`, []string{"m/s.S: has a row, but"}},

		{"unknown kind", `"kind": "const"`, `"kind": "constant"`, []string{`m/a.Max: unknown kind "constant"`}},
		{"no kind", `, "kind": "const"`, "", []string{`m/a.Max: unknown kind ""`}},
		{"kind of another thing", `"kind": "const"`, `"kind": "func"`, []string{"m/a.Max: kind func, but it is a const"}},
		{"not generic", `"kind": "generic-func"`, `"kind": "func"`, []string{"m/a.Get: kind func, but it is a generic func"}},
		{"no sentinel", `"unforwardable", "reason": "a variable"`, `"var-sentinel"`, []string{"m/a.Limit: kind var-sentinel, but it is no error"}},
		{"no reason", `, "reason": "a variable"`, "", []string{"m/a.Limit: has no reason"}},
		{"reason for nothing", `"kind": "const"`, `"kind": "const", "reason": "so"`, []string{"m/a.Max: has a reason for nothing"}},
		{"adapter elsewhere", `"kind": "generic-func"`, `"kind": "adapter", "reason": "it took a string"`, []string{"m/a.Get: new m/b.Get is not below compat"}},
		{"stays and moves", `"new": "m/s"`, `"new": "m/b"`, []string{"m/s: stays is for"}},
		{"nothing left", `"new": "m/a.Open"`, `"new": "m/b.Max"`, []string{"m/a.Open: a func, but new m/b.Max is a const", "m/a: has no row, and none"}},
		{"stub of what is there", `{"old": "m/a.ErrGone"`, `{"old": "m/a", "new": "m/b", "kind": "module-stub"}, {"old": "m/a.ErrGone"`, []string{"m/a: has a row as if"}},

		{"new is missing", `"new": "m/b.Max"`, `"new": "m/b.Most"`, []string{"m/a.Max: new m/b.Most is not in api/current.txt"}},
		{"value", "const Max Level = 7", "const Max Level = 8", []string{"m/a.Max: differs"}},
		{"type of a constant", "const Max Level = 7", "const Max untyped int = 7", []string{"m/a.Max: differs"}},
		{"type of a variable", "var Limit int", "var Limit int64", []string{"m/a.Limit: differs"}},
		{"signature", "Get[T any](string)", "Get[T comparable](string)", []string{"m/a.Get: differs"}},
		{"type of another package", "func Open(m/b.Options", "func Open(m/s.S", []string{"m/a.Open: differs"}},
		{"underlying type", "type Level int", "type Level uint", []string{"m/a.Level: differs"}},
		{"tag", `json:\"Level\"`, `json:\"level\"`, []string{"m/a.Options: differs"}},
		{"field behind an alias", "struct, Level m/b.Level", "struct, Level int", []string{"m/a.Options: differs"}},
		{"embedded name", "embedded Options m", "embedded Choices m", []string{"m/a.Thing: differs"}},
		{"receiver", "method (*Thing) Close", "method (*Viewer) Close", []string{"m/a.Thing: differs"}},
		{"method", "Close(m/c.Options) error", "Close(m/c.Options)", []string{"m/a.Thing: differs"}},
		{"method of an interface", "View() Level", "View(Level) Level", []string{"m/a.Viewer: differs"}},
		{"one more method of an interface", "pkg m/b, type Viewer interface, ", "pkg m/b, type Viewer interface, Hide()\npkg m/b, type Viewer interface, ", []string{"m/a.Viewer: differs"}},
		{"one more field", "pkg m/c, type Options struct\n", "pkg m/c, type Options struct\npkg m/c, type Options struct, More int\n", nil},
		{"alias", "type Same = m/s.S", "type Same = m/b.Thing", []string{"m/a.Same: stood for what is now m/s.S, but new m/b.Same stands for m/b.Thing"}},
		{"system", "pkg m/s (linux), func", "pkg m/s (darwin), func", []string{"m/s.Linux: differs"}},
		{"line of another form", "pkg m/b, var Limit int", "pkg m/b, label Limit", []string{"api/current.txt: not understood: pkg m/b, label Limit", "m/a.Limit: new m/b.Limit is not in"}},

		{"difference that is none", `"kind": "const"`, `"kind": "const", "differs": ["-const Max Level = 7"], "reason": "so"`, []string{"m/a.Max: differs"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if n := strings.Count(sampleMoves+sampleNow, tt.old); tt.old != "" && n != 1 {
				t.Fatalf("the sample has %q %d times", tt.old, n)
			}
			moves, err := readTable([]byte(strings.Replace(sampleMoves, tt.old, tt.with, 1)))
			if err != nil {
				t.Fatal(err)
			}

			got := check(moves, sampleWas, strings.Replace(sampleNow, tt.old, tt.with, 1))
			begins := slices.EqualFunc(got, tt.want, strings.HasPrefix)
			if !begins {
				t.Errorf("%q for %q: faults %q, want them to begin with %q", tt.with, tt.old, got, tt.want)
			}
		})
	}
}

// TestCheckListed: a difference that the row lists, with a reason, is no fault.
func TestCheckListed(t *testing.T) {
	moves, err := readTable([]byte(strings.Replace(sampleMoves, `"kind": "const"`, `"kind": "const", "differs": ["-const Max Level = 7"], "reason": "it grew"`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if got := check(moves, sampleWas, strings.Replace(sampleNow, "const Max Level = 7", "const Max Level = 8", 1)); len(got) > 0 {
		t.Errorf("faults %q, want none", got)
	}
}

func TestReadTableRefuses(t *testing.T) {
	for name, data := range map[string]string{
		"unknown field":        `{"base": "", "moves": [{"old": "m/a.X", "target": "m/b.X"}]}`,
		"unknown field on top": `{"base": "", "moves": [], "version": 1}`,
		"more than a table":    `{"base": "", "moves": []} []`,
		"no object":            `[]`,
	} {
		if _, err := readTable([]byte(data)); err == nil {
			t.Errorf("%s: readTable(%s) has no error", name, data)
		}
	}
}
