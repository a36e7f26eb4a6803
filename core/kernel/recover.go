package kernel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
)

const (
	// recoverWithin is how long what a host left behind may be asked. Its processes have a part of that to end.
	recoverWithin = 30 * time.Second
	// replayChunk is the most that one frame of recovered output carries, like those of a host.
	replayChunk = 64 << 10
)

// recover makes the end of a cell whose host is gone from what that left behind. gone is how we know.
func (r *cellRun) recover(ctx context.Context, gone error) (cell.Fields, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), recoverWithin, errors.New("no answer in time")) // a cancelled cell has an end, too
	defer cancel()
	left, err := r.kernel.Host.process.Recover(ctx, r.sub.ID)
	if err != nil {
		return nil, fmt.Errorf("%w; %w", gone, err)
	}
	end, err := r.verdict(left, gone)
	for _, key := range []string{"kernel", "session", "lang"} {
		if end != nil {
			end[key] = left.Text(key)
		}
	}
	return end, err
}

// verdict makes the end of a cell from what its journal says.
func (r *cellRun) verdict(left cell.Fields, gone error) (cell.Fields, error) {
	end := left.Map("end")
	switch state, same := left.Text("state"), !left.Has("digest") || r.means(left.Bytes("digest")); {
	case !same:
		return hostGone(cell.Fields{"outcome": string(cell.OutcomeRefused), "reason": "conflict", "msg": "another cell has this id"}), nil
	case state == "finished" && end != nil:
		r.replay(cell.StreamOut, r.out, end.Int("out"), left.List("out"))
		r.replay(cell.StreamErr, r.err, end.Int("err"), left.List("err"))
		return hostGone(end), nil
	case state == "started":
		return hostGone(cell.Fields{"outcome": string(cell.OutcomeLost), "reason": "the kernel host was killed while the cell ran"}), nil
	case state == "none" && r.joins != nil:
		return nil, ErrNoCell
	case state == "none" || state == "accepted":
		return hostGone(cell.Fields{"outcome": string(cell.OutcomeRefused), "reason": "no_kernel", "msg": "the kernel host was killed before the cell started"}), nil
	case state == "revoked":
		return hostGone(cell.Fields{"outcome": string(cell.OutcomeRefused), "reason": "revoked", "msg": "it was revoked before it started"}), nil
	default: // its result was forgotten, or could not be written
		return nil, fmt.Errorf("%w; %w (%s)", gone, ErrNoResult, state)
	}
}

// hostGone completes an end for a kernel that ended with its host.
func hostGone(end cell.Fields) cell.Fields {
	end["host_gone"], end["kernel_alive"] = true, false
	return end
}

// replay gives the sink what it does not have yet of a stream of total bytes. parts are pairs of an offset and the bytes from there on, in order.
func (r *cellRun) replay(stream byte, at, total int64, parts []any) {
	for _, p := range parts {
		part, ok := p.([]any)
		if !ok || len(part) != 2 {
			continue
		}
		from, _ := part[0].(int64)
		data, _ := part[1].([]byte)
		if from > at {
			r.gap(stream, at, from)
			at = from
		}
		for data = data[min(at-from, int64(len(data))):]; len(data) > 0; {
			n := min(len(data), replayChunk)
			r.sink(cell.Frame{Stream: stream, Offset: at, Data: data[:n]})
			data, at = data[n:], at+int64(n)
		}
	}
	if total > at {
		r.gap(stream, at, total)
	}
}

func (r *cellRun) gap(stream byte, from, to int64) {
	r.sink(cell.Frame{Msg: cell.Fields{"t": "gap", "stream": int64(stream), "from": from, "to": to}})
}
