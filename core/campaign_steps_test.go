package core_test

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/plugin/sdk/sdktest"
)

// remoteStep is one thing that happens between an engine and a backend.
type remoteStep struct {
	step sdktest.Step
	arg  string // start, relay, call: of the command
	kind string // of the message in a stream
	skip int    // so many of the same come before it
}

func (s remoteStep) String() string {
	name := strings.Join(strings.Fields(string(s.step)+" "+s.arg+" "+s.kind), " ")
	if s.skip > 0 {
		name += fmt.Sprintf(" #%d", s.skip+1)
	}
	return name
}

func (s remoteStep) fault(do sdktest.Effect) sdktest.Fault {
	f := sdktest.Fault{Step: s.step, Arg: s.arg, Skip: s.skip, Do: do}
	if s.kind != "" {
		f.Match = kindPattern(s.kind)
	}
	return f
}

// kindPattern is how msgpack has "t": kind, in whatever frame it travels.
func kindPattern(kind string) []byte {
	return append([]byte{0xa1, 't', 0xa0 | byte(len(kind))}, kind...)
}

// kindsIn lists the kinds of the messages in data.
func kindsIn(data []byte) []string {
	var out []string
	for {
		_, rest, found := bytes.Cut(data, []byte{0xa1, 't'})
		if !found {
			return out
		}
		data = rest
		if len(rest) == 0 || rest[0] < 0xa1 || rest[0] > 0xbf || len(rest) < 1+int(rest[0]&0x1f) {
			continue
		}
		kind := string(rest[1 : 1+rest[0]&0x1f])
		if strings.Trim(kind, "abcdefghijklmnopqrstuvwxyz_") == "" {
			out = append(out, kind)
		}
	}
}

// stepsOf lists the steps in the records of a trial, each where it happened first; of starts each.
func stepsOf(records []sdktest.Record) []remoteStep {
	var out []remoteStep
	add := func(s remoteStep) {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	started := map[sdktest.Step]map[int]int{}
	for _, r := range records {
		arg := ""
		if i := slices.Index(r.Argv, "hermes-kernel-host"); i >= 0 && i+1 < len(r.Argv) {
			arg = r.Argv[i+1]
		}
		switch r.Step {
		case sdktest.StepOpen, sdktest.StepDial, sdktest.StepClose:
			add(remoteStep{step: r.Step})
		case sdktest.StepPut, sdktest.StepGet:
			add(remoteStep{step: r.Step})
		case sdktest.StepExec, sdktest.StepStdin, sdktest.StepStdout:
			if arg != "start" {
				break
			}
			if started[r.Step] == nil {
				started[r.Step] = map[int]int{}
			}
			if _, known := started[r.Step][r.Call]; !known {
				started[r.Step][r.Call] = len(started[r.Step])
			}
			add(remoteStep{step: r.Step, arg: arg, skip: started[r.Step][r.Call]})
		}
		if r.Step == sdktest.StepExec && arg != "start" {
			add(remoteStep{step: r.Step, arg: arg})
		}
		if len(r.Data) > 0 && arg != "start" {
			for _, kind := range kindsIn(r.Data) {
				add(remoteStep{step: r.Step, arg: arg, kind: kind})
			}
		}
	}
	return out
}

// attaching are the messages before a kernel is asked for.
var attaching = []string{"hello", "proof", "welcome", "ping", "pong"}

// mustBeOK reports whether a fault of this step that goes away may not be seen in any result. That is so for all that happens on a connection once
// there was one, and for a dial, which a relay can take the place of. What comes before may be an error.
func (s remoteStep) mustBeOK() bool {
	switch s.step {
	case sdktest.StepDial, sdktest.StepSend, sdktest.StepReceive, sdktest.StepClose:
		return true
	case sdktest.StepStdin, sdktest.StepStdout:
		return s.kind != "" && !slices.Contains(attaching, s.kind)
	default:
		return false
	}
}

// keepsState reports whether the kernel must live on, too: the connection broke, and no more.
func (s remoteStep) keepsState() bool {
	return s.mustBeOK() && s.step != sdktest.StepDial && !slices.Contains(attaching, s.kind) && s.kind != "open" && s.kind != "kernel"
}

// known are the problems that the engine still has: what it does that the design forbids. They are logged and not failed.
var known = []struct{ cases, problem, why string }{}

// campaignEffects are what goes wrong at each step.
var campaignEffects = []sdktest.Effect{sdktest.FailBefore, sdktest.FailAfter, sdktest.Rubbish, sdktest.Hang}

// stepTrial is a trial with a fault at one step.
type stepTrial struct {
	trial

	at      remoteStep
	do      sdktest.Effect
	patient bool // what hangs is waited for
}

// TestCampaignEveryStep lets each step between engine and backend go wrong in each way.
func TestCampaignEveryStep(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the campaign takes half a minute")
	}
	var clean, list []*trial
	for backend := range faultyBackends {
		clean = append(clean, &trial{name: backend, backend: backend}, &trial{name: backend + " broken", backend: backend, faults: brokenConnection(backend)})
	}
	slices.SortFunc(clean, func(a, b *trial) int { return strings.Compare(a.name, b.name) })
	cases := map[*trial]*stepTrial{}
	inParallel(t, clean, func(tr *trial, r report) {
		for _, c := range stepTrials(t, tr, r) {
			if *campaignLong || c.inShort() {
				list = append(list, &c.trial)
				cases[&c.trial] = c
			}
		}
	})
	list = picked(t, list)
	t.Logf("%d cases", len(list))
	inParallel(t, list, func(tr *trial, r report) {
		t.Run(tr.name, func(t *testing.T) { cases[tr].judge(t, r) })
	})
}

