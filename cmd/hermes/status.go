package main

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/plugin"
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
func cellStatus(cell core.Cell, language core.Language) int {
	switch cell.Outcome {
	case core.OutcomeOK:
		return statusOK
	case core.OutcomeError:
		if language == core.Bash && cell.ExitCode != nil && *cell.ExitCode&0xff != 0 {
			return *cell.ExitCode & 0xff
		}
		return statusError
	case core.OutcomeExit:
		if cell.ExitCode == nil {
			return statusOK
		}
		return *cell.ExitCode & 0xff // as the system does with exit(n)
	case core.OutcomeTimeout:
		return statusTimeout
	case core.OutcomeInterrupted:
		return statusInterrupted
	case core.OutcomeLost, core.OutcomeUnknown:
		return statusUnknown
	}

	return statusFailed
}

// statusOf is the exit status for an error that is no outcome of a cell.
func statusOf(err error) int {
	var (
		usage   *usageError
		failed  *plugin.Error
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

func failureStatus(err *plugin.Error) int {
	switch {
	case err.Code == plugin.CodeInvalid && err.Delivery == plugin.NotStarted:
		return statusUsage
	case err.Code == plugin.CodeCanceled:
		return statusInterrupted
	case err.Code == plugin.CodeTimeout && err.Delivery != plugin.NotStarted:
		return statusTimeout
	case err.Delivery != plugin.NotStarted:
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
	var failed *plugin.Error
	if errors.As(err, &failed) && failed.Delivery == plugin.NotStarted {
		switch failed.Code {
		case plugin.CodeNotFound:
			return statusNotFound
		case plugin.CodePermission:
			return statusNotExecutable
		}
	}

	return statusOf(err)
}
