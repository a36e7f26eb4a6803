package core

import (
	"fmt"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

var errEngineClosed = &sdk.Error{Code: sdk.CodeClosed, Delivery: sdk.NotStarted, Message: "the engine is closed"}

func invalid(hint, format string, args ...any) error {
	return &sdk.Error{Code: sdk.CodeInvalid, Delivery: sdk.NotStarted, Message: fmt.Sprintf(format, args...), Hint: hint}
}
