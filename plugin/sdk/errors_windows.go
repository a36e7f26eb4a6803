package sdk

import (
	"errors"
	"syscall"
)

// isExhausted reports whether the system said that it has no more of something.
func isExhausted(err error) bool {
	const (
		notEnoughMemory = syscall.Errno(8)
		diskFull        = syscall.Errno(112)
	)
	return errors.Is(err, notEnoughMemory) || errors.Is(err, diskFull)
}
