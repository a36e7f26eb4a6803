package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
)

// open starts an engine as an embedding program does.
func (b *bench) open(ctx context.Context, throughPlugin bool) (*core.Engine, error) {
	return core.Open(ctx, core.Config{
		Builtin:           []core.Builtin{{Name: "local"}},
		Interpreter:       b.python,
		MaxSessionKernels: -1,
		ThroughPlugin:     throughPlugin,
	})
}

// runCell runs one cell of owner and returns how long it took.
func runCell(ctx context.Context, e *core.Engine, owner, code string) (time.Duration, cell.Result, error) {
	begin := time.Now()
	res, err := e.Run(ctx, core.Request{Owner: owner, Code: code}, nil)
	return time.Since(begin), res, err
}

// cells runs n small cells in owner's kernel.
func cells(ctx context.Context, e *core.Engine, owner string, n int) ([]time.Duration, error) {
	taken := make([]time.Duration, n)
	for i := range taken {
		var err error
		if taken[i], _, err = runCell(ctx, e, owner, "1"); err != nil {
			return nil, err
		}
	}
	return taken, nil
}

var owners atomic.Int64

// newKernels runs one small cell in each of n kernels that are not there yet, with a pause before each.
func newKernels(ctx context.Context, e *core.Engine, n int, pause time.Duration) ([]time.Duration, error) {
	taken := make([]time.Duration, n)
	for i := range taken {
		time.Sleep(pause)
		var err error
		if taken[i], _, err = runCell(ctx, e, "owner-"+strconv.FormatInt(owners.Add(1), 10), "1"); err != nil {
			return nil, err
		}
	}
	return taken, nil
}

// killAll ends the engine's kernels.
func killAll(ctx context.Context, e *core.Engine) error {
	kernels, err := e.Kernels(ctx)
	if err != nil {
		return err
	}
	for _, k := range kernels {
		if err := e.Kill(ctx, k.ID); err != nil {
			return fmt.Errorf("kill kernel %s: %w", k.ID, err)
		}
	}
	return nil
}

// output prints mib MiB in a cell and says how fast they came, and whether each byte was counted.
func output(ctx context.Context, e *core.Engine, mib int) (seconds float64, exact bool, err error) {
	code := fmt.Sprintf("import sys\nfor _ in range(%d): sys.stdout.write('x' * 65535 + '\\n')\nsys.stdout.flush()", mib*16)
	var seen int64 // delivered live, or said to be left out
	begin := time.Now()
	res, err := e.Run(ctx, core.Request{Owner: "output", Code: code}, func(ev cell.Event) {
		switch ev.Kind {
		case cell.EventOutput:
			seen += int64(len(ev.Data))
		case cell.EventGap:
			seen += ev.Omitted
		}
	})
	seconds = time.Since(begin).Seconds()
	want := int64(mib) << 20
	kept := int64(len(res.Cell.Stdout))
	return seconds, res.Cell.StdoutBytes == want && seen == want && kept < want, err
}

// family finds the processes behind an engine: its plugins, and the kernel host and nursery above a kernel.
type family struct {
	Engine  int
	Plugins []int
	Host    int
	Nursery int
	Kernels []int
}

func familyOf(ctx context.Context, e *core.Engine) (family, error) {
	f := family{Engine: os.Getpid()}
	kernels, err := e.Kernels(ctx)
	if err != nil {
		return f, err
	}
	for _, k := range kernels {
		f.Kernels = append(f.Kernels, k.PID)
	}
	if len(f.Kernels) == 0 {
		return f, fmt.Errorf("the engine lists no kernel")
	}
	if f.Nursery, err = parent(f.Kernels[0]); err != nil {
		return f, err
	}
	if f.Host, err = parent(f.Nursery); err != nil {
		return f, err
	}
	f.Plugins, err = children(f.Engine)
	return f, err
}
