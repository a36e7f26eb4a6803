package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hermes-framework/hermes/internal/launch"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// maxPanicText bounds the part of a panic that an error's text carries; the whole block is in its Cause.
const maxPanicText = 3000

// startCodes are the codes of failed starts.
var startCodes = map[launch.Kind]sdk.Code{
	launch.KindInvalid:      sdk.CodeInvalid,
	launch.KindNotFound:     sdk.CodeNotFound,
	launch.KindPermission:   sdk.CodePermission,
	launch.KindUntrusted:    sdk.CodeUntrusted,
	launch.KindIncompatible: sdk.CodeIncompatible,
	launch.KindTimeout:      sdk.CodeTimeout,
	launch.KindCanceled:     sdk.CodeCanceled,
	launch.KindCrashed:      sdk.CodeCrashed,
	launch.KindExhausted:    sdk.CodeExhausted,
	launch.KindInternal:     sdk.CodeInternal,
}

// startError turns a failed start into the error that callers get. Nothing of theirs has run.
func startError(err error) error {
	e, ok := errors.AsType[*launch.Error](err)
	if !ok {
		return sdk.AsError(err, sdk.NotStarted)
	}
	out := sdk.Errorf(startCodes[e.Kind], sdk.NotStarted, "%w", err)
	out.Hint = e.Hint
	if reason, ok := errors.AsType[*sdk.Error](e.Err); ok {
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
func (c *crash) failed(delivery sdk.Delivery) error {
	e := sdk.Errorf(sdk.CodeCrashed, delivery, "%w", c)
	if delivery != sdk.NotStarted {
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
	return sdk.Errorf(sdk.CodeCrashed, sdk.NotStarted, "backend %s: in quarantine after %d crashes within %s; the last: %w",
		name, crashes, window, last).
		WithHint("install another build (hermes plugin install PATH), or wait: it is tried again at %s", until.Format(time.TimeOnly))
}

// gaveUp is the error of a caller whose ctx ended while it waited for a plugin.
func gaveUp(ctx context.Context, name string) error {
	err := context.Cause(ctx)
	return sdk.Errorf(sdk.AsError(ctx.Err(), sdk.NotStarted).Code, sdk.NotStarted, "backend %s: waiting for its plugin: %w", name, err)
}
