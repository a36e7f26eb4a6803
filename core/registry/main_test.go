package registry

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugins/local"
)

// The first argument makes the test binary a plugin instead of running tests: a built-in backend re-executes the running program.
const (
	serveLocal = "registry-test-serve-local"
	serveCrash = "registry-test-serve-crash" // with the directory that tells it when to crash
	serveFails = "registry-test-serve-fails"
)

// TestMain gives the plugins a home of their own, by which those that stay behind are found.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case serveLocal:
			sdk.Serve(local.New())
			return
		case serveCrash:
			sdk.Serve(&crasher{Backend: local.New(), dir: os.Args[2]})
			return
		case serveFails:
			sdk.Serve(failing{})
			return
		}
	}
	home, err := os.MkdirTemp("", "hermes-registry-test-")
	if err != nil {
		panic(err)
	}
	_ = os.Setenv("HOME", home)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if left := leftovers(home); len(left) > 0 && code == 0 {
			fmt.Fprintf(os.Stderr, "processes left behind:\n%s\n", strings.Join(left, "\n"))
			code = 1
		}
		_ = os.RemoveAll(home)
		os.Exit(code)
	}))
}

// leftovers lists the processes whose environment names home, after giving them the time to leave.
func leftovers(home string) []string {
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(50 * time.Millisecond) { // processes of others: no event
		var left []string
		processes, _ := filepath.Glob("/proc/[0-9]*")
		for _, process := range processes {
			if env, _ := os.ReadFile(process + "/environ"); bytes.Contains(env, []byte("HOME="+home+"\x00")) {
				cmd, _ := os.ReadFile(process + "/cmdline")
				left = append(left, fmt.Sprintf("%s: %.120q", process, cmd))
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}
