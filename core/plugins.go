package core

import (
	"context"

	"github.com/hermes-framework/hermes/core/registry"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Builtin is a backend that lives in the embedding program itself, which is started once more to serve it, see sdk.ServeBuiltin.
type Builtin = registry.Builtin

// PluginStatus is a backend that an engine knows of.
type PluginStatus = registry.PluginStatus

// TrustPlugin records the plugin binary at path in lockFile, after which engines with that LockFile run exactly that binary. It executes nothing.
// Several programs may call it at once.
func TrustPlugin(lockFile, path string) (PluginStatus, error) { return registry.Trust(lockFile, path) }

// InstallPlugin copies the plugin binary at path, and the manifest beside it, into dir and trusts the copy, see TrustPlugin.
func InstallPlugin(lockFile, dir, path string) (PluginStatus, error) {
	return registry.Install(lockFile, dir, path)
}

// Plugins lists the backends that are built in or found in the plugin directories, usable or not. Nothing is executed for it.
func (e *Engine) Plugins(ctx context.Context) ([]PluginStatus, error) {
	return e.backends.List(ctx)
}

// Backend returns the named backend, started and supervised by this engine.
func (e *Engine) Backend(ctx context.Context, name string) (sdk.Backend, error) {
	if err := e.alive(); err != nil {
		return nil, err
	}
	return e.backends.Backend(ctx, name)
}
