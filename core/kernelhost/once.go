package kernelhost

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/lockdown"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// OneCell is a cell for Once.
type OneCell struct {
	Language cell.Language
	Code     string
	Dir      string            // empty: the home directory
	Env      map[string]string // added to the environment's own
	Timeout  time.Duration     // 0: none
}

// Once runs one cell in a fresh interpreter of p, which ends with the cell, by one command. sink gets its frames, in the goroutine that called Once;
// the end comes back. Cancelling ctx interrupts the cell and then ends it. An error that is sdk.NotStarted says that nothing ran; any other that nobody
// knows.
func (p *Place) Once(ctx context.Context, c OneCell, sink func(cell.Frame)) (cell.Fields, error) {
	config := cell.Fields{"lang": string(c.Language), "code": c.Code, "dir": c.Dir, "env": c.Env, "timeout_ms": c.Timeout.Milliseconds()}
	start := loaderLaunch(p.Interpreter, "once", config, hostSource)
	out, in := io.Pipe()
	var stderr tailBuffer
	var status sdk.ExitStatus
	var execErr error
	var wg sync.WaitGroup
	wg.Go(func() { // ends with the command, which ctx ends
		status, execErr = p.exec(ctx, start, nil, in, &stderr)
		_ = in.Close()
	})
	begun, end, err := p.readOnce(bufio.NewReaderSize(out, 64<<10), sink)
	_, _ = io.Copy(io.Discard, out)
	wg.Wait()
	switch {
	case end != nil:
		return end, nil
	case !begun && err != nil: // it says why
		return nil, err
	case execErr != nil && sdk.AsError(execErr, sdk.MayHaveRun).Delivery == sdk.NotStarted:
		return nil, execErr
	case execErr == nil && !begun:
		return nil, sdk.Errorf(sdk.CodeInternal, sdk.NotStarted, "%s: run a cell by one command: %s ended (%s) without an answer%s", p.Label(), p.Interpreter, status, quoteOutput(stderr.String()))
	case execErr != nil:
		return nil, sdk.Errorf(sdk.CodeInternal, sdk.MayHaveRun, "%s: run a cell by one command: %w", p.Label(), execErr)
	}
	return nil, sdk.Errorf(sdk.CodeInternal, sdk.MayHaveRun, "%s: run a cell by one command: it ended (%s) without saying how the cell did%s", p.Label(), status, quoteOutput(stderr.String()))
}

// readOnce reads what the command says. begun tells that it is a cell's frames; the error of one that did not begin is the command's own.
func (p *Place) readOnce(r *bufio.Reader, sink func(cell.Frame)) (begun bool, end cell.Fields, err error) {
	for line := ""; line != "hermes-once\n"; {
		if line, err = r.ReadString('\n'); err != nil {
			return false, nil, nil
		}
		if answer, ok, _ := lockdown.ParseAnswer(line); ok && answer.Kind == lockdown.Failed {
			return false, nil, p.explainError("run a cell by one command", answer.Payload)
		}
	}
	for {
		f, err := cell.ReadFrame(r, cell.MaxFrame)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return true, nil, err
		}
		if f.Msg.Text("t") == "end" {
			return true, f.Msg, nil
		}
		sink(f)
		f.Recycle()
	}
}
