//go:build unix

package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// here runs commands on this machine. A backend for another place differs in how the command line gets there.
type here struct{}

func (here) Run(ctx context.Context, cmd sdk.Command, stdin []byte) (sdk.RunResult, error) {
	c := exec.CommandContext(ctx, cmd.Argv[0], cmd.Argv[1:]...)
	c.Env = append([]string{}, cmd.Env...) // exactly these: nil would be all of the plugin's own
	if cmd.InheritEnv {
		c.Env = append([]string{"PATH=" + os.Getenv("PATH")}, cmd.Env...)
	}
	var out, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &out, &stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) } // with what it has started
	c.WaitDelay = 250 * time.Millisecond                                             // for output that something in the background holds open

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

// A whole backend in one method. Its plugin's main is sdk.Serve(backend); here Pipe stands between it and its caller, as in tests.
func Example() {
	backend := sdk.FromRunner(sdk.Info{Name: "here", Version: "1.0.0", Capabilities: []sdk.Capability{sdk.CapStdin}}, here{})

	ctx := context.Background()
	client, stop, err := sdk.Pipe(ctx, backend)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = stop() }()
	env, err := client.Open(ctx, sdk.OpenRequest{ID: "e1", Target: "here:"})
	if err != nil {
		log.Fatal(err)
	}

	status, err := env.Exec(ctx, sdk.Command{Argv: []string{"sh", "-c", "pwd; exit 3"}, Dir: "/", InheritEnv: true}, sdk.IO{Stdout: os.Stdout})
	fmt.Println("status", status.Code, "error", err)
	_, err = env.Exec(ctx, sdk.Command{Argv: []string{"no-such-program"}, InheritEnv: true}, sdk.IO{})
	fmt.Println(errors.Is(err, sdk.ErrNotFound), err)
	// Output:
	// /
	// status 3 error <nil>
	// true no-such-program: command not found
}
