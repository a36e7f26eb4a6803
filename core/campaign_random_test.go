package core_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugin/sdk/sdktest"
)

var campaignSeed = flag.Uint64("campaign.seed", 0, "the seed of the random parts of the campaign; 0: another one each time")

// seeded returns a source of random numbers whose seed is in the log.
func seeded(t *testing.T) *rand.Rand {
	seed := *campaignSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-campaign.seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// longOr is how many there are in the long form of the campaign, and in the short one.
func longOr(long, short int) int {
	if *campaignLong {
		return long
	}
	return short
}

// order is a cell of the campaign, as a program of its own gets it.
type order struct {
	N       int    `json:"n"`
	ID      string `json:"id"`
	Session string `json:"session"`
	Owner   string `json:"owner"`
	Code    string `json:"code"`
}

// verdict is what a caller was told of one cell: an outcome, or an error.
type verdict struct {
	N        int           `json:"n"`
	Outcome  cell.Outcome  `json:"outcome"`
	Reason   string        `json:"reason"`
	Error    string        `json:"error"`
	Code     sdk.Code      `json:"code"`
	Delivery sdk.Delivery  `json:"delivery"`
	Took     time.Duration `json:"took"`
}

func (v verdict) String() string {
	if v.Outcome == "" {
		return fmt.Sprintf("cell %d: error %s, %s: %.300s; after %s", v.N, v.Code, v.Delivery, v.Error, v.Took.Round(time.Millisecond))
	}
	return fmt.Sprintf("cell %d: %s (%.300s) after %s", v.N, v.Outcome, v.Reason, v.Took.Round(time.Millisecond))
}

// kind is what verdicts are counted by.
func (v verdict) kind() string {
	if v.Outcome == "" {
		return fmt.Sprintf("error %s %s", v.Code, v.Delivery)
	}
	if v.Outcome == cell.OutcomeRefused {
		reason, _, _ := strings.Cut(v.Reason, ":")
		return "refused " + reason
	}
	return string(v.Outcome)
}

// give runs an order.
func give(ctx context.Context, e *core.Engine, environment string, o order, emit func(cell.Event)) (verdict, cell.Result) {
	ctx, cancel := context.WithTimeout(ctx, 2*longestCell)
	defer cancel()
	begun := time.Now()
	res, err := e.Run(ctx, core.Request{Environment: environment, ID: o.ID, Session: o.Session, Owner: o.Owner, Code: o.Code}, emit)
	v := verdict{N: o.N, Outcome: res.Cell.Outcome, Reason: res.Cell.Reason, Took: time.Since(begun)}
	if ended := (*cell.RunError)(nil); err != nil && !errors.As(err, &ended) {
		e := sdk.AsError(err, sdk.NotStarted)
		v.Outcome, v.Error, v.Code, v.Delivery = "", err.Error(), e.Code, e.Delivery
	}
	return v, res
}

// field is one place where cells run under random faults: a home of its own, and the file in which each cell leaves its number.
type field struct {
	t    *testing.T
	home string
	rand *rand.Rand // of the goroutine that makes the faults

	mu       sync.Mutex
	verdicts []verdict
	faults   map[string]int
}

func newField(t *testing.T, r *rand.Rand) *field {
	f := &field{t: t, home: filepath.Join(homeDir, fmt.Sprintf("c%04d", trials.Add(1))), rand: r, faults: map[string]int{}}
	for _, dir := range []string{f.home, f.runtimeDir(), f.temp()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(f.marks(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *field) marks() string      { return filepath.Join(f.home, "marks") }
func (f *field) runtimeDir() string { return filepath.Join(f.home, "r") }
func (f *field) temp() string       { return filepath.Join(f.home, "t") }
func (f *field) env() []string {
	return []string{"HOME=" + f.home, "XDG_RUNTIME_DIR=" + f.runtimeDir(), "TMPDIR=" + f.temp()}
}

// order makes the order for cell n: its number, one write, into the file. Some cells take a moment, some end with an exception.
func (f *field) order(r *rand.Rand, n int) order {
	code := fmt.Sprintf("import os, time\nfd = os.open(%q, os.O_WRONLY | os.O_APPEND)\nos.write(fd, b'%d\\n')\nos.close(fd)", f.marks(), n)
	if r.IntN(3) == 0 {
		code += fmt.Sprintf("\ntime.sleep(%.3f)", r.Float64()*0.05)
	}
	switch r.IntN(10) {
	case 0:
		code += "\nraise KeyError('on purpose')"
	case 1:
		code += "\nprint('x' * 100_000)"
	}
	return order{N: n, Code: code}
}

func (f *field) told(v verdict) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verdicts = append(f.verdicts, v)
}

func (f *field) count(fault string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[fault]++
}

// runs counts how often each cell ran.
func (f *field) runs() map[int]int {
	data, err := os.ReadFile(f.marks())
	if err != nil {
		f.t.Error(err)
	}
	out := map[int]int{}
	for line := range strings.Lines(string(data)) {
		n, err := strconv.Atoi(strings.TrimSuffix(line, "\n"))
		if err != nil {
			f.t.Errorf("a line of the marks: %q", line)
		}
		out[n]++
	}
	return out
}

// judge holds what the callers were told against what ran. Lost and unknown are for those faults only in which something that knew was killed.
func (f *field) judge(mayLose bool) {
	f.t.Helper()
	runs, kinds := f.runs(), map[string]int{}
	for n, times := range runs {
		if times > 1 {
			f.t.Errorf("cell %d ran %d times", n, times)
		}
	}
	for _, v := range f.verdicts {
		kinds[v.kind()]++
		switch ran := runs[v.N]; {
		case (v.Outcome == cell.OutcomeOK || v.Outcome == cell.OutcomeError) && ran != 1,
			v.Outcome == cell.OutcomeRefused && ran != 0,
			v.Outcome == "" && v.Delivery == sdk.NotStarted && ran != 0:
			f.t.Errorf("it ran %d times, and its caller was told otherwise: %s", ran, v)
		case v.Outcome == cell.OutcomeLost || v.Outcome == cell.OutcomeUnknown || v.Outcome == "" && v.Delivery != sdk.NotStarted:
			if !mayLose {
				f.t.Errorf("nothing that knew was killed: %s (it ran %d times)", v, ran)
			}
		case v.Outcome == "":
			f.t.Logf("a cell that did not run: %s", v)
		case v.Outcome == cell.OutcomeOK, v.Outcome == cell.OutcomeError, v.Outcome == cell.OutcomeRefused:
		default:
			f.t.Errorf("no cell can end so: %s", v)
		}
		if v.Took > longestCell {
			f.t.Errorf("too long: %s", v)
		}
	}
	f.t.Logf("%d cells: %s", len(f.verdicts), counts(kinds))
	f.t.Logf("faults: %s", counts(f.faults))
}

func counts(m map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(out, ", ")
}

// checkLeft wants no process, socket or directory of a host to be left.
func (f *field) checkLeft() {
	f.t.Helper()
	if left := (&trial{home: f.home}).leftovers(f.runtimeDir()); len(left) > 0 {
		f.t.Errorf("left behind: %q", left)
	}
}

// open opens an engine whose one backend lives in the field, as the environment here.
func (f *field) open(backend string, config map[string]any, change ...func(*core.Config)) *core.Engine {
	f.t.Helper()
	cfg := core.Config{
		Builtin:       []core.Builtin{{Name: "local", Args: []string{"serve"}, Env: append(f.env(), backendVar+"="+backend)}},
		RuntimeDir:    filepath.Join(f.home, "e"),
		StateDir:      filepath.Join(f.home, "state"),
		Environments:  map[string]core.EnvironmentConfig{"here": {Target: "local:", Config: config}},
		ThroughPlugin: true, MaxSessionKernels: 16, Logger: testLogger(f.t),
	}
	for _, c := range change {
		c(&cfg)
	}
	e, err := core.Open(f.t.Context(), cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	return e
}

// shut closes the engine, with the sessions.
func (f *field) shut(e *core.Engine) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*longestClose)
	defer cancel()
	if _, err := e.Prune(ctx); err != nil {
		f.t.Errorf("prune: %v", err)
	}
	if err := e.Close(ctx); err != nil {
		f.t.Errorf("close: %v", err)
	}
}

// tidy lets an undisturbed engine start kernel hosts, which sweep what killed ones left.
func (f *field) tidy() {
	f.t.Helper()
	e := f.open("local-plain", nil)
	for _, session := range []string{"", "tidy"} {
		if v, _ := give(f.t.Context(), e, "here", order{N: -1, Session: session, Code: "import time; time.sleep(0.5)"}, nil); v.Outcome != cell.OutcomeOK {
			f.t.Errorf("when the faults were over: %s", v)
		}
	}
	f.shut(e)
}

// process is one of those that the field's hosts and plugins are.
type process struct {
	pid, parent int
	host        bool // runs the kernel host's file as the command start: a host, its nursery or a kernel
}

func (f *field) processes() map[int]process {
	out := map[int]process{}
	for _, line := range processesOf("HOME=" + f.home + "\x00") {
		number, _, _ := strings.Cut(line, " ")
		pid, _ := strconv.Atoi(number)
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		rest := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(rest) < 2 || rest[0] == "Z" || rest[0] == "X" {
			continue
		}
		parent, _ := strconv.Atoi(rest[1])
		full, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		out[pid] = process{pid: pid, parent: parent, host: bytes.Contains(full, []byte("hermes-kernel-host\x00start"))}
	}
	return out
}

// victims lists the field's hosts, kernels and plugins (children of the engine's process).
func (f *field) victims(engine int) (hosts, kernels, plugins []int) {
	all := f.processes()
	for pid, p := range all {
		above := all[p.parent]
		switch {
		case !p.host && p.parent == engine:
			plugins = append(plugins, pid)
		case p.host && !above.host:
			hosts = append(hosts, pid)
		case p.host && all[above.parent].host:
			kernels = append(kernels, pid)
		}
	}
	for _, list := range [][]int{hosts, kernels, plugins} {
		slices.Sort(list)
	}
	return hosts, kernels, plugins
}

// strike makes one of the faults, and says whether there was a process that it could happen to.
func (f *field) strike(fault string, engine int) bool {
	hosts, kernels, plugins := f.victims(engine)
	list, sig := plugins, syscall.SIGKILL
	switch fault {
	case "kernel killed":
		list = kernels
	case "host killed":
		list = hosts
	case "host stopped":
		list, sig = hosts, syscall.SIGSTOP
	case "plugin stopped":
		sig = syscall.SIGSTOP
	}
	if len(list) == 0 {
		return false
	}
	pid := list[f.rand.IntN(len(list))]
	if syscall.Kill(pid, sig) != nil {
		return false // it has just ended
	}
	f.count(fault)
	if sig == syscall.SIGSTOP {
		time.Sleep(time.Duration(20+f.rand.IntN(280)) * time.Millisecond)
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	return true
}

// mostPluginKills is how often an engine's plugin is killed: at the fifth time within ten minutes its registry would put it into quarantine.
const mostPluginKills = 4

// cells gives the orders first to last, from some goroutines for some owners and sessions, while faults strike.
func (f *field) cells(e *core.Engine, r *rand.Rand, first, last int, faults []string) {
	const pause = 300 * time.Millisecond
	var next atomic.Int64
	var wg, striking sync.WaitGroup
	next.Store(int64(first) - 1)
	for range 6 {
		mine := rand.New(rand.NewPCG(r.Uint64(), 0))
		wg.Go(func() { // ends with the last cell, and each is bounded
			for i := int(next.Add(1)); i <= last; i = int(next.Add(1)) {
				o := f.order(mine, i)
				if mine.IntN(2) == 0 {
					o.Session = fmt.Sprintf("s%d", mine.IntN(2))
				} else {
					o.Owner = fmt.Sprintf("o%d", mine.IntN(3))
				}
				v, _ := give(f.t.Context(), e, "here", o, nil)
				f.told(v)
			}
		})
	}
	over := make(chan struct{})
	striking.Go(func() { // ends when the cells have
		for kills := 0; ; {
			select {
			case <-over:
				return
			case <-time.After(time.Duration(f.rand.Int64N(int64(2 * pause)))):
			}
			fault := faults[f.rand.IntN(len(faults))]
			if fault == "plugin killed" && kills == mostPluginKills {
				continue
			}
			if f.strike(fault, os.Getpid()) && fault == "plugin killed" {
				kills++
			}
		}
	})
	wg.Wait()
	close(over)
	striking.Wait()
}

// rounds splits n cells among engines that follow each other.
func (f *field) rounds(n int, round func(first, last int)) {
	const most = 250
	for first := 1; first <= n; first += most {
		round(first, min(first+most-1, n))
	}
}

// cuts are random cuts of all connections: after so many bytes in each direction, and around messages that decide.
func cuts(r *rand.Rand) []sdktest.Fault {
	out := []sdktest.Fault{
		{Step: sdktest.StepSend, Do: sdktest.Cut, At: 20_000 + r.Int64N(20_000), Times: -1},
		{Step: sdktest.StepReceive, Do: sdktest.Cut, At: 200_000 + r.Int64N(400_000), Times: -1},
	}
	for _, kind := range []string{"submit", "accepted", "started", "end"} {
		step := sdktest.StepReceive
		if kind == "submit" {
			step = sdktest.StepSend
		}
		for _, do := range []sdktest.Effect{sdktest.FailBefore, sdktest.FailAfter} {
			out = append(out, sdktest.Fault{Step: step, Do: do, Match: kindPattern(kind), Skip: r.IntN(60), Times: 1})
		}
	}
	return out
}

// TestCampaignRandom: many cells under random faults.
func TestCampaignRandom(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the campaign takes half a minute")
	}
	t.Parallel()
	r := seeded(t)
	one := func() *rand.Rand { return rand.New(rand.NewPCG(r.Uint64(), 0)) }
	connection, killed, engine := one(), one(), one()
	t.Run("connection and plugin", func(t *testing.T) {
		t.Parallel()
		f := newField(t, connection)
		log := filepath.Join(f.home, "log")
		f.rounds(longOr(5000, 200), func(first, last int) {
			e := f.open("faulty", map[string]any{"faults": cuts(connection), "log": log})
			f.cells(e, apart(connection), first, last, []string{"plugin killed", "plugin stopped", "host stopped"})
			f.shut(e)
		})
		records, err := sdktest.ReadRecords(log)
		if err != nil {
			t.Error(err)
		}
		for _, rec := range records {
			if rec.Fault > 0 {
				f.count(fmt.Sprintf("connection cut (%s)", rec.Step))
			}
		}
		f.judge(false)
		f.checkLeft()
	})
	t.Run("kernels and hosts", func(t *testing.T) {
		t.Parallel()
		f := newField(t, killed)
		f.rounds(longOr(5000, 150), func(first, last int) {
			e := f.open("local-plain", nil)
			f.cells(e, apart(killed), first, last, []string{"kernel killed", "kernel killed", "host killed", "plugin killed", "plugin stopped", "host stopped"})
			f.shut(e)
		})
		f.judge(true)
		for _, v := range f.verdicts {
			// The fallback of a cell whose kernel host was killed while it started has no journal: if its plugin is killed, too, nobody can know.
			if v.Outcome == cell.OutcomeUnknown && !strings.Contains(v.Reason, "run a cell by one command") {
				t.Errorf("all journals are there: %s", v)
			}
		}
		f.tidy()
		f.checkLeft()
	})
	t.Run("engine", func(t *testing.T) {
		t.Parallel()
		f := newField(t, engine)
		f.engines(longOr(1500, 60), longOr(60, 5))
		f.judge(false)
		f.checkLeft()
	})
}

// apart returns a source of its own for another goroutine.
func apart(r *rand.Rand) *rand.Rand { return rand.New(rand.NewPCG(r.Uint64(), 1)) }

// assignment is what a program that is an engine is to do.
type assignment struct {
	State  string  `json:"state"`
	Orders []order `json:"orders"`
	Side   int     `json:"side"` // at once
	Disk   string  `json:"disk,omitempty"`
	Seed   uint64  `json:"seed,omitempty"`
	Output bool    `json:"output,omitempty"` // say what was emitted, too
	Prune  bool    `json:"prune,omitempty"`
}

// engineProgram is the test binary as a program that runs cells: an assignment on stdin, a line for each verdict on stdout.
func engineProgram() {
	var a assignment
	if err := json.NewDecoder(os.Stdin).Decode(&a); err != nil {
		panic(err)
	}
	if err := a.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (a assignment) run() error {
	ctx := context.Background()
	stop := func() {}
	if a.Disk != "" {
		fill, err := smallDisk(a.Disk, rand.New(rand.NewPCG(a.Seed, 0)))
		if err != nil {
			return err
		}
		stop = fill
	}
	e, err := core.Open(ctx, core.Config{
		Builtin: []core.Builtin{{Name: "local"}}, StateDir: a.State, RuntimeDir: os.Getenv("HERMES_TEST_ENGINE_DIR"),
	})
	if err != nil {
		return err
	}
	orders := make(chan order, len(a.Orders))
	for _, o := range a.Orders {
		orders <- o
	}
	close(orders)
	var out sync.Mutex
	var wg sync.WaitGroup
	for range max(a.Side, 1) {
		wg.Go(func() { // ends with the last order, and each is bounded
			for o := range orders {
				seen := follower{}
				v, res := give(ctx, e, "", o, seen.emit)
				line := any(v)
				if a.Output {
					line = seen.view(v, res)
				}
				data, err := json.Marshal(line)
				if err != nil {
					panic(err)
				}
				out.Lock()
				_, _ = os.Stdout.Write(append(data, '\n'))
				out.Unlock()
			}
		})
	}
	wg.Wait()
	stop()
	if a.Prune {
		if _, err := e.Prune(ctx); err != nil {
			return err
		}
	}
	return e.Close(ctx)
}

// program starts the test binary as an engine, hands it the assignment, and calls each with the lines of its answer. It returns when the program has
// ended; killed says that after did it, which gets the time at which it begins and may be nil.
func (f *field) program(a assignment, change func(*exec.Cmd), kill <-chan time.Time, each func([]byte)) (killed bool) {
	f.t.Helper()
	a.State = filepath.Join(f.home, "state")
	in, err := json.Marshal(a)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), append(f.env(), backendVar+"=engine")...)
	cmd.Stdin = bytes.NewReader(in)
	stderr, err := os.CreateTemp(f.temp(), "stderr") // a file: a pipe would be waited for until everything that inherited it has ended
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = stderr.Close() }()
	cmd.Stderr = stderr
	if change != nil {
		change(cmd)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	cmd.Stdout = writer
	err = cmd.Start()
	_ = writer.Close()
	if err != nil {
		f.t.Fatal(err)
	}
	var reading, killing sync.WaitGroup
	ended := make(chan struct{})
	var did atomic.Bool
	killing.Go(func() { // ends with the program at the latest
		select {
		case <-kill:
			did.Store(true)
			_ = cmd.Process.Kill()
		case <-ended:
		}
	})
	reading.Go(func() { // ends with the program, whose stdout nobody else has
		lines := bufio.NewReader(reader)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return // also a line that the kill cut off
			}
			each(line)
		}
	})
	err = cmd.Wait()
	close(ended)
	killing.Wait()
	reading.Wait()
	if err != nil && !did.Load() {
		said, _ := os.ReadFile(stderr.Name())
		f.t.Errorf("the program: %v\n%s", err, said)
	}
	return did.Load()
}

