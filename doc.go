// Package hermes holds nothing but this map: programs import [github.com/hermes-framework/hermes/core], authors of backends import
// [github.com/hermes-framework/hermes/plugin/sdk], people run cmd/hermes.
//
// Imports point one way; layers_test.go is the table and its test:
//
//	cmd/hermes → core, core/cell, plugin/sdk, plugins/local
//	bench → core, core/cell, plugin/sdk, plugins/local
//	core → core/cell, core/kernel, core/kernelhost, core/pool, core/registry, core/result, core/secfile, core/toolrpc, plugin/sdk
//	core/registry → core/secfile, internal/launch, plugin/sdk
//	core/pool → core/cell, core/kernel
//	core/kernelhost → core/cell, core/lockdown, plugin/sdk
//	core/kernel → core/cell
//	core/result → core/cell
//	core/toolrpc → core/cell
//	core/secfile → plugin/sdk
//	core/lockdown → plugin/sdk/sh
//	examples/hermes-backend-offline → plugin/sdk, plugins/local
//	examples/hermes-backend-chroot → plugin/sdk
//	plugins/docker/hermes-backend-docker → plugin/sdk, plugins/docker
//	plugins/docker → plugin/sdk, plugin/sdk/farside, plugin/sdk/sh
//	plugins/ssh/hermes-backend-ssh → plugin/sdk, plugins/ssh
//	plugins/ssh → plugin/sdk, plugin/sdk/farside, plugin/sdk/sh
//	plugins/local/hermes-backend-local → plugin/sdk, plugins/local
//	plugins/local → plugin/sdk
//	plugin/sdk/sdktest → internal/launch, plugin/sdk
//	plugin/sdk/farside → plugin/sdk, plugin/sdk/sh
//	plugin/sdk → plugin/proto/hermes/backend/v1
//	scripts/api → nothing of this module
//	plugin/sdk/sh → nothing of this module
//	plugin/proto/hermes/backend/v1 → nothing of this module
//	internal/mustrun → nothing of this module
//	internal/launch → nothing of this module
//	core/cell → nothing of this module
//	compat → nothing of this module
package hermes
