package core_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// newRunner is a backend with the one method of a Runner.
func newRunner() sdk.Backend {
	return sdk.FromRunner(sdk.Info{Name: "runner", Version: "1", Capabilities: []sdk.Capability{sdk.CapStdin, sdk.CapDetach}}, sdk.RunnerFunc(runCommand))
}

func runCommand(ctx context.Context, cmd sdk.Command, stdin []byte) (sdk.RunResult, error) {
	c := exec.CommandContext(ctx, cmd.Argv[0], cmd.Argv[1:]...)
	c.Env = cmd.Env
	if cmd.InheritEnv {
		c.Env = append(os.Environ(), cmd.Env...)
	}
	var stdout, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return sdk.RunResult{}, err
	}
	return sdk.RunResult{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), Code: c.ProcessState.ExitCode()}, context.Cause(ctx)
}
