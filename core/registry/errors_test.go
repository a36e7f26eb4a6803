package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// sentinels has one for each code, in the order of the list.
var sentinels = []error{
	sdk.ErrInvalid, sdk.ErrNotFound, sdk.ErrPermission, sdk.ErrUnavailable, sdk.ErrUnsupported, sdk.ErrTimeout, sdk.ErrCanceled,
	sdk.ErrExhausted, sdk.ErrConflict, sdk.ErrClosed, sdk.ErrUntrusted, sdk.ErrIncompatible, sdk.ErrCrashed, sdk.ErrInternal,
}

func codeOf(sentinel error) sdk.Code { return sdk.AsError(sentinel, sdk.NotStarted).Code }

// failing is a backend of which all fails, as it is asked to: its targets are codes, the arguments of its commands a code and a delivery.
type failing struct{}

func (failing) Info(context.Context) (sdk.Info, error) {
	return sdk.Info{Name: "failing", Version: "1"}, nil
}

func (failing) Open(_ context.Context, req sdk.OpenRequest) (sdk.Environment, error) {
	if req.Target == "works" {
		return failingEnvironment{}, nil
	}
	return nil, fail(sdk.Code(req.Target), sdk.NotStarted)
}

type failingEnvironment struct{ sdk.UnimplementedEnvironment }

func (failingEnvironment) Exec(_ context.Context, cmd sdk.Command, _ sdk.IO) (sdk.ExitStatus, error) {
	delivery, err := strconv.Atoi(cmd.Argv[1])
	if err != nil {
		return sdk.ExitStatus{}, err
	}
	return sdk.ExitStatus{}, fail(sdk.Code(cmd.Argv[0]), sdk.Delivery(delivery))
}

// fail makes the error in the plugin, and lets it say which sentinels errors.Is finds there.
func fail(code sdk.Code, delivery sdk.Delivery) error {
	err := sdk.Errorf(code, delivery, "here it is").WithHint("ask for another")
	var found []string
	for _, s := range sentinels {
		if errors.Is(err, s) {
			found = append(found, string(codeOf(s)))
		}
	}
	err.Message += fmt.Sprint(" ", found)
	return err
}

// TestErrorsCrossTheProcessBoundary: what the plugin, a process of its own, returns is what this program gets and finds with errors.Is.
func TestErrorsCrossTheProcessBoundary(t *testing.T) {
	if source, err := os.ReadFile("../../plugin/sdk/errors.go"); err != nil || strings.Count(string(source), ` Code = "`) != len(sentinels) {
		t.Fatalf("the list of codes is longer than this test's: %v", err)
	}
	r := testRegistry(t, Config{Builtin: []Builtin{{Name: "failing", Args: []string{serveFails}}}})
	r.tune.goneWait = time.Millisecond // this plugin does not crash when it says so
	b, err := r.Backend(t.Context(), "failing")
	if err != nil {
		t.Fatal(err)
	}
	env, err := b.Open(t.Context(), sdk.OpenRequest{ID: "works", Target: "works"})
	if err != nil {
		t.Fatal(err)
	}
	for _, sentinel := range sentinels {
		code := codeOf(sentinel)
		_, err := b.Open(t.Context(), sdk.OpenRequest{ID: string(code), Target: string(code)})
		wantAcross(t, err, sentinel, sdk.NotStarted)
		for _, d := range []sdk.Delivery{sdk.NotStarted, sdk.MayHaveRun, sdk.Ran} {
			_, err := env.Exec(t.Context(), sdk.Command{Argv: []string{string(code), strconv.Itoa(int(d))}}, sdk.IO{})
			wantAcross(t, err, sentinel, d)
		}
	}
	if n := r.backends["failing"].started; n != 1 {
		t.Errorf("%d plugins were started, want 1: nothing crashed", n)
	}

	_, err = b.Open(t.Context(), sdk.OpenRequest{ID: "of tomorrow", Target: "of tomorrow"})
	if e := sdk.AsError(err, sdk.Ran); e.Code != "of tomorrow" || e.Delivery != sdk.NotStarted {
		t.Errorf("a code that this program does not know: %s, %s: %v", e.Code, e.Delivery, err)
	}
}

// wantAcross wants the error that was sent, found by its sentinel, by no other, and by what the standard library has for it.
func wantAcross(t *testing.T, err, sentinel error, delivery sdk.Delivery) {
	t.Helper()
	code := codeOf(sentinel)
	var got *sdk.Error
	if !errors.As(err, &got) {
		t.Errorf("%s, %s: got %T %v", code, delivery, err, err)
		return
	}
	want := &sdk.Error{Code: code, Delivery: delivery, Message: fmt.Sprintf("here it is [%s]", code), Hint: "ask for another"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s, %s (-want +got):\n%s", code, delivery, diff)
	}
	for _, s := range sentinels {
		if is := errors.Is(err, s); is != (codeOf(s) == code) {
			t.Errorf("%s, %s: errors.Is finds %v: %v", code, delivery, s, is)
		}
	}
	for of, std := range map[sdk.Code]error{
		sdk.CodeNotFound: fs.ErrNotExist, sdk.CodePermission: fs.ErrPermission, sdk.CodeUnsupported: errors.ErrUnsupported,
		sdk.CodeTimeout: context.DeadlineExceeded, sdk.CodeCanceled: context.Canceled,
	} {
		if is := errors.Is(err, std); is != (of == code) {
			t.Errorf("%s, %s: errors.Is finds %v: %v", code, delivery, std, is)
		}
	}
}
