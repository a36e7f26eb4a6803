package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// frozen builds the backend that somebody else wrote for release 0.1.0, with the sources of 0.1.0. It exits with frozenMissing if
// they cannot be had here, which it explains.
const (
	frozen        = "../../scripts/frozen"
	frozenMissing = 3
	mustRun       = "HERMES_TEST_MUST_RUN"
)

// cmdBuildBackend builds the program in DIR, or else the backend that was written for 0.1.0, into FILE: buildbackend FILE [DIR].
// It runs in this process' environment, which has the build cache.
func cmdBuildBackend(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: buildbackend FILE [DIR]")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, frozen, "build", ts.MkAbs(args[0]))
	cmd.Env = append(os.Environ(), mustRun+"="+os.Getenv(mustRun)) // read here, so that go test does not take a result for another value from its cache
	if len(args) == 2 {
		dir, err := filepath.Abs(args[1])
		ts.Check(err)
		cmd = exec.CommandContext(ctx, "go", "build", "-o", ts.MkAbs(args[0]), ".")
		cmd.Dir = dir
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) } // what the script started, too
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out

	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(args) == 1 && exit.ExitCode() == frozenMissing {
		ts.Value("vars").(*testscript.Env).T().Skip(strings.TrimSpace(out.String()))
	}
	if err != nil {
		ts.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, &out)
	}
}
