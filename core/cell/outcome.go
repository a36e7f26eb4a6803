package core

import (
	"errors"
	"fmt"

	"github.com/hermes-framework/hermes/plugin"
)

// What errors.Is finds in the error of a Run whose cell did not run to its own end.
var (
	ErrTimeout     = errors.New("the cell's time limit passed")
	ErrInterrupted = errors.New("the cell was interrupted")
	ErrLost        = errors.New("the cell started and its end was not recorded")
	ErrUnknown     = errors.New("nobody can know whether the cell ran")
	ErrRefused     = errors.New("the cell did not run")
)

var errEngineClosed = &plugin.Error{Code: plugin.CodeClosed, Delivery: plugin.NotStarted, Message: "the engine is closed"}

// RunError is the error beside a Result whose outcome is timeout, interrupted, lost, unknown or refused.
type RunError struct {
	Outcome Outcome
	Reason  string // a word or a sentence, may be empty
}

// Error says what became of the cell.
func (e *RunError) Error() string {
	if e.Reason == "" {
		return e.sentinel().Error()
	}
	return fmt.Sprintf("%v: %s", e.sentinel(), e.Reason)
}

// Unwrap returns the sentinel of the outcome.
func (e *RunError) Unwrap() error { return e.sentinel() }

func (e *RunError) sentinel() error {
	switch e.Outcome {
	case OutcomeTimeout:
		return ErrTimeout
	case OutcomeInterrupted:
		return ErrInterrupted
	case OutcomeLost:
		return ErrLost
	case OutcomeRefused:
		return ErrRefused
	}
	return ErrUnknown
}

// outcomeError is the error of a Run that ended so; nil if the cell ran to its own end.
func outcomeError(o Outcome, reason string) error {
	switch o {
	case OutcomeOK, OutcomeError, OutcomeExit:
		return nil
	}
	return &RunError{Outcome: o, Reason: reason}
}

func invalid(hint, format string, args ...any) error {
	return &plugin.Error{Code: plugin.CodeInvalid, Delivery: plugin.NotStarted, Message: fmt.Sprintf(format, args...), Hint: hint}
}
