package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

var errHelp = pflag.ErrHelp

// usageError is a command line or a configuration that cannot be used: nothing was started.
type usageError struct {
	msg  string
	hint string
	err  error
}

func (e *usageError) Error() string { return e.msg }
func (e *usageError) Unwrap() error { return e.err }

func usagef(hint, format string, args ...any) error {
	return &usageError{msg: fmt.Sprintf(format, args...), hint: hint}
}

// notFoundError is something of ours, such as a kernel, that is not there.
type notFoundError struct {
	msg  string
	hint string
}

func (e *notFoundError) Error() string { return e.msg }

// exitError is an exit status whose reason the user has been told.
type exitError struct{ status int }

func (e *exitError) Error() string { return fmt.Sprintf("exit status %d", e.status) }

// exit returns nil for status 0.
func exit(status int) error {
	if status == 0 {
		return nil
	}

	return &exitError{status: status}
}

// interruptError is the cause of a context that a signal cancelled.
type interruptError struct{ signal syscall.Signal }

func (e *interruptError) Error() string { return "interrupted (" + e.signal.String() + ")" }

// errForced ends the program at the second signal.
var errForced = errors.New("ended by a second interrupt before the work had stopped")

// leftError says what becomes of a cell that the program does not wait for any more.
type leftError struct{ msg string }

func (e *leftError) Error() string { return e.msg }

// outputError is a failed write to stdout.
type outputError struct{ err error }

func (e *outputError) Error() string { return "write to stdout: " + rootCause(e.err).Error() }
func (e *outputError) Unwrap() error { return e.err }

// closed says that the reader went away, as `head` does.
func (e *outputError) closed() bool { return errors.Is(e.err, syscall.EPIPE) }

// wrote makes a failed write to stdout an outputError.
func (a *app) wrote(err error) error {
	if err == nil {
		return nil
	}

	return &outputError{err: err}
}

func rootCause(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// failure is what --json tells about a failure that is no outcome of a cell.
type failure struct {
	Code     string `json:"code"`
	Delivery string `json:"delivery"`
	Message  string `json:"message"`
	Hint     string `json:"hint"`
}

type failureDoc struct {
	Event   string  `json:"event,omitempty"` // "failure", as a line of --events
	Failure failure `json:"failure"`
}

func failureOf(err error) failure {
	var (
		usage   *usageError
		missing *notFoundError
		failed  *sdk.Error
		stopped *interruptError
		left    *leftError
	)
	switch {
	case errors.As(err, &usage):
		return failure{Code: string(sdk.CodeInvalid), Delivery: sdk.NotStarted.String(), Message: usage.msg, Hint: usage.hint}
	case errors.As(err, &missing):
		return failure{Code: string(sdk.CodeNotFound), Delivery: sdk.NotStarted.String(), Message: missing.msg, Hint: missing.hint}
	case errors.As(err, &failed):
		return failure{Code: string(failed.Code), Delivery: failed.Delivery.String(), Message: err.Error(), Hint: failed.Hint}
	case errors.As(err, &stopped), errors.As(err, &left), errors.Is(err, errForced), errors.Is(err, context.Canceled):
		return failure{Code: string(sdk.CodeCanceled), Delivery: sdk.MayHaveRun.String(), Message: err.Error()}
	}

	return failure{Code: string(sdk.CodeInternal), Delivery: sdk.MayHaveRun.String(), Message: err.Error()}
}
