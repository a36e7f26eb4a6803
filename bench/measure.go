package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hermes-framework/hermes/core"
)

type bench struct {
	python string
	only   string
	scale  float64
	log    *slog.Logger
}

// count is n samples, scaled, and never too few for a median.
func (b *bench) count(n int) int { return max(int(float64(n)*b.scale), min(n, 5)) }

// measure takes all figures. What is compared is measured in alternating rounds, so
// that other load on the machine meets both.
func (b *bench) measure(ctx context.Context) (rows []row, err error) {
	direct, err := b.open(ctx, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, direct.Close(context.WithoutCancel(ctx))) }()
	through, err := b.open(ctx, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, through.Close(context.WithoutCancel(ctx))) }()
	peer, err := b.startJupyter(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, peer.close()) }()

	for _, part := range []struct {
		name string
		run  func() ([]row, error)
	}{
		{"warm cells", func() ([]row, error) { return b.warm(ctx, direct, through, peer) }},
		{"new kernels", func() ([]row, error) { return b.fresh(ctx, direct, peer) }},
		{"output", func() ([]row, error) { return b.output(ctx, direct, through, peer) }},
		{"memory of kernels", func() ([]row, error) { return b.sizes(ctx, peer) }},
		{"memory of the engine", func() ([]row, error) { return b.engineMemory(ctx) }},
		{"idle", func() ([]row, error) { return b.idleRow(ctx) }},
		{"cold start", func() ([]row, error) { return b.cold(ctx) }},
	} {
		if !strings.Contains(part.name, b.only) {
			continue
		}
		b.log.Info("measure", "what", part.name)
		more, err := part.run()
		if err != nil {
			return rows, fmt.Errorf("%s: %w", part.name, err)
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

func (b *bench) warm(ctx context.Context, direct, through *core.Engine, peer *jupyter) (rows []row, err error) {
	bare, err := b.startPipe(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bare.close()) }()

	var d, t, j, p []time.Duration
	const rounds = 10
	for i := range rounds + 1 {
		ds, err1 := cells(ctx, direct, "warm", b.count(300))
		js, err2 := peer.ask("cells", b.count(50))
		ts, err3 := cells(ctx, through, "warm", b.count(300))
		ps, err4 := bare.cells(b.count(300))
		for _, err := range []error{err1, err2, err3, err4} {
			if err != nil {
				return nil, err
			}
		}
		if i > 0 { // the first round warms up
			d, t, j, p = append(d, ds...), append(t, ts...), append(j, durations(js)...), append(p, ps...)
		}
	}
	dm, tm, jm := median(d), median(t), median(j)
	beside := fmt.Sprintf("Jupyter %s; bare pipe %s", ms(jm), ms(median(p)))
	ratio := float64(jm) / float64(dm)
	return []row{
		{
			what: "warm cell, local as shipped, p50 (p99)", hermes: fmt.Sprintf("%s (%s)", ms(dm), ms(percentile(d, 0.99))), peer: beside,
			goal: "≤ 0.35 ms", met: dm <= 350*time.Microsecond,
		},
		{what: "the same, times faster than Jupyter", hermes: fmt.Sprintf("%.0f×", ratio), peer: "1", goal: "≥ 10×", met: ratio >= 10},
		{
			what: "warm cell, every byte through the plugin, p50 (p99)", hermes: fmt.Sprintf("%s (%s)", ms(tm), ms(percentile(t, 0.99))), peer: beside,
			goal: "≤ 0.6 ms", met: tm <= 600*time.Microsecond,
		},
	}, nil
}

func (b *bench) fresh(ctx context.Context, direct *core.Engine, peer *jupyter) ([]row, error) {
	var h, burst, j, f []time.Duration
	for range 5 {
		hs, err := newKernels(ctx, direct, b.count(20), 100*time.Millisecond)
		if err != nil {
			return nil, err
		}
		bs, err := newKernels(ctx, direct, b.count(20), 0)
		if err != nil {
			return nil, err
		}
		js, err := peer.ask("starts", 2)
		if err != nil {
			return nil, err
		}
		fs, err := b.forks(ctx, b.count(20))
		if err != nil {
			return nil, err
		}
		h, burst, j, f = append(h, hs...), append(burst, bs...), append(j, durations(js)...), append(f, fs...)
	}
	if err := killAll(ctx, direct); err != nil {
		return nil, err
	}
	hm, jm := median(h), median(j)
	ratio := float64(jm) / float64(hm)
	return []row{
		{
			what: "new kernel to its first result, 100 ms apart, p50 (p99)", hermes: fmt.Sprintf("%s (%s)", ms(hm), ms(percentile(h, 0.99))),
			peer: "Jupyter " + ms(jm), goal: "≤ 8 ms", met: hm <= 8*time.Millisecond,
		},
		{what: "the same, times faster than Jupyter", hermes: fmt.Sprintf("%.0f×", ratio), peer: "1", goal: "≥ 100×", met: ratio >= 100},
		{
			what: "new kernels back to back, p50 (p99)", hermes: fmt.Sprintf("%s (%s)", ms(median(burst)), ms(percentile(burst, 0.99))),
			peer: "Jupyter " + ms(jm) + "; bare fork " + ms(median(f)), goal: "≤ 8 ms", met: median(burst) <= 8*time.Millisecond,
		},
	}, nil
}

func (b *bench) output(ctx context.Context, direct, through *core.Engine, peer *jupyter) ([]row, error) {
	var d, t, j []time.Duration // per MiB
	exact := true
	mib := b.count(256)
	for range 5 {
		for _, way := range []struct {
			engine *core.Engine
			taken  *[]time.Duration
		}{{direct, &d}, {through, &t}} {
			seconds, ok, err := output(ctx, way.engine, mib)
			if err != nil {
				return nil, err
			}
			exact = exact && ok
			*way.taken = append(*way.taken, durations([]float64{seconds / float64(mib)})...)
		}
		js, err := peer.ask("stdout", 32)
		if err != nil {
			return nil, err
		}
		j = append(j, durations([]float64{js[0] / 32})...)
	}
	rate := func(perMiB []time.Duration) float64 { return 1 / median(perMiB).Seconds() }
	counts := "counts exact"
	if !exact {
		counts = "counts WRONG"
	}
	return []row{{
		what: "stdout, local as shipped (through the plugin)", hermes: fmt.Sprintf("%.0f MiB/s (%.0f), %s", rate(d), rate(t), counts),
		peer: fmt.Sprintf("Jupyter %.0f MiB/s", rate(j)), goal: "≥ 150 MiB/s, counts exact", met: rate(d) >= 150 && exact,
	}}, nil
}

func (b *bench) sizes(ctx context.Context, peer *jupyter) ([]row, error) {
	sizes, err := peer.ask("memory", 5)
	if err != nil {
		return nil, err
	}
	mean := 0.0
	for _, s := range sizes {
		mean += s / float64(len(sizes))
	}
	var d density
	if err := b.probe(ctx, "density", true, &d); err != nil {
		return nil, err
	}
	ratio := float64(d.Crowded) / float64(d.One)
	return []row{
		{
			what: fmt.Sprintf("PSS of an idle kernel, %d of them (%d)", d.Few, d.Many), hermes: mb(d.PSSFew) + " (" + mb(d.PSSMany) + ")",
			peer: "Jupyter " + mb(mean), goal: "≤ 3 MB", met: d.PSSFew <= 3e6 && d.PSSMany <= 3e6,
		},
		{
			what: fmt.Sprintf("%d idle kernels, PSS of all (fall of available memory)", d.Many), hermes: fmt.Sprintf("%.2f GB (%.2f GB)", d.Total/1e9, d.Available/1e9),
			peer: fmt.Sprintf("Jupyter %.0f GB, reckoned", mean*float64(d.Many)/1e9), goal: "≤ 3.5 GB", met: d.Total <= 3.5e9,
		},
		{
			what: fmt.Sprintf("warm cell beside %d idle kernels, on one core, p50", d.Many), hermes: fmt.Sprintf("%s, %.2f×", ms(d.Crowded), ratio),
			peer: "with one kernel " + ms(d.One), goal: "≤ 1.5×", met: ratio <= 1.5,
		},
	}, nil
}

func (b *bench) engineMemory(ctx context.Context) ([]row, error) {
	var f flat
	if err := b.probe(ctx, "flat", false, &f); err != nil {
		return nil, err
	}
	const slack = 4e6 // the garbage collector's own breathing
	cells, bytes := f.AfterCells-f.Start, f.After-f.AfterCells
	return []row{{
		what:   fmt.Sprintf("growth of the engine's memory over %d cells, then over %d MiB of output", f.Cells, f.Bytes>>20),
		hermes: fmt.Sprintf("%+.1f MB, %+.1f MB", cells/1e6, bytes/1e6), peer: "resident at the beginning " + mb(f.Start),
		goal: "none (≤ 4 MB)", met: cells <= slack && bytes <= slack,
	}}, nil
}

func (b *bench) idleRow(ctx context.Context) ([]row, error) {
	const over = 20 * time.Second
	n, err := b.wakeUps(ctx, over)
	if err != nil {
		return nil, err
	}
	// Two heartbeats fall into the time; each takes a few threads of each Go program to the processor and back.
	const perProcess = 40
	met := true
	for _, count := range n {
		met = met && count <= perProcess
	}
	return []row{{
		what:   "context switches of an idle Hermes in 20 s: engine, plugin, kernel host, nursery, kernel",
		hermes: fmt.Sprintf("%d, %d, %d, %d, %d", n["engine"], n["plugin"], n["kernel host"], n["nursery"], n["kernel"]),
		peer:   "two heartbeats fall into them", goal: fmt.Sprintf("the heartbeat only (≤ %d each)", perProcess), met: met,
	}}, nil
}

func (b *bench) cold(ctx context.Context) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	hermes := filepath.Join(dir, "hermes")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", hermes, "./cmd/hermes")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build hermes: %w\n%s", err, out)
	}
	// The same Python for both, and no files of the user's.
	env := []string{"HOME=" + dir, "PATH=" + filepath.Dir(b.python) + ":/usr/bin:/bin", "LANG=C.UTF-8"}

	var h, p []time.Duration
	for i := range b.count(30) + 1 {
		ht, err := command(ctx, env, hermes, "run", "-c", "1")
		if err != nil {
			return nil, err
		}
		pt, err := command(ctx, env, b.python, "-c", "1")
		if err != nil {
			return nil, err
		}
		if i > 0 { // the first one stores the kernel host's source
			h, p = append(h, ht), append(p, pt)
		}
	}
	over := median(h) - median(p)
	return []row{{
		what: "`hermes run -c 1` from nothing, over `python3 -c 1`", hermes: fmt.Sprintf("%s over (%s in all)", ms(over), ms(median(h))),
		peer: "`python3 -c 1` " + ms(median(p)), goal: "≤ 150 ms over", met: over <= 150*time.Millisecond,
	}}, nil
}
