package main

import (
	"bufio"
	"errors"
	"io"
	"os"

	"github.com/peterh/liner"
	"golang.org/x/term"
)

// errCleared is what a line reader says when the user threw the line away with Ctrl-C.
var errCleared = errors.New("line cleared")

// lineReader reads the lines of the repl. io.EOF ends it.
type lineReader interface {
	read(prompt string) (string, error)
	// close gives the terminal back as it was.
	close()
}

// newLineReader edits lines when both ends are terminals, and reads plain ones otherwise.
func (a *app) newLineReader(h *history) (_ lineReader, interactive bool) {
	if !term.IsTerminal(int(a.stdin.Fd())) {
		return &plainLines{r: bufio.NewReader(a.stdin)}, false
	}
	if !term.IsTerminal(int(a.stdout.Fd())) || a.getenv("TERM") == "dumb" {
		return &plainLines{r: bufio.NewReader(a.stdin), prompt: a.stderr}, true
	}

	return newEditor(h), true
}

// plainLines reads lines as they are.
type plainLines struct {
	r      *bufio.Reader
	prompt io.Writer // nil: none
}

func (p *plainLines) read(prompt string) (string, error) {
	if p.prompt != nil {
		_, _ = io.WriteString(p.prompt, prompt)
	}
	line, err := p.r.ReadString('\n')
	if line == "" && err != nil {
		return "", err
	}

	return trimEOL(line), nil
}

func (p *plainLines) close() {}

func trimEOL(line string) string {
	for _, end := range []string{"\n", "\r"} {
		if n := len(line) - len(end); n >= 0 && line[n:] == end {
			line = line[:n]
		}
	}

	return line
}

// editor is a line editor with history. It has the terminal only while it reads: a running cell gets the one that the user set up.
type editor struct {
	state          *liner.State
	usual, editing liner.ModeApplier
	history        *history
}

func newEditor(h *history) *editor {
	usual, err := liner.TerminalMode()
	e := &editor{state: liner.NewLiner(), history: h}
	e.state.SetCtrlCAborts(true)
	if err == nil {
		if editing, err := liner.TerminalMode(); err == nil {
			e.usual, e.editing = usual, editing
		}
	}
	for _, line := range h.lines {
		e.state.AppendHistory(line)
	}
	e.mode(e.usual)

	return e
}

func (e *editor) mode(m liner.ModeApplier) {
	if m != nil {
		_ = m.ApplyMode()
	}
}

func (e *editor) read(prompt string) (string, error) {
	e.mode(e.editing)
	defer e.mode(e.usual)
	line, err := e.state.Prompt(prompt)
	if errors.Is(err, liner.ErrPromptAborted) {
		return "", errCleared
	}
	if err != nil {
		return "", err
	}
	e.state.AppendHistory(line)
	e.history.add(line)

	return line, nil
}

func (e *editor) close() { _ = e.state.Close() }

// historyLimit is how many lines of the history are kept.
const historyLimit = 1000

// history is the file with what was typed, which only its owner can read.
type history struct {
	path  string
	lines []string
}

// openHistory reads the last lines of the file at path. Without a file there is just nothing to look back to.
func openHistory(path string) *history {
	h := &history{path: path}
	f, err := os.Open(path)
	if err != nil {
		return h
	}
	defer f.Close() //nolint:errcheck // it was only read

	total := 0
	for lines := bufio.NewScanner(f); lines.Scan(); total++ {
		h.lines = append(h.lines, lines.Text())
		if len(h.lines) > historyLimit {
			h.lines = h.lines[1:]
		}
	}
	if total > 2*historyLimit {
		h.rewrite()
	}

	return h
}

// rewrite keeps only the lines in memory.
func (h *history) rewrite() {
	short := h.path + ".new"
	_ = os.Remove(short)
	for _, line := range h.lines {
		if appendLine(short, line) != nil {
			return
		}
	}
	_ = os.Rename(short, h.path)
}

// add notes a line at once, so that a crash, or another repl, loses none.
func (h *history) add(line string) {
	if h.path == "" || line == "" {
		return
	}
	_ = appendLine(h.path, line) // a history that cannot be written is no reason to stop working
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")

	return errors.Join(err, f.Close())
}
