// Package local is the backend that runs commands on this machine, as the user who runs it. It is no sandbox.
package local

import (
	"context"
	"net/url"

	"github.com/hermes-framework/hermes/plugin"
)

// version is the backend's own version.
const version = "0.1.0"

// New returns the backend. Its targets are "local:" and "local:/dir" or "local:///dir", where dir is the directory of commands that name none.
func New() plugin.Backend { return &backend{} }

type backend struct {
	environments plugin.Environments[*environment]
}

var _ plugin.Backend = (*backend)(nil)

// Info implements plugin.Backend.
func (b *backend) Info(context.Context) (plugin.Info, error) {
	return plugin.Info{
		Name:         "local",
		Version:      version,
		Description:  "commands on this machine, as the user who runs Hermes (no sandbox)",
		Capabilities: capabilities,
	}, nil
}

// Open implements plugin.Backend.
func (b *backend) Open(ctx context.Context, req plugin.OpenRequest) (plugin.Environment, error) {
	return b.environments.Open(ctx, req.ID, func(ctx context.Context) (*environment, error) {
		dir, err := parseTarget(req.Target)
		if err != nil {
			return nil, err
		}
		if _, err := plugin.Decode[struct{}](req.Config); err != nil {
			return nil, err
		}
		return newEnvironment(ctx, b, req.ID, dir)
	})
}

// parseTarget returns the directory that a target names, "" for none.
func parseTarget(target string) (string, error) {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "local" {
		return "", plugin.Errorf(plugin.CodeInvalid, plugin.NotStarted, "target %q is not of the form local: or local:/dir", target)
	}
	if u.Host != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || (u.Opaque != "") {
		return "", plugin.Errorf(plugin.CodeInvalid, plugin.NotStarted, "target %q: local: takes nothing but an absolute directory, as in local:/srv", target)
	}
	return u.Path, nil
}
