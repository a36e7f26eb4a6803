//go:build unix

package core

import (
	"errors"
	"syscall"

	"github.com/hermes-framework/hermes/plugin"
)

// nobodyListens reports whether err says that there is no living socket: refused, or not there.
func nobodyListens(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) || errors.Is(err, plugin.ErrNotFound)
}
