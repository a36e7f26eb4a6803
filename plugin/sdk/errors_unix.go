//go:build unix

package sdk

import (
	"errors"
	"syscall"
)

// isExhausted reports whether the system said that it has no more of something.
func isExhausted(err error) bool {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
