package core_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// A whole program: its main begins with sdk.ServeBuiltin(local.New()), so that it can be its own backend.
func Example() {
	ctx := context.Background()
	engine, err := core.Open(ctx, core.Config{Builtin: []core.Builtin{{Name: "local"}}})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = engine.Close(ctx) }()
	res, err := engine.Run(ctx, core.Request{Code: "6 * 7"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(*res.Cell.Value)
	// Output: 42
}

// Output can be followed while the cell runs; a time limit keeps what there is.
func ExampleEngine_Run() {
	ctx := context.Background()
	engine, err := core.Open(ctx, core.Config{Builtin: []core.Builtin{{Name: "local"}}})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = engine.Close(ctx) }()
	res, err := engine.Run(ctx, core.Request{
		Code:    "import time\nprint('working', flush=True)\ntime.sleep(60)",
		Timeout: 300 * time.Millisecond,
	}, func(ev cell.Event) {
		if ev.Kind == cell.EventOutput {
			fmt.Print(ev.Text) // as it comes
		}
	})
	fmt.Println(errors.Is(err, cell.ErrTimeout), res.Cell.Outcome)
	fmt.Print("in the result: ", res.Cell.Stdout)
	// Output:
	// working
	// true timeout
	// in the result: working
}

// An agent and the work that it delegates: each has variables of its own, and a child's last until its Close.
func ExampleOwner() {
	ctx := context.Background()
	engine, err := core.Open(ctx, core.Config{Builtin: []core.Builtin{{Name: "local"}}})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = engine.Close(ctx) }()
	show := func(o *core.Owner, code string) {
		res, err := o.Run(ctx, core.Request{Code: code}, nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(o.Name()+":", *res.Cell.Value)
	}
	agent := engine.Owner("agent")
	show(agent, "task = 'write a report'; task")
	reader, err := agent.Child("reader")
	if err != nil {
		log.Fatal(err)
	}
	show(reader, "task = 'read the sources'; task")
	if err := reader.Close(ctx); err != nil { // its kernel and its processes are gone
		log.Fatal(err)
	}
	show(agent, "task")
	_, err = reader.Run(ctx, core.Request{Code: "task"}, nil)
	fmt.Println(errors.Is(err, sdk.ErrClosed))
	// Output:
	// agent: 'write a report'
	// reader: 'read the sources'
	// agent: 'write a report'
	// true
}

// A plugin can be loaded without any kernel: for its commands and files.
func ExampleEngine_Environment() {
	ctx := context.Background()
	engine, err := core.Open(ctx, core.Config{Builtin: []core.Builtin{{Name: "local"}}})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = engine.Close(ctx) }()
	env, err := engine.Environment(ctx, "local:")
	if err != nil {
		log.Fatal(err)
	}
	status, err := env.Exec(ctx, sdk.Command{Argv: []string{"sh", "-c", "echo from $0; exit 3", "a shell"}, InheritEnv: true}, sdk.IO{Stdout: os.Stdout})
	fmt.Println(status.Code, err)
	// Output:
	// from a shell
	// 3 <nil>
}

// Commands outside any kernel.
func ExampleEngine_Exec() {
	ctx := context.Background()
	engine, err := core.Open(ctx, core.Config{Builtin: []core.Builtin{{Name: "local"}}})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = engine.Close(ctx) }()
	status, err := engine.Exec(ctx, core.ExecRequest{Argv: []string{"echo", "no shell: $HOME"}, Stdout: os.Stdout})
	fmt.Println(status.Code, err)
	// Output:
	// no shell: $HOME
	// 0 <nil>
}
