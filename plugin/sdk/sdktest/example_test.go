//go:build unix

package sdktest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugin/sdk/sdktest"
)

// run is all that the author of this backend has written: it runs a command on this machine.
func run(ctx context.Context, cmd sdk.Command, stdin []byte) (sdk.RunResult, error) {
	c := exec.CommandContext(ctx, cmd.Argv[0], cmd.Argv[1:]...)
	c.Env = append([]string{}, cmd.Env...)
	if cmd.InheritEnv {
		c.Env = append([]string{"PATH=" + os.Getenv("PATH")}, cmd.Env...)
	}
	var out, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &out, &stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 250 * time.Millisecond

	err := c.Run()
	switch {
	case ctx.Err() != nil:
		return sdk.RunResult{}, context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return sdk.RunResult{}, sdk.Errorf(sdk.CodeNotFound, sdk.NotStarted, "%s: command not found", cmd.Argv[0])
	case c.ProcessState == nil:
		return sdk.RunResult{}, sdk.AsError(err, sdk.NotStarted)
	}
	return sdk.RunResult{Stdout: out.Bytes(), Stderr: stderr.Bytes(), Code: c.ProcessState.ExitCode()}, nil
}

// Each promise that a backend does not keep is an error. A test of a backend has one line: sdktest.Run(t, backend, "here:").
func ExampleCheckBackend() {
	ctx := context.Background()
	info := sdk.Info{Name: "here", Version: "1.0.0", Capabilities: []sdk.Capability{sdk.CapStdin}}

	good := sdk.FromRunner(info, sdk.RunnerFunc(run))
	fmt.Println("good:", sdktest.CheckBackend(ctx, good, "here:"))

	broken := sdk.FromRunner(info, sdk.RunnerFunc(func(ctx context.Context, cmd sdk.Command, stdin []byte) (sdk.RunResult, error) {
		res, err := run(ctx, cmd, stdin)
		res.Code = 0 // all is well, always
		return res, err
	}))
	for _, err := range sdktest.CheckBackend(ctx, broken, "here:") {
		promise, _, _ := strings.Cut(err.Error(), ":")
		fmt.Println("broken:", promise)
	}
	// Output:
	// good: []
	// broken: exit status
	// broken: capability files
}
