package kernelhost

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain gives everything that the tests start a home and a temporary directory of their own, and wants nothing of it to stay.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "k") // short: a socket's path must fit
	if err != nil {
		panic(err)
	}
	temp := filepath.Join(dir, "t")
	for name, path := range map[string]string{"HOME": filepath.Join(dir, "h"), "TMPDIR": temp} {
		if err := os.Mkdir(path, 0o700); err != nil {
			panic(err)
		}
		_ = os.Setenv(name, path)
	}
	for _, name := range []string{"XDG_RUNTIME_DIR", "XDG_CACHE_HOME"} {
		_ = os.Unsetenv(name)
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/hermes-framework/hermes/plugins/local.makeProcesses"), // these live as long as the program
		goleak.IgnoreTopFunction("github.com/hermes-framework/hermes/plugins/local.reapOrphans"),
		goleak.Cleanup(func(code int) {
			files, _ := filepath.Glob(filepath.Join(temp, "*"))
			if left := append(leftovers(dir), files...); len(left) > 0 && code == 0 {
				fmt.Fprintf(os.Stderr, "left behind:\n%s\n", strings.Join(left, "\n"))
				code = 1
			}
			_ = os.RemoveAll(dir)
			os.Exit(code)
		}))
}

// leftovers lists the processes whose environment names dir, after giving them the time to leave.
func leftovers(dir string) []string {
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(50 * time.Millisecond) { // processes of others: no event
		var left []string
		processes, _ := filepath.Glob("/proc/[0-9]*")
		for _, process := range processes {
			if env, _ := os.ReadFile(process + "/environ"); bytes.Contains(env, []byte(dir+"/")) {
				cmd, _ := os.ReadFile(process + "/cmdline")
				left = append(left, fmt.Sprintf("%s: %.120q", process, cmd))
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}
