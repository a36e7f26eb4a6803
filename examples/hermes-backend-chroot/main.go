// Command hermes-backend-chroot runs commands in a root file system, such as debootstrap makes. Its targets are "chroot:/dir"; it needs root.
package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

func main() { sdk.Serve(newBackend()) }

func newBackend() sdk.Backend {
	return sdk.OpenRunners(sdk.Info{
		Name: "chroot", Version: "1.0.0",
		Description:  "commands in a root file system",
		Capabilities: []sdk.Capability{sdk.CapStdin, sdk.CapDetach},
	}, open)
}

func open(_ context.Context, req sdk.OpenRequest) (sdk.Runner, error) {
	root, ok := strings.CutPrefix(req.Target, "chroot:")
	if !ok || !strings.HasPrefix(root, "/") {
		return nil, sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "target %q is not of the form chroot:/dir", req.Target)
	}
	if os.Geteuid() != 0 {
		return nil, sdk.Errorf(sdk.CodePermission, sdk.NotStarted, "open %s: only root may change its root directory", req.Target)
	}
	return sdk.RunnerFunc(func(ctx context.Context, cmd sdk.Command, stdin []byte) (sdk.RunResult, error) {
		return run(ctx, root, cmd, stdin)
	}), nil
}

func run(ctx context.Context, root string, cmd sdk.Command, stdin []byte) (sdk.RunResult, error) {
	var out, diag bytes.Buffer
	c := exec.CommandContext(ctx, "chroot", append([]string{root}, cmd.Argv...)...)
	c.Env = append([]string{}, cmd.Env...)
	if cmd.InheritEnv {
		c.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}, cmd.Env...)
	}
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &out, &diag
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 250 * time.Millisecond // for output that something in the background holds open

	var exit *exec.ExitError
	switch err := c.Run(); {
	case ctx.Err() != nil:
		return sdk.RunResult{}, context.Cause(ctx)
	case err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay):
		return sdk.RunResult{}, sdk.AsError(err, sdk.NotStarted)
	}
	return sdk.RunResult{Stdout: out.Bytes(), Stderr: diag.Bytes(), Code: c.ProcessState.ExitCode()}, nil
}
