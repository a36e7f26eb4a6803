package core_test

import (
	"fmt"
	"testing"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
)

func benchEngine(b *testing.B, change ...func(*core.Config)) *core.Engine {
	b.Helper()
	cfg := core.Config{Builtin: []core.Builtin{{Name: "local"}}, MaxSessionKernels: -1}
	for _, c := range change {
		c(&cfg)
	}
	e, err := core.Open(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = e.Close(b.Context()) })
	return e
}

func benchCell(b *testing.B, e *core.Engine, req core.Request) cell.Cell {
	b.Helper()
	res, err := e.Run(b.Context(), req, nil)
	if err != nil {
		b.Fatal(err)
	}
	return res.Cell
}

func BenchmarkWarmCell(b *testing.B) {
	for name, through := range map[string]bool{"direct": false, "plugin": true} {
		b.Run(name, func(b *testing.B) {
			e := benchEngine(b, func(c *core.Config) { c.ThroughPlugin = through })
			benchCell(b, e, core.Request{Code: "1"})
			for b.Loop() {
				benchCell(b, e, core.Request{Code: "1"})
			}
		})
	}
}

func BenchmarkNewKernel(b *testing.B) {
	e := benchEngine(b)
	benchCell(b, e, core.Request{Code: "1"})
	n := 0
	for b.Loop() {
		n++
		benchCell(b, e, core.Request{Owner: fmt.Sprint(n), Code: "1"})
	}
}

func BenchmarkStdout(b *testing.B) {
	const size = 256 << 20
	for name, through := range map[string]bool{"direct": false, "plugin": true} {
		b.Run(name, func(b *testing.B) {
			e := benchEngine(b, func(c *core.Config) { c.ThroughPlugin = through })
			b.SetBytes(size)
			for b.Loop() {
				c := benchCell(b, e, core.Request{Code: "import sys\nfor _ in range(256): sys.stdout.write('x' * (1 << 20))\nNone"})
				if c.StdoutBytes != size {
					b.Errorf("%d bytes, want %d", c.StdoutBytes, size)
				}
			}
		})
	}
}
