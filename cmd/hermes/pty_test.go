package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"
)

// cmdPty runs a command on a terminal of 30 lines and 100 columns and plays a dialogue with it:
//
//	pty DIALOGUE STATUS CMD [ARG...]
//
// Each line of the dialogue is a word and a text: "expect PATTERN" waits until what was printed since the last expect matches;
// "send TEXT" types TEXT, in which \r, \n, \x03 and so on have their meaning of Go strings; "size ROWS COLS" resizes the terminal.
func cmdPty(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: pty DIALOGUE STATUS CMD [ARG...]")
	}
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	path, err := lookPath(ts, args[2])
	ts.Check(err)

	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args[3:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = environ(ts)
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 30, Cols: 100})
	ts.Check(err)
	defer terminal.Close() //nolint:errcheck // the other side has ended

	screen := newScreen(terminal)
	for line := range strings.SplitSeq(strings.TrimSpace(ts.ReadFile(args[0])), "\n") {
		if err := play(terminal, screen, line); err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			ts.Fatalf("%s: %v\nprinted:\n%q", line, err, screen.text())
		}
	}
	got := exitStatus(cmd.Wait())
	<-screen.done
	ts.Logf("[tty]\n%s", screen.text())
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

func play(terminal *os.File, screen *screen, line string) error {
	word, text, _ := strings.Cut(line, " ")
	switch word {
	case "expect":
		re, err := regexp.Compile(text)
		if err != nil {
			return err
		}
		return await(20*time.Second, func() error { return screen.expect(re) })
	case "send":
		keys, err := strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`)
		if err != nil {
			return err
		}
		_, err = io.WriteString(terminal, keys)
		return err
	case "size":
		var size pty.Winsize
		if _, err := fmt.Sscan(text, &size.Rows, &size.Cols); err != nil {
			return err
		}
		return pty.Setsize(terminal, &size)
	}

	return errors.New("unknown word")
}

// screen collects what a terminal prints.
type screen struct {
	done chan struct{}

	mu   sync.Mutex
	all  []byte
	seen int
}

// newScreen reads r until it ends, which it does when the last process has left the terminal.
func newScreen(r io.Reader) *screen {
	s := &screen{done: make(chan struct{})}
	go func() {
		defer close(s.done)
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			s.mu.Lock()
			s.all = append(s.all, buf[:n]...)
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()

	return s
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return string(s.all)
}

// expect consumes what was printed up to the first match.
func (s *screen) expect(re *regexp.Regexp) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := re.FindIndex(s.all[s.seen:])
	if at == nil {
		return fmt.Errorf("no match for %s in %q", re, s.all[s.seen:])
	}
	s.seen += at[1]

	return nil
}
