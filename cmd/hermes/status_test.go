package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

func TestCellStatus(t *testing.T) {
	code := func(n int) *int { return &n }
	for _, tt := range []struct {
		outcome  cell.Outcome
		language cell.Language
		code     *int
		want     int
	}{
		{cell.OutcomeOK, cell.Python, nil, 0},
		{cell.OutcomeOK, cell.Bash, code(0), 0},
		{cell.OutcomeError, cell.Python, nil, 1},
		{cell.OutcomeError, cell.Python, code(7), 1},
		{cell.OutcomeError, cell.Bash, code(7), 7},
		{cell.OutcomeError, cell.Bash, code(127), 127},
		{cell.OutcomeError, cell.Bash, nil, 1},
		{cell.OutcomeError, cell.Bash, code(256), 1},
		{cell.OutcomeExit, cell.Python, nil, 0},
		{cell.OutcomeExit, cell.Python, code(0), 0},
		{cell.OutcomeExit, cell.Python, code(3), 3},
		{cell.OutcomeExit, cell.Python, code(-1), 255},
		{cell.OutcomeExit, cell.Python, code(256), 0},
		{cell.OutcomeExit, cell.Bash, code(3), 3},
		{cell.OutcomeTimeout, cell.Python, nil, 124},
		{cell.OutcomeTimeout, cell.Bash, code(130), 124},
		{cell.OutcomeInterrupted, cell.Python, nil, 130},
		{cell.OutcomeInterrupted, cell.Bash, code(1), 130},
		{cell.OutcomeLost, cell.Python, nil, 121},
		{cell.OutcomeLost, cell.Bash, nil, 121},
		{cell.OutcomeUnknown, cell.Python, nil, 121},
		{cell.OutcomeUnknown, cell.Bash, nil, 121},
		{cell.OutcomeRefused, cell.Python, nil, 125},
		{cell.OutcomeRefused, cell.Bash, nil, 125},
	} {
		exit := "nil"
		if tt.code != nil {
			exit = fmt.Sprint(*tt.code)
		}
		got := cellStatus(cell.Cell{Outcome: tt.outcome, ExitCode: tt.code}, tt.language)
		if got != tt.want {
			t.Errorf("cellStatus(%s, %s, exit code %s) = %d, want %d", tt.outcome, tt.language, exit, got, tt.want)
		}
	}
}

func TestStatusOf(t *testing.T) {
	failed := func(code sdk.Code, d sdk.Delivery) error {
		return fmt.Errorf("around: %w", &sdk.Error{Code: code, Delivery: d})
	}
	for _, tt := range []struct {
		err           error
		want, command int // for any failure, and for one of a command in an open environment
	}{
		{usagef("", "x"), 2, 2},
		{&notFoundError{}, 125, 125},
		{failed(sdk.CodeInvalid, sdk.NotStarted), 2, 2},
		{failed(sdk.CodeNotFound, sdk.NotStarted), 125, 127},
		{failed(sdk.CodePermission, sdk.NotStarted), 125, 126},
		{failed(sdk.CodeUntrusted, sdk.NotStarted), 125, 125},
		{failed(sdk.CodeTimeout, sdk.NotStarted), 125, 125},
		{failed(sdk.CodeTimeout, sdk.Ran), 124, 124},
		{failed(sdk.CodeCanceled, sdk.MayHaveRun), 130, 130},
		{failed(sdk.CodeCrashed, sdk.MayHaveRun), 121, 121},
		{failed(sdk.CodeNotFound, sdk.Ran), 121, 121},
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
