//go:build unix

package local

import (
	"context"
	"net"
	"os"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// maxSocketPath is how long the path of a Unix socket can be on every system that the backend runs on.
const maxSocketPath = 103

// Dial implements sdk.Dialer. The engine is on this machine too, so the answer is the path itself and nothing goes through the plugin,
// unless the caller wants that.
func (e *environment) Dial(ctx context.Context, req sdk.DialRequest) (sdk.Endpoint, error) {
	path := e.path(req.Path)
	if len(path) > maxSocketPath {
		return sdk.Endpoint{}, sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted,
			"dial %s: the path of a Unix socket can have %d bytes, this one has %d", path, maxSocketPath, len(path))
	}
	fi, err := os.Stat(path)
	if err != nil {
		return sdk.Endpoint{}, sdk.Errorf(sdk.AsError(err, sdk.NotStarted).Code, sdk.NotStarted, "dial: %w", err)
	}
	if fi.Mode().Type() != os.ModeSocket {
		return sdk.Endpoint{}, sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "dial %s: not a socket", path)
	}
	if !req.Stream {
		return sdk.Endpoint{Addr: path}, nil
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return sdk.Endpoint{}, sdk.Errorf(sdk.CodeUnavailable, sdk.NotStarted, "dial: %w", err)
	}
	return sdk.Endpoint{Conn: conn}, nil
}
