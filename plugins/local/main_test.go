//go:build unix

package local_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugins/local"
)

// TestMain lets the test binary be a program that uses the backend and is then killed: see TestKilledPluginTakesItsCommandAlong.
func TestMain(m *testing.M) {
	if script := os.Getenv("HERMES_TEST_VICTIM"); script != "" {
		victim(script)
		return
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/hermes-framework/hermes/plugins/local.makeProcesses"),
		goleak.IgnoreTopFunction("github.com/hermes-framework/hermes/plugins/local.reapOrphans"),
	)
}

func victim(script string) {
	env, err := local.New().Open(context.Background(), sdk.OpenRequest{ID: "v", Target: "local:"})
	if err == nil {
		_, err = env.Exec(context.Background(), sdk.Command{Argv: []string{"sh", "-c", script}, InheritEnv: true}, sdk.IO{Stdout: os.Stdout})
	}
	panic(err)
}

// TestKilledPluginTakesItsCommandAlong: KILL gives a plugin no chance; the kernel ends its commands, but not what detached itself.
func TestKilledPluginTakesItsCommandAlong(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "HERMES_TEST_VICTIM=(setsid sleep 303 >/dev/null 2>&1 & echo $!); echo $$; exec sleep 303")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	detached := lines.Text()
	lines.Scan()
	command := lines.Text()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	awaitGone(t, command)

	env := open(t, "local:")
	if got, err := run(t.Context(), env, nil, "kill", detached); err != nil || got.status.Code != 0 {
		t.Errorf("what detached itself is gone: %+v, %v", got, err)
	}
}

// awaitGone waits until a process that is not ours has ended.
func awaitGone(t *testing.T, pid string) {
	t.Helper()
	waitFor(t, "process "+pid+" to end", func() bool {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(b), ") Z ")
	})
}
