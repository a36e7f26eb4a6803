package sdk

import (
	"context"
	"fmt"
	"os"
)

// builtinArg is the first argument of a program that is re-executed as one of its own backends; the backend's name follows.
const builtinArg = "hermes-builtin-backend"

// BuiltinArgs are the arguments with which a program that calls ServeBuiltin serves the named backend.
func BuiltinArgs(name string) []string { return []string{builtinArg, name} }

// ServeBuiltin is for programs that carry backends inside: called first in main, it serves the backend that the arguments name and ends the
// process when the host wants no more of it. In a process that was started for anything else it returns at once.
//
//	func main() {
//		sdk.ServeBuiltin(local.New())
//		… // the program itself, with core.Config{Builtin: []core.Builtin{{Name: "local"}}}
//	}
func ServeBuiltin(backends ...Backend) {
	if len(os.Args) != 3 || os.Args[1] != builtinArg {
		return
	}
	for _, b := range backends {
		if info, err := b.Info(context.Background()); err == nil && info.Name == os.Args[2] { //nolint:forbidigo // a main of its own; Info does no I/O
			Serve(b)
			os.Exit(0) //nolint:forbidigo // documented; the program's main must not run
		}
	}
	fmt.Fprintf(os.Stderr, "%s has no built-in backend %q\n", programName(), os.Args[2])
	os.Exit(1) //nolint:forbidigo // documented
}
