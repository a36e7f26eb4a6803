package launch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
)

// runHost is the test binary as a host of its own: it starts a plugin, prints its pid and waits to be killed.
func runHost(kind string) {
	badplugin = os.Getenv(hostVar + "_PLUGIN")
	kind, mode, _ := strings.Cut(kind, " ")
	switch kind {
	case "plain-log-types":
		_, _ = goplugin.NewClient(plainConfig("log-types")).Client()
		time.Sleep(20 * time.Second) // the parser panics long before
	case "plain":
		config := plainConfig(mode)
		if _, err := goplugin.NewClient(config).Client(); err != nil {
			panic(err)
		}
		fmt.Println(config.Cmd.Process.Pid)
	case "ours":
		p, err := Start(context.Background(), Spec{
			Name: "bad", Path: badplugin, Args: []string{mode}, RuntimeDir: os.Getenv(hostVar + "_DIR"),
			Check: func(string) error { return nil }, Handshake: testHandshake, StartTimeout: 20 * time.Second,
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(p.PID())
	}
	time.Sleep(time.Minute)
}

func hostCommand(t *testing.T, kind string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), hostVar+"="+kind, hostVar+"_PLUGIN="+badplugin)
	return cmd
}
