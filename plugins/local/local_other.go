//go:build !unix

package local

import (
	"context"
	"runtime"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

var capabilities []sdk.Capability

// environment is never made here.
type environment struct {
	sdk.UnimplementedEnvironment
}

func newEnvironment(context.Context, *backend, string, string) (*environment, error) {
	return nil, sdk.Errorf(sdk.CodeUnsupported, sdk.NotStarted, "the local backend does not run on %s", runtime.GOOS)
}
