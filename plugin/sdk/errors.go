package sdk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"
)

// Delivery says whether the work that failed may have been done.
type Delivery int

// The deliveries.
const (
	NotStarted Delivery = iota // it certainly was not done
	MayHaveRun                 // nobody can tell
	Ran                        // it was done, or at least begun, and then failed
)

// String returns the word that docs and JSON use.
func (d Delivery) String() string {
	switch d {
	case NotStarted:
		return "not_started"
	case MayHaveRun:
		return "may_have_run"
	case Ran:
		return "ran"
	default:
		return fmt.Sprintf("delivery(%d)", int(d))
	}
}

// Code classifies an Error. The list is append-only; its strings are what travels.
type Code string

// The codes.
const (
	CodeInvalid      Code = "invalid"      // the request is wrong: bad target, option, argument
	CodeNotFound     Code = "not_found"    // a program, file, image or environment is not there
	CodePermission   Code = "permission"   // not allowed; also: not executable
	CodeUnavailable  Code = "unavailable"  // the environment or the plugin cannot be reached
	CodeUnsupported  Code = "unsupported"  // the backend has no such capability
	CodeTimeout      Code = "timeout"      // a time limit passed
	CodeCanceled     Code = "canceled"     // the caller gave up
	CodeExhausted    Code = "exhausted"    // disk, processes, descriptors, memory used up
	CodeConflict     Code = "conflict"     // something else is there already
	CodeClosed       Code = "closed"       // the environment or engine was closed
	CodeUntrusted    Code = "untrusted"    // the plugin is not in plugins.lock, or differs from it
	CodeIncompatible Code = "incompatible" // protocol versions, architecture, interpreter version
	CodeCrashed      Code = "crashed"      // the plugin ended while it worked
	CodeInternal     Code = "internal"     // a fault in Hermes or in the backend
)

// Sentinels for errors.Is, one for each code. An Error matches the sentinel of its code on either side of the process boundary.
var (
	ErrInvalid      error = &Error{Code: CodeInvalid}
	ErrNotFound     error = &Error{Code: CodeNotFound}
	ErrPermission   error = &Error{Code: CodePermission}
	ErrUnavailable  error = &Error{Code: CodeUnavailable}
	ErrUnsupported  error = &Error{Code: CodeUnsupported}
	ErrTimeout      error = &Error{Code: CodeTimeout}
	ErrCanceled     error = &Error{Code: CodeCanceled}
	ErrExhausted    error = &Error{Code: CodeExhausted}
	ErrConflict     error = &Error{Code: CodeConflict}
	ErrClosed       error = &Error{Code: CodeClosed}
	ErrUntrusted    error = &Error{Code: CodeUntrusted}
	ErrIncompatible error = &Error{Code: CodeIncompatible}
	ErrCrashed      error = &Error{Code: CodeCrashed}
	ErrInternal     error = &Error{Code: CodeInternal}
)

// standardErrors are the errors of the standard library that say the same as a code.
var standardErrors = map[Code]error{
	CodeNotFound:    fs.ErrNotExist,
	CodePermission:  fs.ErrPermission,
	CodeUnsupported: errors.ErrUnsupported,
	CodeTimeout:     context.DeadlineExceeded,
	CodeCanceled:    context.Canceled,
}

// Error is a failure that crosses the process boundary. errors.Is compares codes with the sentinels (ErrNotFound and so on), on both sides.
type Error struct {
	Code     Code
	Delivery Delivery
	Message  string // what failed, where: lower case, no secret, under 4 KiB
	Hint     string // what to do next, when somebody can do something
	Cause    error  // stays on its side of the boundary
}

var _ interface {
	error
	Is(error) bool
	Unwrap() error
} = (*Error)(nil)

// Errorf makes an Error whose message is formatted as by fmt.Errorf; what %w names becomes its Cause.
func Errorf(code Code, delivery Delivery, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Delivery: delivery, Message: err.Error(), Cause: wrapped(err)}
}

// wrapped returns what err was made from: the one error, or all of them joined.
func wrapped(err error) error {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		return errors.Join(many.Unwrap()...)
	}
	return errors.Unwrap(err)
}

// WithHint returns a copy of e that says what to do next.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// Error returns the message; an Error without one is described by its cause or its code. The hint is not part of it.
func (e *Error) Error() string {
	switch {
	case e.Message != "":
		return e.Message
	case e.Cause != nil:
		return e.Cause.Error()
	default:
		return strings.ReplaceAll(string(e.Code), "_", " ")
	}
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is the sentinel of e's code, or the error of the standard library that says the same
// (fs.ErrNotExist, fs.ErrPermission, errors.ErrUnsupported, context.DeadlineExceeded, context.Canceled).
func (e *Error) Is(target error) bool {
	if t, ok := target.(*Error); ok {
		return t.Message == "" && t.Cause == nil && t.Code == e.Code
	}
	std, ok := standardErrors[e.Code]
	return ok && target == std
}

// AsError returns the Error in err's chain. Any other error is classified by what the standard library and the system say
// about it, else as CodeInternal, with the delivery given. It returns nil for nil.
func AsError(err error, delivery Delivery) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		if e.Error() == err.Error() {
			return e
		}
		c := *e
		c.Message, c.Cause = err.Error(), err
		return &c
	}
	return &Error{Code: classify(err), Delivery: delivery, Message: err.Error(), Cause: err}
}

func classify(err error) Code {
	for _, code := range []Code{CodeNotFound, CodePermission, CodeUnsupported, CodeTimeout, CodeCanceled} {
		if errors.Is(err, standardErrors[code]) {
			return code
		}
	}
	if isExhausted(err) {
		return CodeExhausted
	}
	return CodeInternal
}

// maxDetail bounds message and hint together, as they travel.
const maxDetail = 4000

// clip returns s as valid UTF-8 of at most n bytes, its end replaced when something was cut off.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	const mark = "…"
	if n < len(mark) {
		return ""
	}
	cut := n - len(mark)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + mark
}
