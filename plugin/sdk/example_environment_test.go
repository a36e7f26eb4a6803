package sdk_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// shouting is a backend that implements Environment itself: its one command answers while its input still comes.
type shouting struct{}

func (shouting) Info(context.Context) (sdk.Info, error) {
	return sdk.Info{Name: "shouting", Version: "1.0.0", Capabilities: []sdk.Capability{sdk.CapStdin, sdk.CapStream}}, nil
}

// Open has nothing to open. A backend that has keeps its environments in an sdk.Environments: the same ID again is the same one.
func (shouting) Open(context.Context, sdk.OpenRequest) (sdk.Environment, error) { return room{}, nil }

type room struct{ sdk.UnimplementedEnvironment }

func (room) Exec(_ context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	if len(cmd.Argv) != 1 || cmd.Argv[0] != "shout" {
		return sdk.ExitStatus{}, sdk.Errorf(sdk.CodeNotFound, sdk.NotStarted, "%q: nothing but shout is here", cmd.Argv)
	}
	in, out := stdio.Stdin, stdio.Stdout
	if in == nil {
		in = strings.NewReader("")
	}
	if out == nil {
		out = io.Discard
	}
	stdio.Started() // whatever happens from here on, something may have had its effect
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if _, err := fmt.Fprintln(out, strings.ToUpper(lines.Text())); err != nil {
			return sdk.ExitStatus{}, err
		}
	}
	return sdk.ExitStatus{}, lines.Err()
}

// An Environment is used over the wire as it is in the plugin.
func ExamplePipe() {
	ctx := context.Background()
	client, stop, err := sdk.Pipe(ctx, shouting{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = stop() }()
	env, err := client.Open(ctx, sdk.OpenRequest{ID: "e1", Target: "shouting:"})
	if err != nil {
		log.Fatal(err)
	}
	status, err := env.Exec(ctx, sdk.Command{Argv: []string{"shout"}}, sdk.IO{Stdin: strings.NewReader("hello\n"), Stdout: os.Stdout})
	fmt.Println("status", status.Code, "error", err)
	// Output:
	// HELLO
	// status 0 error <nil>
}
