// Command hermes-backend-offline runs commands on this machine without a network. Its targets are "offline:" and "offline:/dir".
package main

import (
	"context"
	"strings"

	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugins/local"
)

func main() { sdk.Serve(backend{local.New()}) }

// backend is the local one, but for what follows.
type backend struct{ sdk.Backend }

// Info implements sdk.Backend.
func (b backend) Info(ctx context.Context) (sdk.Info, error) {
	info, err := b.Backend.Info(ctx)
	info.Name, info.Version, info.Description = "offline", "1.0.0", "commands on this machine, without a network"
	return info, err
}

// Open implements sdk.Backend.
func (b backend) Open(ctx context.Context, req sdk.OpenRequest) (sdk.Environment, error) {
	dir, ok := strings.CutPrefix(req.Target, "offline:")
	if !ok {
		return nil, sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "target %q is not of the form offline: or offline:/dir", req.Target)
	}
	req.Target = "local:" + dir
	inner, err := b.Backend.Open(ctx, req)
	if err != nil {
		return nil, err
	}
	env := environment{Environment: inner, Dialer: inner.(sdk.Dialer), Files: inner.(sdk.Files)}
	status, err := env.Exec(ctx, sdk.Command{Argv: []string{"true"}}, sdk.IO{})
	if err == nil && status.Code != 0 {
		err = sdk.Errorf(sdk.CodeUnsupported, sdk.NotStarted, "open %s: this machine lets nobody but root make namespaces", req.Target).
			WithHint("try: unshare --map-current-user --net true")
	}
	if err != nil {
		_ = inner.Close(ctx)
		return nil, err
	}
	return env, nil
}

type environment struct {
	sdk.Environment
	sdk.Dialer
	sdk.Files
}

// Exec implements sdk.Environment: the command gets a network namespace of its own, in which there is nothing.
func (e environment) Exec(ctx context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	cmd.Argv = append([]string{"/usr/bin/unshare", "--map-current-user", "--net", "--"}, cmd.Argv...)
	return e.Environment.Exec(ctx, cmd, stdio)
}
