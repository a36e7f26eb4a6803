package registry

import (
	"context"
	"io"
	"sync/atomic"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// supervisedEnvironment is an environment that survives its plugin.
type supervisedEnvironment struct {
	b   *supervised
	req sdk.OpenRequest

	opening chan struct{} // holds one token: who has it may open, and change the rest
	life    int           // number of the instance in which env is open
	env     sdk.Environment
}

var (
	_ sdk.Environment = (*supervisedEnvironment)(nil)
	_ sdk.Dialer      = (*supervisedEnvironment)(nil)
	_ sdk.Files       = (*supervisedEnvironment)(nil)
)

func newSupervisedEnvironment(b *supervised, req sdk.OpenRequest) *supervisedEnvironment {
	e := &supervisedEnvironment{b: b, req: req, opening: make(chan struct{}, 1)}
	e.opening <- struct{}{}
	return e
}

// on returns the environment as it is open in inst, and opens it there if need be.
func (e *supervisedEnvironment) on(ctx context.Context, inst *instance) (sdk.Environment, error) {
	select {
	case <-e.opening:
		defer func() { e.opening <- struct{}{} }()
	case <-ctx.Done():
		return nil, gaveUp(ctx, e.b.name)
	}
	if e.life == inst.number {
		return e.env, nil
	}
	env, err := inst.client.Open(ctx, e.req)
	if err != nil {
		return nil, notStarted(err)
	}
	e.life, e.env = inst.number, env
	return env, nil
}

// notStarted is the error of work before which something else failed.
func notStarted(err error) error {
	e := *sdk.AsError(err, sdk.NotStarted)
	e.Delivery = sdk.NotStarted
	return &e
}

// call makes a call in the environment.
func (e *supervisedEnvironment) call(ctx context.Context, again func(error) bool, f func(sdk.Environment) error) error {
	return e.b.call(ctx, again, func(inst *instance) error {
		env, err := e.on(ctx, inst)
		if err != nil {
			return err
		}
		return f(env)
	})
}

// Exec implements sdk.Environment. A command that may have run is not run again.
func (e *supervisedEnvironment) Exec(ctx context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	var touched atomic.Bool
	stdio = watchIO(stdio, &touched)
	unsent := func(err error) bool {
		return !touched.Load() && sdk.AsError(err, sdk.MayHaveRun).Delivery == sdk.NotStarted
	}
	var status sdk.ExitStatus
	err := e.call(ctx, unsent, func(env sdk.Environment) error {
		var err error
		status, err = env.Exec(ctx, cmd, stdio)
		return err
	})
	return status, err
}

// watchIO notes in touched when the command has started or its stdin was read. Output comes after the start.
func watchIO(stdio sdk.IO, touched *atomic.Bool) sdk.IO {
	started := stdio.Started
	stdio.Started = func() {
		touched.Store(true)
		if started != nil {
			started()
		}
	}
	if stdio.Stdin != nil {
		stdio.Stdin = &watchedReader{stdio.Stdin, touched}
	}
	return stdio
}

type watchedReader struct {
	io.Reader
	touched *atomic.Bool
}

func (r *watchedReader) Read(p []byte) (int, error) {
	r.touched.Store(true)
	return r.Reader.Read(p)
}

type watchedWriter struct {
	io.Writer
	touched *atomic.Bool
}

func (w *watchedWriter) Write(p []byte) (int, error) {
	w.touched.Store(true)
	return w.Writer.Write(p)
}

// Dial implements sdk.Dialer. A connection that breaks is the caller's to make again.
func (e *supervisedEnvironment) Dial(ctx context.Context, req sdk.DialRequest) (sdk.Endpoint, error) {
	var end sdk.Endpoint
	err := e.call(ctx, always, func(env sdk.Environment) error {
		d, ok := env.(sdk.Dialer)
		if !ok {
			return lacks(e.b.name, sdk.CapSocket)
		}
		var err error
		end, err = d.Dial(ctx, req)
		return err
	})
	return end, err
}

// Put implements sdk.Files. It replaces the whole file or nothing, so it may be made again while the content is still whole.
func (e *supervisedEnvironment) Put(ctx context.Context, req sdk.PutRequest) error {
	var touched atomic.Bool
	if req.Content != nil {
		req.Content = &watchedReader{req.Content, &touched}
	}
	return e.call(ctx, func(error) bool { return !touched.Load() }, func(env sdk.Environment) error {
		files, ok := env.(sdk.Files)
		if !ok {
			return lacks(e.b.name, sdk.CapFiles)
		}
		return files.Put(ctx, req)
	})
}

// Get implements sdk.Files. It is made again as long as nothing of the file has been written to w.
func (e *supervisedEnvironment) Get(ctx context.Context, path string, w io.Writer) (sdk.FileInfo, error) {
	var touched atomic.Bool
	var info sdk.FileInfo
	err := e.call(ctx, func(error) bool { return !touched.Load() }, func(env sdk.Environment) error {
		files, ok := env.(sdk.Files)
		if !ok {
			return lacks(e.b.name, sdk.CapFiles)
		}
		var err error
		info, err = files.Get(ctx, path, &watchedWriter{w, &touched})
		return err
	})
	return info, err
}

// Close implements sdk.Environment. What a plugin that is gone had open went with it.
func (e *supervisedEnvironment) Close(ctx context.Context) error {
	if !e.b.runs() {
		return nil
	}
	return e.call(ctx, always, func(env sdk.Environment) error { return env.Close(ctx) })
}

func lacks(backend string, c sdk.Capability) error {
	return sdk.Errorf(sdk.CodeUnsupported, sdk.NotStarted, "backend %s: has no capability %q", backend, c)
}
