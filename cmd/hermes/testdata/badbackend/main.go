// Command badbackend is a backend that fails in the way that the last line of its own binary names.
package main

import (
	"bytes"
	"fmt"
	"os"
	"time"
)

func main() {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	lines := bytes.Split(bytes.TrimSpace(self), []byte("\n"))
	switch mode := string(lines[len(lines)-1]); mode {
	case "rubbish":
		fmt.Println("Welcome to the backend!")
		fmt.Fprintln(os.Stderr, "{\"@message\": 1}")
	case "panic":
		panic("no such configuration")
	case "version":
		fmt.Println("1|99|unix|/nowhere|grpc|")
		time.Sleep(time.Minute)
	case "hang":
		time.Sleep(time.Minute)
	default:
		fmt.Fprintf(os.Stderr, "unknown mode %q\n", mode)
	}
}