// brokenConnection breaks the connection once while a cell runs, so that it has to be followed over another one.
func brokenConnection(backend string) []sdktest.Fault {
	s := remoteStep{step: sdktest.StepReceive, kind: "started"}
	switch backend {
	case "faulty-relay":
		s.step, s.arg = sdktest.StepStdout, "relay"
	case "faulty-runner":
		s = remoteStep{step: sdktest.StepStdin, arg: "call", kind: "submit"}
	}
	return []sdktest.Fault{s.fault(sdktest.FailAfter)}
}

// following are the messages that a broken connection brings.
var following = []string{"state", "follow", "resume"}

// stepTrials lists the cases that come from a trial in which nothing else went wrong.
func stepTrials(t *testing.T, clean *trial, r report) []*stepTrial {
	if bad := r.problems(clean); len(bad) > 0 || !r.cells[0].ok() || !r.cells[1].ok() {
		t.Errorf("%s without a further fault: %q, %s", clean.name, bad, r.cells)
		return nil
	}
	steps := stepsOf(r.records)
	if len(clean.faults) > 0 {
		steps = slices.DeleteFunc(steps, func(s remoteStep) bool { return !slices.Contains(following, s.kind) })
	}
	t.Logf("%s: the remote steps of three cells: %s", clean.name, steps)
	var out []*stepTrial
	for _, s := range steps {
		for _, do := range campaignEffects {
			if s.step == sdktest.StepExec && s.arg == "relay" && do == sdktest.FailAfter {
				continue // a relay does not end by itself, so this is no other case than that it hangs
			}
			c := &stepTrial{at: s, do: do}
			c.trial = trial{name: fmt.Sprintf("%s/%s/%s", clean.name, s, do), backend: clean.backend, faults: append(slices.Clone(clean.faults), s.fault(do))}
			if do != sdktest.Hang {
				out = append(out, c)
				continue
			}
			impatient := *c
			impatient.limit = 4 * time.Second
			out = append(out, &impatient)
			if s.mustBeOK() {
				c.patient = true
				c.name += " patiently"
				out = append(out, c)
			}
		}
	}
	return out
}

// inShort picks the cases of the short form: what decides about a cell.
func (c *stepTrial) inShort() bool {
	kind := func(kinds ...string) bool { return slices.Contains(kinds, c.at.kind) }
	switch {
	case c.patient:
		return false
	case c.backend == "faulty-runner" && c.at.step == sdktest.StepExec && c.do == sdktest.FailAfter:
		return true
	case c.backend != "faulty":
		return c.do == sdktest.FailAfter && kind("submit", "end")
	case c.do == sdktest.Hang: // the bounds of the engine and the time that a kernel host without a client stays make it half a minute each
		return false
	case c.do == sdktest.Rubbish:
		return kind("submit")
	case c.at.arg == "start":
		return c.at.skip == 1 && c.do == sdktest.FailAfter && c.at.step == sdktest.StepExec
	}
	return c.at.step == sdktest.StepDial || kind("submit", "accepted", "started", "end", "ack", "state", "follow", "shutdown")
}

func (c *stepTrial) judge(t *testing.T, r report) {
	bad := r.problems(&c.trial)
	if r.broken == nil && (c.do != sdktest.Hang || c.patient) {
		for i, seen := range r.cells[:2] {
			if c.at.mustBeOK() && !seen.ok() {
				bad = append(bad, fmt.Sprintf("cell %d, though the connection alone failed, once: %s", i+1, seen))
			}
			if k := seen.res.Kernel; c.at.keepsState() && seen.ok() && (k.StateLost || i > 0 && !k.Reused) {
				bad = append(bad, fmt.Sprintf("cell %d has another kernel, though the connection alone failed, once: %s", i+1, seen))
			}
		}
		if c.at.mustBeOK() && len(bad) == 0 && r.kernels > 1 {
			bad = append(bad, fmt.Sprintf("%d kernels were there in the end", r.kernels))
		}
	}
	for _, b := range bad {
		if why := c.known(b); why != "" {
			t.Logf("known: %s: %s", why, b)
			continue
		}
		t.Error(b)
	}
	if t.Failed() {
		for _, seen := range r.cells {
			t.Log(seen)
		}
		t.Logf("close after %s: %v; %d kernels", r.close, r.closing, r.kernels)
	}
}

// known says why a problem is no news, or nothing.
func (c *stepTrial) known(problem string) string {
	for _, k := range known {
		if regexp.MustCompile(k.cases).MatchString(c.name) && regexp.MustCompile(k.problem).MatchString(problem) {
			return k.why
		}
	}
	return ""
}
