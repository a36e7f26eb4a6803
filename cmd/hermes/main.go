// Command hermes runs cells of Python and shell in persistent kernels, and single commands, on this machine and wherever a
// backend plugin reaches.
package main

import (
	"context"
	"os"

	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugins/local"
)

func main() {
	os.Exit(Main())
}

// builtin is the backend that needs no binary and no trust of its own.
func builtin() sdk.Backend { return local.New() }

// Main runs the command line of this process and returns its exit status. When the process was started as the built-in
// backend it serves that instead.
func Main() int {
	sdk.ServeBuiltin(builtin())
	a := &app{
		args:   os.Args[1:],
		stdin:  os.Stdin,
		stdout: os.Stdout,
		stderr: os.Stderr,
		getenv: os.Getenv,
	}
	return a.main(context.Background())
}
