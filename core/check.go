package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hermes-framework/hermes/plugin"
)

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
		c.up.close(ctx)
	}
	return c.found, context.Cause(ctx)
}

type checker struct {
	engine *Engine
	name   string
	found  []Check
	env    *environment
	up     *hostConn
}

func (c *checker) ok(name, format string, args ...any) bool {
	c.found = append(c.found, Check{Name: name, OK: true, Detail: fmt.Sprintf(format, args...)})
	return true
}

func (c *checker) fail(name string, err error) bool {
	found := Check{Name: name, Detail: err.Error()}
	if pe, ok := errors.AsType[*plugin.Error](err); ok {
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
	caps := make([]string, 0, len(c.env.place.caps))
	for _, have := range c.env.place.caps {
		caps = append(caps, string(have))
	}
	slices.Sort(caps)
	c.ok("capabilities", "%s", strings.Join(caps, " "))
	if !c.env.place.can(plugin.CapReap) {
		c.warn("reap", "a cancelled command may leave processes behind that made themselves independent", "")
	}
	return true
}

func (c *checker) command(ctx context.Context) bool {
	begun := time.Now()
	status, err := c.env.place.env.Exec(ctx, plugin.Command{Argv: []string{"true"}, InheritEnv: true}, plugin.IO{})
	switch {
	case err != nil:
		return c.fail("command", err)
	case status.Code != 0:
		return c.fail("command", fmt.Errorf("`true` ended with %s", describeStatus(status)))
	}
	return c.ok("command", "one command took %s", round(time.Since(begun)))
}

func (c *checker) host(ctx context.Context) bool {
	p := c.env.place
	p.interpreter = c.engine.cfg.Interpreter
	begun := time.Now()
	h, err := newHost(ctx, &p)
	if err != nil {
		return c.fail("python", err)
	}
	c.up = h
	c.ok("python", "%s, Python %s; kernel host up in %s", h.info.Executable, h.info.Python, round(time.Since(begun)))
	for _, w := range h.info.Warnings {
		c.warn("limits", w, "")
	}
	return c.ok("directory", "%s", h.info.Dir)
}

func (c *checker) cells(ctx context.Context) bool {
	for _, lang := range []Language{Python, Bash} {
		begun := time.Now()
		answer, err := c.up.request(ctx, fields{"t": "open", "session": "", "owner": "check", "lang": string(lang), "dir": "", "env": map[string]string{}, "reset": false})
		if err != nil {
			c.fail(string(lang)+" kernel", err)
			continue
		}
		c.ok(string(lang)+" kernel", "started in %s", round(time.Since(begun)))
		if lang == Python {
			c.latency(ctx, answer.str("kernel"))
		}
	}
	return true
}

// latency times warm cells.
func (c *checker) latency(ctx context.Context, kernel string) {
	var took []time.Duration
	for range 20 {
		begun := time.Now()
		sub := submission{id: c.engine.NewCellID(), kernel: kernel, code: "1", digest: digest("", Python, "1")}
		end, err := c.up.run(ctx, sub, func(frame) {})
		if err != nil || end.str("outcome") != string(OutcomeOK) {
			if err == nil {
				err = fmt.Errorf("a cell of `1` ended as %s %s", end.str("outcome"), end.str("msg"))
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
