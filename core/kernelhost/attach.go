package kernelhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/lockdown"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Connect attaches to the host by the best way the backend has; see kernel.Process. An error that is sdk.ErrPermission
// will not get better by trying again: the host does not have our token, for one.
func (h *Host) Connect(ctx context.Context, hello cell.Fields) (conn io.ReadWriteCloser, welcome cell.Fields, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attachTimeout, fmt.Errorf("no connection to the kernel host after %s", attachTimeout))
	defer cancel()
	var errs []error
	ways := h.Place.ways()
	only := len(ways) == 1
	if only {
		ways = append(ways, ways[0]) // once more, if it hangs
	}
	for i, way := range ways {
		conn, welcome, err := h.attachWithin(ctx, way, hello, i == len(ways)-1)
		if err == nil {
			return conn, welcome, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil || errors.Is(err, sdk.ErrPermission) || only && !errors.Is(err, errHangs) {
			break
		}
	}
	return nil, nil, fmt.Errorf("%s: attach to the kernel host at %s: %w", h.Place.Label(), h.Info.Socket, joined(errs))
}

// errHangs means that a way was given up for the next one.
var errHangs = fmt.Errorf("no connection after %s", wayTimeout)

// attachWithin attaches by one way. One that hangs leaves the next, if it is not the last, time enough while the host still waits for a client.
func (h *Host) attachWithin(ctx context.Context, way attachFunc, hello cell.Fields, last bool) (io.ReadWriteCloser, cell.Fields, error) {
	if last {
		return way(h, ctx, hello)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wayTimeout, errHangs)
	defer cancel()
	conn, welcome, err := way(h, ctx, hello)
	if err != nil && errors.Is(context.Cause(ctx), errHangs) && !errors.Is(err, errHangs) {
		err = fmt.Errorf("%w (%w)", errHangs, err)
	}
	return conn, welcome, err
}

// Refused is the error of a request that the host refused: nothing was started by it.
func (h *Host) Refused(code, message string) error {
	return &sdk.Error{Code: codeOf(code), Delivery: sdk.NotStarted, Message: "kernel host: " + message}
}

// joined is errors.Join on one line.
func joined(errs []error) error {
	err := errs[0]
	for _, more := range errs[1:] {
		err = fmt.Errorf("%w; %w", err, more)
	}
	return err
}

type attachFunc func(h *Host, ctx context.Context, hello cell.Fields) (conn io.ReadWriteCloser, welcome cell.Fields, err error)

func (p *Place) ways() []attachFunc {
	var ways []attachFunc
	if p.Can(sdk.CapSocket) {
		ways = append(ways, (*Host).attachSocket)
	}
	if p.relays() {
		return append(ways, (*Host).attachRelay)
	}
	return append(ways, (*Host).attachCalls)
}

// relays says whether a command can carry a connection.
func (p *Place) relays() bool { return p.Can(sdk.CapStdin) && p.Can(sdk.CapStream) }

// calls says whether a connection is there only while a command is.
func (p *Place) calls() bool { return !p.Can(sdk.CapSocket) && !p.relays() }

func (h *Host) attachSocket(ctx context.Context, hello cell.Fields) (io.ReadWriteCloser, cell.Fields, error) {
	dialer, ok := h.Place.Env.(sdk.Dialer)
	if !ok {
		return nil, nil, &sdk.Error{Code: sdk.CodeUnsupported, Message: "the backend announces socket and cannot dial"}
	}
	end, err := dialer.Dial(ctx, sdk.DialRequest{Path: h.Info.Socket, Stream: h.Place.ThroughPlugin})
	if err != nil {
		return nil, nil, err
	}
	conn := end.Conn
	if conn == nil {
		var d net.Dialer
		if conn, err = d.DialContext(ctx, "unix", end.Addr); err != nil {
			return nil, nil, err
		}
	}
	welcome, err := h.greet(ctx, conn, hello)
	return conn, welcome, err
}

// attachRelay carries the connection over the stdin and stdout of a command in the environment.
func (h *Host) attachRelay(ctx context.Context, hello cell.Fields) (io.ReadWriteCloser, cell.Fields, error) {
	conn := startRelay(ctx, h.Place, h.Info)
	if err := conn.skipTo(ctx, "hermes-relay"); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	welcome, err := h.greet(ctx, conn, hello)
	return conn, welcome, err
}

// relayConn is a connection over a command. Close ends the command and waits for it.
type relayConn struct {
	io.Reader
	io.Writer
	place  *Place
	cancel context.CancelFunc
	pipes  []io.Closer
	wg     sync.WaitGroup
	stderr tailBuffer
}

func startRelay(ctx context.Context, p *Place, info Info) *relayConn {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the relay outlives the attaching; Close ends it
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	c := &relayConn{Reader: outR, Writer: inW, place: p, cancel: cancel, pipes: []io.Closer{inW, outR}}
	start := loaderLaunch(info.Executable, "relay", cell.Fields{"sock": info.Socket}, hostSource)
	c.wg.Go(func() { // ends with ctx or the relay; Close waits for it
		status, err := p.exec(ctx, start, inR, outW, &c.stderr)
		if err == nil {
			err = fmt.Errorf("the relay ended (%s)%s", status, quoteOutput(c.stderr.String()))
		}
		_ = outW.CloseWithError(err)
		_ = inR.CloseWithError(err)
	})
	return c
}

// skipTo reads up to the line that marks the beginning of the frames.
func (c *relayConn) skipTo(ctx context.Context, marker string) error {
	stop := context.AfterFunc(ctx, c.cancel)
	defer stop()
	var line []byte
	one := make([]byte, 1)
	for budget := 64 << 10; budget > 0; budget-- {
		if _, err := io.ReadFull(c.Reader, one); err != nil {
			return err
		}
		if one[0] != '\n' {
			line = append(line, one[0])
			continue
		}
		text := strings.TrimSpace(string(line))
		if text == marker {
			return nil
		}
		if answer, ok, _ := lockdown.ParseAnswer(text); ok && answer.Kind == lockdown.Failed {
			return c.place.explainError("relay", answer.Payload)
		}
		line = line[:0]
	}
	return fmt.Errorf("%w: 64 KiB without the line %q", cell.ErrMalformed, marker)
}

func (c *relayConn) Close() error {
	for _, p := range c.pipes {
		_ = p.Close()
	}
	c.cancel()
	c.wg.Wait()
	return nil
}

// tailBuffer keeps the last bytes of what is written to it.
type tailBuffer struct {
	most int // that are kept; 0: tailSize

	mu   sync.Mutex
	data []byte
}

const tailSize = 64 << 10

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p...)
	most := b.most
	if most == 0 {
		most = tailSize
	}
	if extra := len(b.data) - most; extra > 0 {
		b.data = append(b.data[:0], b.data[extra:]...)
	}
	return len(p), nil
}

func (b *tailBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data)
}
