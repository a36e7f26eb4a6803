// Command badplugin is a go-plugin that misbehaves in the way that its first argument names.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
)

// The handshake of the tests.
const (
	cookieKey   = "BADPLUGIN_COOKIE"
	cookieValue = "b1f0"
)

func main() {
	mode := ""
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	before, ok := modes[mode]
	if !ok {
		fmt.Fprintf(os.Stderr, "badplugin: unknown mode %q\n", mode)
		os.Exit(2)
	}
	go onSignal()
	version := before()
	serve(version)
	if mode == "slow-exit" {
		time.Sleep(2500 * time.Millisecond)
		dump(os.Args[2], []byte("cleared up"))
	}
}

// modes are what happens before serving; the result is the protocol version to serve.
var modes = map[string]func() uint{
	"ok":      func() uint { return 1 },
	"version": func() uint { return 7 },

	"log-types": func() uint {
		fmt.Fprintln(os.Stderr, `{"@message": 1}`)
		return 1
	},
	"log": func() uint {
		fmt.Fprintln(os.Stderr, `{"@level":"warn","@message":"from the plugin","@timestamp":"2026-01-02T03:04:05.000000Z","n":3}`)
		fmt.Fprintln(os.Stderr, "plain \x1b[31mred\x1b[0m line")
		return 1
	},
	"noise": func() uint {
		fmt.Println("loading configuration...")
		fmt.Println("a|b|c")
		return 1
	},
	"noise-same-line": func() uint {
		fmt.Print("loading 42")
		return 1
	},
	"noise-long": func() uint {
		fmt.Println(strings.Repeat("x", 300<<10))
		return 1
	},
	"panic": func() uint {
		fmt.Fprintln(os.Stderr, "about to fail")
		panic("boom at start")
	},
	"exit": func() uint {
		fmt.Fprintln(os.Stderr, "cannot read /etc/badplugin.conf")
		os.Exit(43)
		return 0
	},
	"silent": func() uint {
		sleepForever()
		return 0
	},
	"close-stdout": func() uint {
		os.Stdout.Close()
		sleepForever()
		return 0
	},
	"mute": func() uint {
		listenMute()
		sleepForever()
		return 0
	},
	"plain": func() uint { // no certificate
		os.Unsetenv("PLUGIN_CLIENT_CERT")
		return 1
	},
	"ignore-term": func() uint {
		signal.Ignore(syscall.SIGTERM)
		return 1
	},
	"grandchild": func() uint {
		startGrandchild()
		return 1
	},
	"grandchild-crash": func() uint {
		startGrandchild()
		os.Exit(9)
		return 0
	},
	"env": func() uint {
		dump(os.Args[2], []byte(strings.Join(os.Environ(), "\n")))
		return 1
	},
	"rewritten": func() uint {
		self, _ := os.ReadFile("/proc/self/exe")
		dump(os.Args[2], self)
		return 1
	},
	"chatty": func() uint {
		stdout := os.Stdout
		go func() { // lives as long as the process
			for os.Stdout == stdout { // the library replaces it when the handshake is out, before which a long line would be a bad one
				time.Sleep(5 * time.Millisecond)
			}
			line := []byte(strings.Repeat("y", 1<<20) + "\n")
			for range 4 {
				syscallWrite(1, line)
				syscallWrite(2, line)
			}
			dump(os.Args[2], []byte("written"))
		}()
		return 1
	},
	"slow-exit": func() uint { // takes longer to clear up than go-plugin waits
		return 1
	},
}

func serve(version uint) {
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: goplugin.HandshakeConfig{
			ProtocolVersion: version, MagicCookieKey: cookieKey, MagicCookieValue: cookieValue,
		},
		Plugins:    goplugin.PluginSet{"backend": nothing{}},
		GRPCServer: goplugin.DefaultGRPCServer,
	})
}

type nothing struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (nothing) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error { return nil }

func (nothing) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

// onSignal fails in the way that a signal asks for, while serving.
func onSignal() {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGUSR1, syscall.SIGUSR2)
	if <-ch == syscall.SIGUSR2 {
		os.Exit(3)
	}
	panic("boom while serving")
}

// startGrandchild leaves a process in a session of its own that holds stdout and stderr, and writes its pid down.
func startGrandchild() {
	cmd := exec.Command("sleep", "300")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	dump(os.Args[2], fmt.Append(nil, cmd.Process.Pid))
}

// listenMute prints a good handshake for a socket on which nobody accepts.
func listenMute() {
	path := filepath.Join(os.Getenv("PLUGIN_UNIX_SOCKET_DIR"), "mute")
	if _, err := net.Listen("unix", path); err != nil {
		panic(err)
	}
	fmt.Printf("1|1|unix|%s|grpc|%s\n", path, certificate())
}

func certificate() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return base64.RawStdEncoding.EncodeToString(der)
}

func dump(path string, content []byte) {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		panic(err)
	}
}

func syscallWrite(fd int, p []byte) {
	for len(p) > 0 {
		n, err := syscall.Write(fd, p)
		if err != nil {
			return
		}
		p = p[n:]
	}
}

func sleepForever() {
	for {
		time.Sleep(time.Hour)
	}
}
