// Package open exports one of everything.
package open

import (
	"context"
	"errors"
	"io"
)

// Level is a typed constant's type.
type Level int

// Levels count.
const (
	Low Level = iota
	High
)

// Limit is untyped, Name is typed, ratio is nobody's business.
const (
	Limit       = 1 << 20
	Name  Level = 7
	Text        = "a \"word\""
	Half        = 0.5
	ratio       = 3
)

// ErrGone is a sentinel; Hook can be set.
var (
	ErrGone = errors.New("gone")
	Hook    func(ctx context.Context, name string) error
)

// Map is generic.
func Map[S ~[]E, E, R any](list S, f func(item E) R) []R {
	out := make([]R, 0, len(list))
	for _, e := range list {
		out = append(out, f(e))
	}
	return out
}

// Pair is a generic type.
type Pair[K comparable, V any] struct {
	Key   K
	Value V
}

// Swap has a value receiver.
func (p Pair[K, V]) Swap(other Pair[K, V]) Pair[K, V] { return other }

// Base is embedded.
type Base struct{ io.Reader }

// Reset has a pointer receiver.
func (b *Base) Reset(names ...string) {}

// Whole embeds and hides.
type Whole struct {
	*Base
	Public string `json:"public,omitempty"`
	hidden int
}

// Same is an alias.
type Same = Whole

// Doer is an interface with an embedded one.
type Doer interface {
	io.Closer
	Do(ctx context.Context) (n int, err error)
	private()
}

// Number is a constraint.
type Number interface{ ~int | ~float64 }

// Func is a function type.
type Func func(a, b int) bool
