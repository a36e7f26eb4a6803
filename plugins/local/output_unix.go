//go:build unix

package local

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// drainTime is how long an output is read after the process has ended, while somebody else keeps writing to it.
const drainTime = 250 * time.Millisecond

// ttyQuiet is how long a terminal that somebody else holds must say nothing to count as empty: the kernel passes what was written to it on later.
const ttyQuiet = 20 * time.Millisecond

// output is our end of a process' stdout, stderr or terminal.
type output struct {
	r   *os.File
	w   io.Writer
	tty bool
	err error // of w
}

// copy carries what the process writes until the file ends or finish is called, and then what is still in it.
// A writer that fails ends the output: the process gets a broken pipe.
func (o *output) copy() {
	buf := make([]byte, sdk.MaxChunk)
	for o.err == nil {
		n, err := o.r.Read(buf)
		o.write(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			o.drain(buf)
			return
		}
		if err != nil { // the end; a terminal says EIO
			return
		}
	}
	_ = o.r.Close()
}

func (o *output) write(p []byte) {
	if len(p) > 0 && o.err == nil {
		_, o.err = o.w.Write(p)
	}
}

// finish makes copy end: the process has ended, and whoever else holds the other end is not waited for.
func (o *output) finish() {
	_ = o.r.SetReadDeadline(time.Unix(1, 0))
}

// drain reads what is there. All that the process itself wrote is in the first fill of the pipe, however slow the reader is;
// after that somebody who goes on writing is listened to for drainTime.
func (o *output) drain(buf []byte) {
	const fill = 1 << 20 // no pipe of an ordinary user is larger
	deadline := time.Now().Add(drainTime)
	for total := 0; o.err == nil; {
		n, err := o.readNow(buf)
		if n > 0 {
			o.write(buf[:n])
			total += n
		}
		if n == 0 || err != nil || (total >= fill && !time.Now().Before(deadline)) {
			return
		}
	}
}

// readNow reads what is there without waiting for more.
func (o *output) readNow(buf []byte) (n int, err error) {
	if o.tty {
		_ = o.r.SetReadDeadline(time.Now().Add(ttyQuiet))
		return o.r.Read(buf)
	}
	_ = o.r.SetReadDeadline(time.Time{})
	conn, err := o.r.SyscallConn()
	if err != nil {
		return 0, err
	}
	var readErr error
	err = conn.Read(func(fd uintptr) bool {
		for {
			n, readErr = syscall.Read(int(fd), buf)
			if readErr != syscall.EINTR {
				return true // also at EAGAIN: it is empty
			}
		}
	})
	return max(n, 0), errors.Join(err, readErr)
}
