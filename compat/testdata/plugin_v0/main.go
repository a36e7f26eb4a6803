// Command hermes-backend-scratch is a Hermes backend whose environments are scratch directories on this machine: each is made when
// its environment is opened, is the home directory of what runs there, and is removed when the environment is closed.
// Targets are "scratch:" and "scratch:NAME". It is no sandbox.
package main

import (
	"time"

	"github.com/hermes-framework/hermes/plugin"
)

func main() {
	plugin.Grace = time.Second // what runs in a directory that goes away has little to save
	plugin.Serve(newBackend(), plugin.WithStopDeadline(10*time.Second), plugin.WithLogger(plugin.Logger().Named("scratch")))
}
