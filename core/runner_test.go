package core_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"

	"github.com/hermes-framework/hermes/plugin"
)

// newRunner is a backend with the one method of a Runner.
func newRunner() plugin.Backend {
	return plugin.FromRunner(plugin.Info{Name: "runner", Version: "1", Capabilities: []plugin.Capability{plugin.CapStdin, plugin.CapDetach}}, plugin.RunnerFunc(runCommand))
}

func runCommand(ctx context.Context, cmd plugin.Command, stdin []byte) (plugin.RunResult, error) {
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
		return plugin.RunResult{}, err
	}
	return plugin.RunResult{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), Code: c.ProcessState.ExitCode()}, context.Cause(ctx)
}
