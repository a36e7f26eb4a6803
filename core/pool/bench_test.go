package pool

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/core/kernel"
)

const benchOwners = 1000

// benchPool returns a pool of kernels that cost nothing, and how many of them have ended.
func benchPool(b *testing.B, opt Options) (*Pool, *atomic.Int64) {
	b.Helper()
	ended := new(atomic.Int64)
	opt.Closed, opt.End = errClosed, func(kernel.Kernel) { ended.Add(1) }
	p := New(opt)
	b.Cleanup(p.Close)
	return p, ended
}

func benchKeys() []Key {
	keys := make([]Key, benchOwners)
	for i := range keys {
		keys[i] = Key{Owner: fmt.Sprint("owner ", i), Environment: "local:"}
	}
	return keys
}

func benchCell(b *testing.B, p *Pool, key Key) {
	l, err := p.Lend(b.Context(), key, LendOptions{}, func(context.Context) (kernel.Kernel, error) { return kernel.Kernel{ID: key.Owner}, nil })
	if err != nil {
		b.Fatal(err)
	}
	p.Ran(l)
	p.GiveBack(l, true)
}

// A cell of an owner whose kernel is up, beside 999 others.
func BenchmarkWarm(b *testing.B) {
	p, _ := benchPool(b, Options{Idle: time.Hour})
	keys := benchKeys()
	for _, key := range keys {
		benchCell(b, p, key)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		benchCell(b, p, keys[i%benchOwners])
	}
}

// 1,000 owners share four kernels in turn: each cell starts a kernel, evicts another, and waits for the end of its own one before.
func BenchmarkEvict(b *testing.B) {
	p, ended := benchPool(b, Options{Idle: time.Hour, Most: 4})
	keys := benchKeys()
	b.ReportAllocs()
	n := 0
	for ; b.Loop(); n++ {
		benchCell(b, p, keys[n%benchOwners])
	}
	p.Close()
	if want := int64(max(0, n-4)); ended.Load() != want {
		b.Errorf("%d of %d kernels were evicted, want %d", ended.Load(), n, want)
	}
}

// All 1,000 kernels become idle at once. What is measured is how long every other call waits meanwhile.
func BenchmarkReap(b *testing.B) {
	keys := benchKeys()
	for b.Loop() {
		b.StopTimer()
		p, ended := benchPool(b, Options{Idle: time.Hour})
		for _, key := range keys {
			benchCell(b, p, key)
		}
		b.StartTimer()
		p.update(func(s *poolState) { s.reap(time.Now().Add(time.Hour)) })
		b.StopTimer()
		p.Close()
		if ended.Load() != benchOwners {
			b.Errorf("%d ended, want all", ended.Load())
		}
		b.StartTimer()
	}
}
