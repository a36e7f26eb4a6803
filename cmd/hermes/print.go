package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
)

// printer shows a cell to the user. Its errors are failed writes to stdout; what stderr does not take is lost.
type printer interface {
	// event is called for each event, in one goroutine.
	event(ev cell.Event) error
	// result is called once, after the last event.
	result(req core.Request, res cell.Result) error
}

func (a *app) newPrinter() printer {
	switch {
	case a.json:
		return jsonPrinter{a}
	case a.events:
		return &eventPrinter{app: a}
	}

	return &textPrinter{app: a}
}

// jsonPrinter prints the result and nothing else.
type jsonPrinter struct{ app *app }

func (p jsonPrinter) event(cell.Event) error { return nil }

func (p jsonPrinter) result(_ core.Request, res cell.Result) error {
	if p.app.last.Swap(true) {
		return nil
	}

	return p.app.printJSON(res)
}

// eventPrinter prints each event as one line.
type eventPrinter struct {
	app   *app
	ended bool
}

func (p *eventPrinter) event(ev cell.Event) error {
	if p.app.last.Load() {
		return nil
	}
	p.ended = ev.Kind == cell.EventEnd

	return p.app.printJSON(ev)
}

func (p *eventPrinter) result(_ core.Request, res cell.Result) error {
	if p.ended || p.app.last.Load() {
		return nil
	}

	return p.app.printJSON(cell.Event{Kind: cell.EventEnd, Cell: res.Cell.ID, Result: &res})
}

// textPrinter passes the cell's bytes on as they come, and adds its value on a line of its own.
type textPrinter struct {
	app      *app
	out, err column
}

// column remembers whether a stream stands at the beginning of a line.
type column struct{ inLine bool }

func (c *column) write(w io.Writer, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	c.inLine = data[len(data)-1] != '\n'
	_, err := w.Write(data)

	return err
}

// newLine ends a line that has been begun.
func (c *column) newLine(w io.Writer) error {
	if !c.inLine {
		return nil
	}

	return c.write(w, []byte("\n"))
}

func (p *textPrinter) event(ev cell.Event) error {
	switch ev.Kind {
	case cell.EventOutput:
		if ev.Stream == "stderr" {
			_ = p.err.write(p.app.stderr, ev.Data)
			return nil
		}
		return p.app.wrote(p.out.write(p.app.stdout, ev.Data))
	case cell.EventGap:
		p.notef("note: %d bytes of %s, from offset %d, were not passed on: this program was read too slowly", ev.Omitted, ev.Stream, ev.Offset)
	case cell.EventNote:
		p.notef("note: %s", ev.Text)
	}

	return nil
}

func (p *textPrinter) result(req core.Request, res cell.Result) error {
	if p.app.last.Load() {
		return nil
	}
	c := res.Cell
	p.kernelNotes(res.Kernel)
	if c.Value != nil {
		if err := p.printValue(*c.Value); err != nil {
			return err
		}
	}
	if e := c.Error; e != nil {
		p.printError(*e, req.Language)
	}
	if said := outcomeSentence(req, c); said != "" {
		p.notef("%s", said)
	}

	return nil
}

func (p *textPrinter) printValue(value string) error {
	if err := p.out.newLine(p.app.stdout); err != nil {
		return p.app.wrote(err)
	}

	return p.app.wrote(p.out.write(p.app.stdout, []byte(value+"\n")))
}

// printError shows an exception as Python does. A shell has said itself what was wrong, its status says the rest.
func (p *textPrinter) printError(e cell.CellError, language cell.Language) {
	text := e.Traceback
	if text == "" && language != cell.Bash {
		text = e.Type + ": " + e.Message
	}
	if text == "" {
		return
	}
	_ = p.err.newLine(p.app.stderr)
	_ = p.err.write(p.app.stderr, []byte(strings.TrimRight(text, "\n")+"\n"))
}

func (p *textPrinter) notef(format string, args ...any) {
	_ = p.err.newLine(p.app.stderr)
	p.app.warnf(format, args...)
}

// kernelNotes tell what a person who counts on the kernel's state must know.
func (p *textPrinter) kernelNotes(k cell.Kernel) {
	if k.StateLost {
		p.notef("note: the variables of earlier cells are gone (%s); this cell ran in a fresh kernel", k.StateLostReason)
	}
}

// outcomeSentence says how a cell ended that did not come to its own end.
func outcomeSentence(req core.Request, c cell.Cell) string {
	why := c.Reason
	switch c.Outcome {
	case cell.OutcomeTimeout:
		return fmt.Sprintf("the cell was stopped after %v (--timeout)", req.Timeout)
	case cell.OutcomeInterrupted:
		return "the cell was interrupted"
	case cell.OutcomeLost:
		if c.Signal != "" {
			why = strings.TrimSuffix("killed by "+signalName(c.Signal)+"; "+why, "; ")
		}
		return "the cell was lost: its kernel ended before it did" + inBrackets(why) + "; what it had done by then stays done"
	case cell.OutcomeUnknown:
		return "the outcome of the cell is unknown" + inBrackets(why) + "; it may or may not have run"
	case cell.OutcomeRefused:
		return "the cell was refused" + inBrackets(why) + "; it did not run"
	}

	return ""
}

func signalName(signal string) string {
	return "SIG" + strings.TrimPrefix(signal, "SIG")
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}

	return " (" + text + ")"
}

// left says what becomes of a cell that the program does not wait for any more.
func left(req core.Request, id string) error {
	switch {
	case req.Session == "":
		return &leftError{"left before the cell had ended; its kernel is ended"}
	case id == "":
		return &leftError{fmt.Sprintf("left before the cell of session %s had its turn", req.Session)}
	}

	return &leftError{fmt.Sprintf("left before cell %s had ended; it is being interrupted in session %s (see hermes kernels ls)", id, req.Session)}
}

// brokenPipe says that err is a write to a reader that went away.
func brokenPipe(err error) bool {
	gone := (*outputError)(nil)

	return errors.As(err, &gone) && gone.closed()
}
