package cell

import (
	"errors"
	"fmt"
)

// What errors.Is finds in the error of a Run whose cell did not run to its own end.
var (
	ErrTimeout     = errors.New("the cell's time limit passed")
	ErrInterrupted = errors.New("the cell was interrupted")
	ErrLost        = errors.New("the cell started and its end was not recorded")
	ErrUnknown     = errors.New("nobody can know whether the cell ran")
	ErrRefused     = errors.New("the cell did not run")
)

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

// Err is the error of a cell that ended so; nil if it ran to its own end.
func (o Outcome) Err(reason string) error {
	switch o {
	case OutcomeOK, OutcomeError, OutcomeExit:
		return nil
	}
	return &RunError{Outcome: o, Reason: reason}
}
