package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hermes-framework/hermes/internal/launch"
	"github.com/hermes-framework/hermes/plugin"
)

// maxPanicText bounds the part of a panic that an error's text carries; the whole block is in its Cause.
const maxPanicText = 3000

// startCodes are the codes of failed starts.
var startCodes = map[launch.Kind]plugin.Code{
	launch.KindInvalid:      plugin.CodeInvalid,
	launch.KindNotFound:     plugin.CodeNotFound,
	launch.KindPermission:   plugin.CodePermission,
	launch.KindUntrusted:    plugin.CodeUntrusted,
	launch.KindIncompatible: plugin.CodeIncompatible,
	launch.KindTimeout:      plugin.CodeTimeout,
	launch.KindCanceled:     plugin.CodeCanceled,
	launch.KindCrashed:      plugin.CodeCrashed,
	launch.KindExhausted:    plugin.CodeExhausted,
	launch.KindInternal:     plugin.CodeInternal,
}

// startError turns a failed start into the error that callers get. Nothing of theirs has run.
func startError(err error) error {
	e, ok := errors.AsType[*launch.Error](err)
	if !ok {
		return plugin.AsError(err, plugin.NotStarted)
	}
	out := plugin.Errorf(startCodes[e.Kind], plugin.NotStarted, "%w", err)
	out.Hint = e.Hint
	if reason, ok := errors.AsType[*plugin.Error](e.Err); ok {
		out.Code, out.Hint = reason.Code, reason.Hint // what Spec.Check said
	}
	if out.Hint == "" && blames(err) {
		out.Hint = "the plugin is at fault: install another version of it, or tell its author what is said here"
	}
	if e.Exit != nil {
		out.Message += panicText(e.Exit.Panic)
	}
	return out
}

// blames says whether a failed start speaks against the plugin, so that the next has to wait. What can be put right by the caller does not.
func blames(err error) bool {
	e, ok := errors.AsType[*launch.Error](err)
	return ok && (e.Kind == launch.KindCrashed || e.Kind == launch.KindTimeout || e.Kind == launch.KindInvalid) && e.Phase != launch.PhaseVerify
}

// crash is why an instance of a plugin is gone.
type crash struct {
	name string
	exit launch.Exit
	hung bool // it was killed because it no longer answered
	when time.Time
}

func (c *crash) Error() string {
	what := "ended while it worked: " + c.exit.String()
	switch {
	case c.hung:
		what = "did not answer and was killed"
	case c.exit.Killed:
		what = "was stopped while it worked"
	}
	return fmt.Sprintf("backend %s: its plugin %s%s", c.name, what, panicText(c.exit.Panic))
}

// failed is the error of a call that was under way when the instance went.
func (c *crash) failed(delivery plugin.Delivery) error {
	e := plugin.Errorf(plugin.CodeCrashed, delivery, "%w", c)
	if delivery != plugin.NotStarted {
		e.Hint = "it may have had its effect; the backend is started again with the next call"
	}
	return e
}

func panicText(block string) string {
	if block == "" {
		return ""
	}
	if len(block) > maxPanicText {
		block = block[:maxPanicText] + "…"
	}
	return "\n" + block
}

// quarantined is the error of every call while a plugin is in quarantine.
func quarantined(name string, crashes int, window time.Duration, last error, until time.Time) error {
	return plugin.Errorf(plugin.CodeCrashed, plugin.NotStarted, "backend %s: in quarantine after %d crashes within %s; the last: %w",
		name, crashes, window, last).
		WithHint("install another build (hermes plugin install PATH), or wait: it is tried again at %s", until.Format(time.TimeOnly))
}

// gaveUp is the error of a caller whose ctx ended while it waited for a plugin.
func gaveUp(ctx context.Context, name string) error {
	err := context.Cause(ctx)
	return plugin.Errorf(plugin.AsError(err, plugin.NotStarted).Code, plugin.NotStarted, "backend %s: waiting for its plugin: %w", name, err)
}
