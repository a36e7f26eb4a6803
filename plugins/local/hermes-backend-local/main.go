// Command hermes-backend-local is the backend for this machine as a plugin binary.
package main

import (
	"github.com/hermes-framework/hermes/plugin"
	"github.com/hermes-framework/hermes/plugins/local"
)

func main() { plugin.Serve(local.New()) }
