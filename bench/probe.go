package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/hermes-framework/hermes/core"
)

// A probe is a measurement that wants a process of its own: pinned to one core, or
// with nothing else in its memory. Each prints one JSON value.

// density is what many idle kernels cost.
type density struct {
	Few, Many       int     // how many kernels
	PSSFew, PSSMany float64 // mean of a kernel, with so many of them
	Total           float64 // all processes of Hermes together, with Many
	Available       float64 // by how much the machine's available memory fell
	One             time.Duration
	Crowded         time.Duration // warm cell, with one kernel and with Many
}

// flat is the engine's memory before and after much work.
type flat struct {
	Cells                    int
	Bytes                    int64
	Start, AfterCells, After float64
}

// serveProbe runs the named probe in this process.
func (b *bench) serveProbe(ctx context.Context, name string) (err error) {
	e, err := b.open(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close(context.WithoutCancel(ctx))) }()

	var result any
	switch name {
	case "density":
		result, err = b.density(ctx, e)
	case "flat":
		result, err = b.flat(ctx, e)
	case "idle":
		result, err = b.idle(ctx, e)
	default:
		err = fmt.Errorf("there is no probe %q", name)
	}
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		return err
	}
	if name == "idle" { // stay, and be looked at, until the parent has seen enough
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	return nil
}

// probe starts this program for one probe, pinned to one core if pin is set, and decodes what it prints.
func (b *bench) probe(ctx context.Context, name string, pin bool, result any) error {
	argv := b.probeArgv(name)
	if pin {
		argv = append([]string{"taskset", "-c", "0"}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("probe %s: %w", name, err)
	}
	return json.Unmarshal(out, result)
}

func (b *bench) probeArgv(name string) []string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return []string{self, "-probe", name, "-python", b.python, "-scale", fmt.Sprint(b.scale)}
}

func (b *bench) density(ctx context.Context, e *core.Engine) (density, error) {
	d := density{Few: 50, Many: b.count(1000)}
	before, err := available()
	if err != nil {
		return d, err
	}

	if _, err = cells(ctx, e, "warm", 200); err != nil { // warm up
		return d, err
	}
	one, err := cells(ctx, e, "warm", b.count(2000))
	if err != nil {
		return d, err
	}
	d.One = median(one)

	if _, err = newKernels(ctx, e, d.Few-1, 0); err != nil {
		return d, err
	}
	if d.PSSFew, _, err = memory(ctx, e); err != nil {
		return d, err
	}
	if _, err = newKernels(ctx, e, d.Many-d.Few, 0); err != nil {
		return d, err
	}
	if d.PSSMany, d.Total, err = memory(ctx, e); err != nil {
		return d, err
	}
	after, err := available()
	if err != nil {
		return d, err
	}
	d.Available = before - after

	crowded, err := cells(ctx, e, "warm", b.count(2000))
	if err != nil {
		return d, err
	}
	d.Crowded = median(crowded)
	return d, nil
}

// memory sums up the PSS of kernels (their mean) and of all that belongs to the engine (its total; the engine itself is left out).
func memory(ctx context.Context, e *core.Engine) (mean, total float64, err error) {
	f, err := familyOf(ctx, e)
	if err != nil {
		return 0, 0, err
	}
	for _, pid := range f.Kernels {
		size, err := pss(pid)
		if err != nil {
			return 0, 0, err
		}
		total += size
	}
	mean = total / float64(len(f.Kernels))
	for _, pid := range append([]int{f.Host, f.Nursery}, f.Plugins...) {
		size, err := pss(pid)
		if err != nil {
			return 0, 0, err
		}
		total += size
	}
	return mean, total, nil
}

func available() (float64, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return kilobytes(field(string(data), "MemAvailable"))
}

func (b *bench) flat(ctx context.Context, e *core.Engine) (flat, error) {
	f := flat{Cells: b.count(10_000)}
	self := os.Getpid()
	settled := func() (float64, error) {
		runtime.GC()
		return rss(self)
	}

	// The first cells and the first output fill pools and buffers that stay.
	if _, err := cells(ctx, e, "flat", 500); err != nil {
		return f, err
	}
	if _, _, err := output(ctx, e, 64); err != nil {
		return f, err
	}
	var err error
	if f.Start, err = settled(); err != nil {
		return f, err
	}
	if _, err = cells(ctx, e, "flat", f.Cells); err != nil {
		return f, err
	}
	if f.AfterCells, err = settled(); err != nil {
		return f, err
	}
	mib := b.count(1024)
	if _, _, err = output(ctx, e, mib); err != nil {
		return f, err
	}
	f.Bytes = int64(mib) << 20
	f.After, err = settled()
	return f, err
}

// idle runs a cell and says which processes are there now.
func (b *bench) idle(ctx context.Context, e *core.Engine) (family, error) {
	if _, _, err := runCell(ctx, e, "idle", "1"); err != nil {
		return family{}, err
	}
	return familyOf(ctx, e)
}

// wakeUps counts the context switches of an idle engine, its plugin and its kernel host over the given time.
func (b *bench) wakeUps(ctx context.Context, over time.Duration) (_ map[string]int, err error) {
	argv := b.probeArgv("idle")
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stdin.Close(), cmd.Wait()) }()

	var f family
	if err := json.NewDecoder(stdout).Decode(&f); err != nil {
		return nil, fmt.Errorf("probe idle: %w", err)
	}
	groups := map[string][]int{"engine": {f.Engine}, "plugin": f.Plugins, "kernel host": {f.Host}, "nursery": {f.Nursery}, "kernel": f.Kernels}
	if err := pause(ctx, 3*time.Second); err != nil { // what the first cell left to do is done
		return nil, err
	}
	before, err := switchesOf(groups)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, over); err != nil {
		return nil, err
	}
	after, err := switchesOf(groups)
	if err != nil {
		return nil, err
	}
	for name := range after {
		after[name] -= before[name]
	}
	return after, nil
}

func switchesOf(groups map[string][]int) (map[string]int, error) {
	sums := map[string]int{}
	for name, pids := range groups {
		for _, pid := range pids {
			n, err := switches(pid)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			sums[name] += n
		}
	}
	return sums, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
