// Package lockdown builds what runs on shared hosts so that no secret can be seen there.
package lockdown

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Launch is one start of a program on a host that others use, too. What it is given in Argv and Env everybody there can read; what must stay
// private is in Stdin and nowhere else.
type Launch struct {
	Argv  []string
	Env   []string // "K=V" entries, added to the environment's own
	Stdin []byte
}

// Program is a program in Python that a small loader, the whole of its command line, reads from stdin. Source that was sent once is found
// again by its Sum.
type Program struct {
	Name   string // shown by ps
	Loader string
	Sum    string // SHA-256 of the source, in hex
	Source []byte // nil: only its Sum is sent
}

// Launch is the start of the program in the interpreter, for what mode says. The config travels with the source.
func (p Program) Launch(interpreter, mode string, config []byte) Launch {
	head := fmt.Sprintf("hermes1 %s %d %d\n", p.Sum, len(p.Source), len(config))
	return Launch{
		Argv:  []string{interpreter, "-c", p.Loader, p.Name, mode},
		Env:   []string{"PYTHONDONTWRITEBYTECODE=1"},
		Stdin: slices.Concat([]byte(head), p.Source, config),
	}
}

// Answer is a line with which a Program answers.
type Answer struct {
	Kind    AnswerKind
	Payload []byte // of ready and error: what the program encoded
}

// AnswerKind says what an Answer means.
type AnswerKind string

// The kinds of answer.
const (
	NeedSource AnswerKind = "need-source" // the Sum is not known there: send Source
	Ready      AnswerKind = "ready"       // the program runs
	Failed     AnswerKind = "error"       // it does not
)

// ParseAnswer reads a line of a Program's output. ok is false for a line that is no answer: others may print there, too.
func ParseAnswer(line string) (a Answer, ok bool, err error) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), "hermes-")
	kind, payload, _ := strings.Cut(rest, " ")
	a.Kind = AnswerKind(kind)
	switch {
	case !ok:
		return Answer{}, false, nil
	case a.Kind == NeedSource && payload == "":
		return a, true, nil
	case a.Kind != Ready && a.Kind != Failed:
		return Answer{}, false, nil
	}
	if a.Payload, err = hex.DecodeString(payload); err != nil {
		return Answer{}, true, fmt.Errorf("the answer %s: %w", kind, err)
	}
	return a, true, nil
}
