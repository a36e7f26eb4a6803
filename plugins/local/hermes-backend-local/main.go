// Command hermes-backend-local is the backend for this machine as a plugin binary.
package main

import (
	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugins/local"
)

func main() { sdk.Serve(local.New()) }
