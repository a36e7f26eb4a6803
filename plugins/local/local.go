// Package local is the backend that runs commands on this machine, as the user who runs it. It is no sandbox.
package local

import (
	"context"
	"net/url"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// version is the backend's own version.
const version = "0.2.0"

// New returns the backend. Its targets are "local:" and "local:/dir" or "local:///dir", where dir is the directory of commands that name none.
func New() sdk.Backend { return &backend{} }

type backend struct {
	environments sdk.Environments[*environment]
}

var _ sdk.Backend = (*backend)(nil)

// Info implements sdk.Backend.
func (b *backend) Info(context.Context) (sdk.Info, error) {
	return sdk.Info{
		Name:         "local",
		Version:      version,
		Description:  "commands on this machine, as the user who runs Hermes (no sandbox)",
		Capabilities: capabilities,
	}, nil
}

// Open implements sdk.Backend.
func (b *backend) Open(ctx context.Context, req sdk.OpenRequest) (sdk.Environment, error) {
	return b.environments.Open(ctx, req.ID, func(ctx context.Context) (*environment, error) {
		dir, err := parseTarget(req.Target)
		if err != nil {
			return nil, err
		}
		if _, err := sdk.Decode[struct{}](req.Config); err != nil {
			return nil, err
		}
		return newEnvironment(ctx, b, req.ID, dir)
	})
}

// parseTarget returns the directory that a target names, "" for none.
func parseTarget(target string) (string, error) {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "local" {
		return "", sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "target %q is not of the form local: or local:/dir", target)
	}
	if u.Host != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || (u.Opaque != "") {
		return "", sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "target %q: local: takes nothing but an absolute directory, as in local:/srv", target)
	}
	return u.Path, nil
}
