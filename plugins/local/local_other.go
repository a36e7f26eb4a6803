//go:build !unix

package local

import (
	"context"
	"runtime"

	"github.com/hermes-framework/hermes/plugin"
)

var capabilities []plugin.Capability

// environment is never made here.
type environment struct {
	plugin.UnimplementedEnvironment
}

func newEnvironment(context.Context, *backend, string, string) (*environment, error) {
	return nil, plugin.Errorf(plugin.CodeUnsupported, plugin.NotStarted, "the local backend does not run on %s", runtime.GOOS)
}
