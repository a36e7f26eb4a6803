//go:build unix

package local_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugins/local"
)

// A command runs as it is written, without a shell, in the directory that the target names. Its status is no error.
func ExampleNew() {
	ctx := context.Background()
	client, stop, err := sdk.Pipe(ctx, local.New()) // in a test; an engine runs the backend in a process of its own
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = stop() }()
	env, err := client.Open(ctx, sdk.OpenRequest{ID: "e1", Target: "local:/"})
	if err != nil {
		log.Fatal(err)
	}

	cmd := sdk.Command{Argv: []string{"sh", "-c", `echo "$1 in $PWD"; cat; exit 3`, "sh", "$HOME is not expanded"}, InheritEnv: true}
	status, err := env.Exec(ctx, cmd, sdk.IO{Stdin: strings.NewReader("from stdin\n"), Stdout: os.Stdout})
	fmt.Println("status", status.Code, "error", err)
	// Output:
	// $HOME is not expanded in /
	// from stdin
	// status 3 error <nil>
}
