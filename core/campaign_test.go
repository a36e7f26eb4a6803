package core_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugin/sdk/sdktest"
	"github.com/hermes-framework/hermes/plugins/local"
)

var (
	campaignLong = flag.Bool("campaign.long", false, "run every case of the campaign, also those that take minutes")
	campaignOnly = flag.String("campaign.only", "", "run the cases of the campaign whose name matches")
	campaignSide = flag.Int("campaign.side", 6, "how many cases of the campaign run at once; most of them wait")
)

// faultyBackends are the backends of the campaign: with a socket to dial, with commands that can be talked to, with commands that cannot.
// Each calls itself local, as an engine gives a kernel host on another machine minutes to live without a client.
var faultyBackends = map[string]func() sdk.Backend{
	"faulty":        func() sdk.Backend { return sdktest.Faulty(local.New()) },
	"faulty-relay":  func() sdk.Backend { return asLocal{sdktest.Faulty(noSocket{local.New()})} },
	"faulty-runner": func() sdk.Backend { return asLocal{sdktest.Faulty(newRunner())} },
}

type asLocal struct{ sdk.Backend }

func (b asLocal) Info(ctx context.Context) (sdk.Info, error) {
	info, err := b.Backend.Info(ctx)
	info.Name, info.Schemes = "local", nil
	return info, err
}

// trial is one engine that runs cells while something goes wrong.
type trial struct {
	name    string
	backend string // of faultyBackends
	faults  []sdktest.Fault
	limit   time.Duration // of each cell but the last; 0: none. For what hangs

	home string
}

// cellSeen is what a caller saw of one cell, and how often it ran.
type cellSeen struct {
	res  cell.Result
	err  error
	took time.Duration
	runs int
}

func (s cellSeen) String() string {
	if s.res.Cell.Outcome == "" {
		return fmt.Sprintf("%d runs, error %v, after %s", s.runs, s.err, s.took.Round(time.Millisecond))
	}
	k := s.res.Kernel
	return fmt.Sprintf("%d runs, %s (%.200s), reused %t, state_lost %t (%s), after %s", s.runs, s.res.Cell.Outcome, s.res.Cell.Reason, k.Reused, k.StateLost, k.StateLostReason, s.took.Round(time.Millisecond))
}

func (s cellSeen) ok() bool { return s.err == nil && s.res.Cell.Outcome == cell.OutcomeOK }

// report is what became of a trial.
type report struct {
	cells   []cellSeen
	kernels int // after the cells
	close   time.Duration
	closing error
	records []sdktest.Record
	left    []string // processes, sockets and host directories
	broken  error    // the trial itself could not be made
}

// fired is how many faults hit.
func (r report) fired() int {
	n := 0
	for _, rec := range r.records {
		if rec.Fault > 0 {
			n++
		}
	}
	return n
}

// Bounds of a trial: for a cell, and for Close.
const (
	longestCell  = 60 * time.Second
	longestClose = 45 * time.Second
	leaveWithin  = 60 * time.Second // a kernel host that nobody came to stays for 10 s; where a connection is there only while a command is, for 40 s
)

var trials atomic.Int64

// run makes the trial: three cells, then Close. The last cell has no limit.
func (tr *trial) run(ctx context.Context, wait func()) (r report) {
	tr.home = filepath.Join(homeDir, fmt.Sprintf("c%04d", trials.Add(1)))
	runtimeDir, marks, log := filepath.Join(tr.home, "r"), filepath.Join(tr.home, "marks"), filepath.Join(tr.home, "log")
	for _, dir := range []string{tr.home, runtimeDir} {
		if r.broken = os.Mkdir(dir, 0o700); r.broken != nil {
			return r
		}
	}
	e, err := core.Open(ctx, core.Config{
		Builtin: []core.Builtin{{
			Name: "local", Args: []string{"serve"},
			Env: []string{backendVar + "=" + tr.backend, "HOME=" + tr.home, "XDG_RUNTIME_DIR=" + runtimeDir},
		}},
		RuntimeDir:   filepath.Join(tr.home, "e"),
		Environments: map[string]core.EnvironmentConfig{"here": {Target: "local:", Config: map[string]any{"faults": tr.faults, "log": log, "data": true}}},
	})
	if err != nil {
		r.broken = err
		return r
	}
	for i := range 3 {
		limit := tr.limit
		if i == 2 {
			limit = 0
		}
		r.cells = append(r.cells, runCounted(ctx, e, marks, limit))
	}
	listing, cancel := context.WithTimeout(ctx, longestCell)
	kernels, err := e.Kernels(listing)
	cancel()
	if err == nil {
		r.kernels = len(kernels)
	}
	begun := time.Now()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*longestClose)
	defer cancel()
	r.closing = e.Close(closing)
	r.close = time.Since(begun)
	wait()
	r.left = tr.leftovers(runtimeDir)
	for i := range r.cells {
		r.cells[i].runs = countRuns(marks, r.cells[i].runs)
	}
	if r.records, err = sdktest.ReadRecords(log); err != nil {
		r.broken = err
	}
	return r
}

