//go:build unix

package local

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalName returns a signal's name without SIG.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	return sig.String()
}
