package kernel

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
)

// ErrNoCell means that a kernel host certainly has not started a cell: it has never heard of it.
var ErrNoCell = errors.New("the kernel host has no such cell")

// ErrNoResult means that a kernel host is gone and its journal knows of a cell, but not what became of it.
var ErrNoResult = errors.New("its journal has no result of the cell")

var errConflict = errors.New("another cell has this id")

// Joining names a cell that somebody submitted before.
type Joining struct {
	ID     string
	Digest []byte // what the cell must be, else its end is refused for a conflict; nil: whatever it is
	Stop   bool   // cancelling the context interrupts the cell, as in Run; else it goes on, and nobody waits for it
}

// Join follows a cell from its first retained byte to its end, as Run does, and never submits it. Its error is ErrNoCell if the host has never heard
// of the cell, and the context's cause if that is cancelled and the cell goes on. If the host is gone, what it left behind decides.
func (h *Host) Join(ctx context.Context, j Joining, tools Tools, sink func(cell.Frame)) (cell.Fields, error) {
	r := h.joining(j, tools, sink)
	end, err := r.run(ctx)
	if errors.Is(err, errConflict) {
		return conflict(), nil
	}
	return end, err
}

// Recover is Join for a host that is known to be gone: nobody is connected to.
func (h *Host) Recover(ctx context.Context, j Joining, sink func(cell.Frame)) (cell.Fields, error) {
	return h.joining(j, nil, sink).recover(ctx, errGone)
}

func (h *Host) joining(j Joining, tools Tools, sink func(cell.Frame)) *cellRun {
	return &cellRun{kernel: Kernel{Host: h}, sub: Submission{ID: j.ID}, tools: tools, sink: sink, sent: true, joins: &j}
}

// means says whether digest is that of the cell that is meant.
func (r *cellRun) means(digest []byte) bool {
	if r.joins == nil {
		return bytes.Equal(digest, r.sub.Digest())
	}
	return r.joins.Digest == nil || bytes.Equal(digest, r.joins.Digest)
}

func conflict() cell.Fields {
	return cell.Fields{"outcome": string(cell.OutcomeRefused), "reason": "conflict", "msg": errConflict.Error(), "kernel_alive": true}
}

// CellStatus is a cell as its host lists it.
type CellStatus struct {
	ID        string
	Session   string
	Kernel    string
	Language  cell.Language
	State     string       // queued, running, finished
	Outcome   cell.Outcome // of a finished one
	Submitted time.Time
	Started   time.Time // zero: it did not start
	Finished  time.Time // zero: it has not ended
	Out, Err  int64     // bytes of output so far
	Acked     bool      // somebody has its result
}

// Cells lists the cells of the host, oldest first; id, if it is not empty, chooses one. Its error satisfies IsGone if nobody is there.
func (h *Host) Cells(ctx context.Context, id string) ([]CellStatus, error) {
	answer, err := h.request(ctx, cell.Fields{"t": "cells", "cell": id})
	if err != nil {
		return nil, err
	}
	var out []CellStatus
	for _, v := range answer.List("cells") {
		c, ok := v.(cell.Fields)
		if !ok {
			continue
		}
		out = append(out, CellStatus{
			ID: c.Text("cell"), Session: c.Text("session"), Kernel: c.Text("kernel"), Language: cell.Language(c.Text("lang")), State: c.Text("state"),
			Outcome: cell.Outcome(c.Text("outcome")), Submitted: timeOrNone(c.Float("submitted")), Started: timeOrNone(c.Float("started")),
			Finished: timeOrNone(c.Float("finished")), Out: c.Int("out"), Err: c.Int("err"), Acked: c.Flag("acked"),
		})
	}
	return out, nil
}

func timeOrNone(seconds float64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return unixTime(seconds)
}

// Cancel ends a queued cell as refused and interrupts a running one; one that has ended is left alone. ErrNoCell if there is none.
func (h *Host) Cancel(ctx context.Context, id string) error {
	answer, err := h.request(ctx, cell.Fields{"t": "cancel", "cell": id})
	if refused(err) && errors.Is(err, fs.ErrNotExist) || err == nil && answer.Text("state") == "none" {
		return ErrNoCell
	}
	return err
}

// Revoke sees to it that a cell never starts, unless it has started or waits for its turn: then it is left alone. It says which.
func (h *Host) Revoke(ctx context.Context, id string) (revoked bool, err error) {
	answer, err := h.request(ctx, cell.Fields{"t": "state", "cell": id})
	if err != nil || answer.Text("state") != "none" {
		return answer.Text("state") == "revoked", err
	}
	answer, err = h.request(ctx, cell.Fields{"t": "revoke", "cell": id})
	return answer.Text("state") == "revoked", err
}