// engines runs cells in programs of which the first ones are killed. The next program asks for what the one before has not said.
func (f *field) engines(cells, kills int) {
	f.t.Helper()
	known := map[int]bool{}
	var all []order
	for n := 1; n <= cells; n++ {
		o := f.order(f.rand, n)
		o.ID, o.Session = fmt.Sprintf("cell-%d", n), fmt.Sprintf("s%d", n%3)
		all = append(all, o)
	}
	for i := 0; ; i++ {
		a := assignment{Side: 4, Prune: i >= kills}
		for _, o := range all {
			if !known[o.N] && (i >= kills || len(a.Orders) < 2*cells/kills+4) {
				a.Orders = append(a.Orders, o)
			}
		}
		var kill <-chan time.Time
		if i < kills {
			kill = time.After(time.Duration(50+f.rand.IntN(1000)) * time.Millisecond)
		}
		if f.program(a, nil, kill, func(line []byte) {
			var v verdict
			if err := json.Unmarshal(line, &v); err != nil {
				f.t.Errorf("a line of a program: %v: %q", err, line)
				return
			}
			known[v.N] = true
			f.told(v)
		}) {
			f.count("engine killed")
		}
		if i >= kills {
			break
		}
	}
	if len(known) != cells {
		f.t.Errorf("the last program left %d of %d cells out", cells-len(known), cells)
	}
}
