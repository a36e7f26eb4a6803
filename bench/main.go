// Command bench measures Hermes beside Jupyter and beside plain Python in one run,
// and prints the table that docs/performance.md keeps. Start it with bench/run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"

	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugins/local"
)

func main() {
	sdk.ServeBuiltin(local.New())

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	write := flag.Bool("write", false, "put the table into "+page)
	probe := flag.String("probe", "", "run one measurement in this process and print it as JSON (the program starts itself this way)")
	python := flag.String("python", "/usr/bin/python3", "the Python that runs everything, Jupyter included")
	only := flag.String("only", "", "measure only what has this in its name, such as warm, kernels, output, memory, idle, cold")
	scale := flag.Float64("scale", 1, "multiplies the number of samples; below 1 is a quick look")
	flag.Parse()
	if *write && (*only != "" || *scale < 1) {
		return errors.New("-write wants the whole table: leave out -only and -scale")
	}

	b := bench{python: *python, only: *only, scale: *scale, log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if *probe != "" {
		return b.serveProbe(ctx, *probe)
	}
	where := machine(ctx, *python)
	rows, err := b.measure(ctx)
	text := where + "\n" + table(rows)
	fmt.Print(text)
	if err != nil {
		return err
	}
	if *write {
		return replaceTable(page, text)
	}
	return nil
}
