package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// An error says what failed, whether the work may have been done, and what to do. Its code gets through to the caller's errors.Is; what it wraps
// stays in the plugin.
func ExampleErrorf() {
	_, err := os.ReadFile("/no/such/image")
	err = sdk.Errorf(sdk.CodeNotFound, sdk.NotStarted, "open box:7: %w", err).WithHint("make the image first: box build %d", 7)
	fmt.Println(err)
	fmt.Println(errors.Is(err, sdk.ErrNotFound), errors.Is(err, fs.ErrNotExist), errors.Is(err, sdk.ErrPermission))

	if e, ok := errors.AsType[*sdk.Error](err); ok {
		fmt.Println(e.Code, e.Delivery)
		fmt.Println(e.Hint)
	}
	// Output:
	// open box:7: open /no/such/image: no such file or directory
	// true true false
	// not_found not_started
	// make the image first: box build 7
}

// The caller, in another process, finds the same.
func ExampleError_WithHint() {
	full := sdk.OpenRunners(sdk.Info{Name: "box", Version: "1.0.0"}, func(context.Context, sdk.OpenRequest) (sdk.Runner, error) {
		return nil, sdk.Errorf(sdk.CodeExhausted, sdk.NotStarted, "all boxes are in use").WithHint("wait, or end one: box ls")
	})
	ctx := context.Background()
	client, stop, err := sdk.Pipe(ctx, full)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = stop() }()

	_, err = client.Open(ctx, sdk.OpenRequest{ID: "e1", Target: "box:"})
	if errors.Is(err, sdk.ErrExhausted) {
		fmt.Printf("%v (%s)\n", err, sdk.AsError(err, sdk.MayHaveRun).Hint)
	}
	// Output: all boxes are in use (wait, or end one: box ls)
}
