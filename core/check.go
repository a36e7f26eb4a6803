package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/core/toolrpc"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Check is one line of what CheckEnvironment found.
type Check struct {
	Name   string `json:"name"` // connection, exec, python, directory, kernel, limits, latency, …
	OK     bool   `json:"ok"`
	Warn   bool   `json:"warn,omitempty"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
}

// CheckEnvironment tries what an environment can do, from the connection to a warm cell, and reports each step. It stops at the first step without which
// the next ones cannot work. What it started ends before it returns, but for the environment itself.
func (e *Engine) CheckEnvironment(ctx context.Context, name string) ([]Check, error) {
	if err := e.alive(); err != nil {
		return nil, err
	}
	if name == "" {
		name = DefaultEnvironment
	}
	c := &checker{engine: e, name: name}
	for _, step := range []func(context.Context) bool{c.connection, c.capabilities, c.command, c.host, c.cells} {
		if !step(ctx) {
			break
		}
	}
	if c.up != nil {
		c.up.Close(ctx)
	}
	return c.found, context.Cause(ctx)
}

type checker struct {
	engine *Engine
	name   string
	found  []Check
	env    *environment
	up     *kernel.Host
}

func (c *checker) ok(name, format string, args ...any) bool {
	c.found = append(c.found, Check{Name: name, OK: true, Detail: fmt.Sprintf(format, args...)})
	return true
}

func (c *checker) fail(name string, err error) bool {
	found := Check{Name: name, Detail: err.Error()}
	if pe, ok := errors.AsType[*sdk.Error](err); ok {
		found.Hint = pe.Hint
	}
	c.found = append(c.found, found)
	return false
}

func (c *checker) warn(name, detail, hint string) {
	c.found = append(c.found, Check{Name: name, OK: true, Warn: true, Detail: detail, Hint: hint})
}

func (c *checker) connection(ctx context.Context) bool {
	begun := time.Now()
	env, err := c.engine.environment(ctx, c.name)
	if err != nil {
		return c.fail("connection", err)
	}
	c.env = env
	return c.ok("connection", "%s opened in %s", env.target, round(time.Since(begun)))
}

func (c *checker) capabilities(context.Context) bool {
	caps := make([]string, 0, len(c.env.place.Caps))
	for _, have := range c.env.place.Caps {
		caps = append(caps, string(have))
	}
	slices.Sort(caps)
	c.ok("capabilities", "%s", strings.Join(caps, " "))
	if !c.env.place.Can(sdk.CapReap) {
		c.warn("reap", "a cancelled command may leave processes behind that made themselves independent", "")
	}
	return true
}

func (c *checker) command(ctx context.Context) bool {
	begun := time.Now()
	status, err := c.env.place.Env.Exec(ctx, sdk.Command{Argv: []string{"true"}, InheritEnv: true}, sdk.IO{})
	switch {
	case err != nil:
		return c.fail("command", err)
	case status.Code != 0:
		return c.fail("command", fmt.Errorf("`true` ended with %s", status))
	}
	return c.ok("command", "one command took %s", round(time.Since(begun)))
}

func (c *checker) host(ctx context.Context) bool {
	p := c.env.place
	p.Interpreter = c.engine.cfg.Interpreter
	begun := time.Now()
	h, info, err := newHost(ctx, &p)
	if err != nil {
		return c.fail("python", err)
	}
	c.up = h
	c.ok("python", "%s, Python %s; kernel host up in %s", info.Executable, info.Python, round(time.Since(begun)))
	for _, w := range info.Warnings {
		c.warn("limits", w, "")
	}
	return c.ok("directory", "%s", info.Dir)
}

func (c *checker) cells(ctx context.Context) bool {
	for _, lang := range []cell.Language{cell.Python, cell.Bash} {
		begun := time.Now()
		got, err := c.up.Open(ctx, kernel.OpenRequest{Owner: "check", Language: lang})
		if err != nil {
			c.fail(string(lang)+" kernel", err)
			continue
		}
		c.ok(string(lang)+" kernel", "started in %s", round(time.Since(begun)))
		if lang == cell.Python {
			c.latency(ctx, got.Kernel)
		}
	}
	return true
}

// latency times warm cells.
func (c *checker) latency(ctx context.Context, k kernel.Kernel) {
	var took []time.Duration
	for range 20 {
		begun := time.Now()
		end, err := k.Run(ctx, kernel.Submission{ID: c.engine.NewCellID(), Language: cell.Python, Code: "1"}, toolrpc.None{}, func(cell.Frame) {})
		if err != nil || end.Text("outcome") != string(cell.OutcomeOK) {
			if err == nil {
				err = fmt.Errorf("a cell of `1` ended as %s %s", end.Text("outcome"), end.Text("msg"))
			}
			c.fail("cell", err)
			return
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	c.ok("latency", "a warm cell takes %s", round(took[len(took)/2]))
}

func round(d time.Duration) time.Duration {
	if d < time.Millisecond {
		return d.Round(time.Microsecond)
	}
	return d.Round(100 * time.Microsecond)
}
