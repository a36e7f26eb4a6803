package main

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// The exit statuses that mean the same for every command; `hermes help exit-codes` explains them.
const (
	statusOK            = 0
	statusError         = 1
	statusUsage         = 2
	statusUnknown       = 121
	statusTimeout       = 124
	statusFailed        = 125
	statusNotExecutable = 126
	statusNotFound      = 127
	statusInterrupted   = 130
)

// cellStatus is the exit status of `hermes run` for a cell that has an outcome.
func cellStatus(c cell.Cell, language cell.Language) int {
	switch c.Outcome {
	case cell.OutcomeOK:
		return statusOK
	case cell.OutcomeError:
		if language == cell.Bash && c.ExitCode != nil && *c.ExitCode&0xff != 0 {
			return *c.ExitCode & 0xff
		}
		return statusError
	case cell.OutcomeExit:
		if c.ExitCode == nil {
			return statusOK
		}
		return *c.ExitCode & 0xff // as the system does with exit(n)
	case cell.OutcomeTimeout:
		return statusTimeout
	case cell.OutcomeInterrupted:
		return statusInterrupted
	case cell.OutcomeLost, cell.OutcomeUnknown:
		return statusUnknown
	}

	return statusFailed
}

// statusOf is the exit status for an error that is no outcome of a cell.
func statusOf(err error) int {
	var (
		usage   *usageError
		failed  *sdk.Error
		stopped *interruptError
		left    *leftError
		out     *outputError
	)
	switch {
	case errors.As(err, &usage):
		return statusUsage
	case errors.As(err, &stopped), errors.As(err, &left), errors.Is(err, errForced):
		return statusInterrupted
	case errors.As(err, &failed):
		return failureStatus(failed)
	case errors.As(err, &out):
		return statusFailed
	case errors.Is(err, context.Canceled):
		return statusInterrupted
	}

	return statusFailed
}

func failureStatus(err *sdk.Error) int {
	switch {
	case err.Code == sdk.CodeInvalid && err.Delivery == sdk.NotStarted:
		return statusUsage
	case err.Code == sdk.CodeCanceled:
		return statusInterrupted
	case err.Code == sdk.CodeTimeout && err.Delivery != sdk.NotStarted:
		return statusTimeout
	case err.Delivery != sdk.NotStarted:
		return statusUnknown
	}

	return statusFailed
}

// commandStatus is the exit status of `hermes exec` for a command that ended.
func commandStatus(st core.ExitStatus) int {
	if st.Signal == "" {
		return st.Code & 0xff
	}
	if n := unix.SignalNum("SIG" + st.Signal); n != 0 {
		return 128 + int(n)
	}

	return statusFailed
}

// commandFailure is the exit status of `hermes exec` for a command that could not be started in an open environment.
func commandFailure(err error) int {
	var failed *sdk.Error
	if errors.As(err, &failed) && failed.Delivery == sdk.NotStarted {
		switch failed.Code {
		case sdk.CodeNotFound:
			return statusNotFound
		case sdk.CodePermission:
			return statusNotExecutable
		}
	}

	return statusOf(err)
}