// runCounted runs a cell that appends a line to marks. Its runs is the number of the line that it writes, until countRuns.
func runCounted(ctx context.Context, e *core.Engine, marks string, limit time.Duration) cellSeen {
	id := int(trials.Add(1))
	code := fmt.Sprintf("import time\nn = globals().get('n', 0) + 1\nwith open(%q, 'a') as f: f.write('%d\\n')\ntime.sleep(0.2)\nn", marks, id)
	bound := longestCell + 30*time.Second // else it is a hang
	if limit > 0 {
		bound = limit
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	begun := time.Now()
	res, err := e.Run(ctx, core.Request{Environment: "here", Code: code}, nil)
	return cellSeen{res: res, err: err, took: time.Since(begun), runs: id}
}

func countRuns(marks string, id int) int {
	data, _ := os.ReadFile(marks)
	n := 0
	for line := range strings.Lines(string(data)) {
		if line == fmt.Sprintf("%d\n", id) {
			n++
		}
	}
	return n
}

// leftovers lists what is still there of the trial after a while.
func (tr *trial) leftovers(runtimeDir string) []string {
	for deadline := time.Now().Add(leaveWithin); ; time.Sleep(100 * time.Millisecond) { // processes of others: there is no event to wait for
		left := append(processesOf("HOME="+tr.home+"\x00"), hostFiles(tr.home)...)
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

// hostFiles lists the sockets and the directories of kernel hosts below dir.
func hostFiles(dir string) []string {
	var out []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil: // it goes while we look
		case d.Type() == fs.ModeSocket, d.IsDir() && (strings.HasPrefix(d.Name(), "k-") || strings.HasPrefix(d.Name(), "named-")):
			out = append(out, strings.TrimPrefix(path, dir))
		}
		return nil
	})
	return out
}

// problems are what is wrong whatever happened in a trial.
func (r report) problems(tr *trial) []string {
	var bad []string
	add := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	if r.broken != nil {
		add("the trial: %v", r.broken)
		return bad
	}
	had, unsure := false, false // variables; whether there are any
	for i, c := range r.cells {
		name := fmt.Sprintf("cell %d", i+1)
		ended := (*cell.RunError)(nil)
		outcome := c.res.Cell.Outcome
		switch {
		case c.runs > 1:
			add("%s ran more than once: %s", name, c)
		case c.err != nil && !errors.As(c.err, &ended):
			if e := sdk.AsError(c.err, sdk.NotStarted); c.runs != 0 || e.Delivery != sdk.NotStarted {
				add("%s is said not to have run, by an error with delivery %s: %s", name, e.Delivery, c)
			}
		case outcome == cell.OutcomeOK && c.runs != 1, outcome == cell.OutcomeRefused && c.runs != 0:
			add("%s: its outcome and its runs differ: %s", name, c)
		case outcome == cell.OutcomeError || outcome == cell.OutcomeExit:
			add("%s: its code cannot end so: %s, %+v", name, c, c.res.Cell.Error)
		}
		if c.took > longestCell {
			add("%s took %s", name, c.took)
		}
		if k := c.res.Kernel; c.ok() {
			switch fresh := value(c.res.Cell) == "1"; {
			case fresh && had && !k.StateLost:
				add("%s: variables are gone, and it does not say so: %s", name, c)
			case !fresh && (k.StateLost || !k.Reused), fresh && !unsure && k.Reused:
				add("%s: variables of earlier cells gone: %t, but it says %s", name, fresh, c)
			}
		}
		had = had || c.runs > 0
		unsure = unsure || c.runs == 0 && c.err != nil // it may have been interrupted before it did anything
	}
	if last := r.cells[len(r.cells)-1]; !last.ok() {
		add("the last cell, when the fault was over: %s", last)
	}
	if r.close > longestClose {
		add("Close took %s", r.close)
	}
	if len(r.left) > 0 {
		add("left behind %s after Close: %q", leaveWithin, r.left)
	}
	if n := r.fired(); n < len(tr.faults) {
		add("only %d of %d faults hit", n, len(tr.faults))
	}
	return bad
}

// inParallel makes the trials, a few at once, and calls done with each result in the order of the list.
func inParallel(t *testing.T, list []*trial, done func(*trial, report)) {
	results := make([]chan report, len(list))
	slots := make(chan struct{}, *campaignSide)
	for i := range list {
		results[i] = make(chan report, 1)
	}
	var wg sync.WaitGroup
	wg.Go(func() { // in the order of the list; each trial is bounded, and waited for below
		for i, tr := range list {
			slots <- struct{}{}
			wg.Go(func() {
				leave := sync.OnceFunc(func() { <-slots })
				defer leave()
				results[i] <- tr.run(t.Context(), leave) // who only waits for processes to leave needs no slot
			})
		}
	})
	for i, tr := range list {
		done(tr, <-results[i])
	}
	wg.Wait()
}

// picked are the trials that -campaign.only asks for.
func picked(t *testing.T, list []*trial) []*trial {
	re, err := regexp.Compile(*campaignOnly)
	if err != nil {
		t.Fatal(err)
	}
	var out []*trial
	for _, tr := range list {
		if re.MatchString(tr.name) {
			out = append(out, tr)
		}
	}
	return out
}
