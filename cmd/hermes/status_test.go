package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/plugin"
)

func TestCellStatus(t *testing.T) {
	code := func(n int) *int { return &n }
	for _, tt := range []struct {
		outcome  core.Outcome
		language core.Language
		code     *int
		want     int
	}{
		{core.OutcomeOK, core.Python, nil, 0},
		{core.OutcomeOK, core.Bash, code(0), 0},
		{core.OutcomeError, core.Python, nil, 1},
		{core.OutcomeError, core.Python, code(7), 1},
		{core.OutcomeError, core.Bash, code(7), 7},
		{core.OutcomeError, core.Bash, code(127), 127},
		{core.OutcomeError, core.Bash, nil, 1},
		{core.OutcomeError, core.Bash, code(256), 1},
		{core.OutcomeExit, core.Python, nil, 0},
		{core.OutcomeExit, core.Python, code(0), 0},
		{core.OutcomeExit, core.Python, code(3), 3},
		{core.OutcomeExit, core.Python, code(-1), 255},
		{core.OutcomeExit, core.Python, code(256), 0},
		{core.OutcomeExit, core.Bash, code(3), 3},
		{core.OutcomeTimeout, core.Python, nil, 124},
		{core.OutcomeTimeout, core.Bash, code(130), 124},
		{core.OutcomeInterrupted, core.Python, nil, 130},
		{core.OutcomeInterrupted, core.Bash, code(1), 130},
		{core.OutcomeLost, core.Python, nil, 121},
		{core.OutcomeLost, core.Bash, nil, 121},
		{core.OutcomeUnknown, core.Python, nil, 121},
		{core.OutcomeUnknown, core.Bash, nil, 121},
		{core.OutcomeRefused, core.Python, nil, 125},
		{core.OutcomeRefused, core.Bash, nil, 125},
	} {
		exit := "nil"
		if tt.code != nil {
			exit = fmt.Sprint(*tt.code)
		}
		got := cellStatus(core.Cell{Outcome: tt.outcome, ExitCode: tt.code}, tt.language)
		if got != tt.want {
			t.Errorf("cellStatus(%s, %s, exit code %s) = %d, want %d", tt.outcome, tt.language, exit, got, tt.want)
		}
	}
}

func TestStatusOf(t *testing.T) {
	failed := func(code plugin.Code, d plugin.Delivery) error {
		return fmt.Errorf("around: %w", &plugin.Error{Code: code, Delivery: d})
	}
	for _, tt := range []struct {
		err           error
		want, command int // for any failure, and for one of a command in an open environment
	}{
		{usagef("", "x"), 2, 2},
		{&notFoundError{}, 125, 125},
		{failed(plugin.CodeInvalid, plugin.NotStarted), 2, 2},
		{failed(plugin.CodeNotFound, plugin.NotStarted), 125, 127},
		{failed(plugin.CodePermission, plugin.NotStarted), 125, 126},
		{failed(plugin.CodeUntrusted, plugin.NotStarted), 125, 125},
		{failed(plugin.CodeTimeout, plugin.NotStarted), 125, 125},
		{failed(plugin.CodeTimeout, plugin.Ran), 124, 124},
		{failed(plugin.CodeCanceled, plugin.MayHaveRun), 130, 130},
		{failed(plugin.CodeCrashed, plugin.MayHaveRun), 121, 121},
		{failed(plugin.CodeNotFound, plugin.Ran), 121, 121},
		{&interruptError{syscall.SIGTERM}, 130, 130},
		{errForced, 130, 130},
		{context.Canceled, 130, 130},
		{&outputError{syscall.ENOSPC}, 125, 125},
		{errors.New("x"), 125, 125},
	} {
		if got := statusOf(tt.err); got != tt.want {
			t.Errorf("statusOf(%#v) = %d, want %d", tt.err, got, tt.want)
		}
		if got := commandFailure(tt.err); got != tt.command {
			t.Errorf("commandFailure(%#v) = %d, want %d", tt.err, got, tt.command)
		}
	}
}

func TestCommandStatus(t *testing.T) {
	for _, tt := range []struct {
		status core.ExitStatus
		want   int
	}{
		{core.ExitStatus{}, 0},
		{core.ExitStatus{Code: 43}, 43},
		{core.ExitStatus{Code: 255}, 255},
		{core.ExitStatus{Code: -1, Signal: "KILL"}, 137},
		{core.ExitStatus{Code: -1, Signal: "INT"}, 130},
		{core.ExitStatus{Code: -1, Signal: "SEGV"}, 139},
		{core.ExitStatus{Code: -1, Signal: "NOSUCH"}, 125},
	} {
		if got := commandStatus(tt.status); got != tt.want {
			t.Errorf("commandStatus(%+v) = %d, want %d", tt.status, got, tt.want)
		}
	}
}
