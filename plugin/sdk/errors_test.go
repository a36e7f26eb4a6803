package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

var sentinels = map[sdk.Code]error{
	sdk.CodeInvalid:      sdk.ErrInvalid,
	sdk.CodeNotFound:     sdk.ErrNotFound,
	sdk.CodePermission:   sdk.ErrPermission,
	sdk.CodeUnavailable:  sdk.ErrUnavailable,
	sdk.CodeUnsupported:  sdk.ErrUnsupported,
	sdk.CodeTimeout:      sdk.ErrTimeout,
	sdk.CodeCanceled:     sdk.ErrCanceled,
	sdk.CodeExhausted:    sdk.ErrExhausted,
	sdk.CodeConflict:     sdk.ErrConflict,
	sdk.CodeClosed:       sdk.ErrClosed,
	sdk.CodeUntrusted:    sdk.ErrUntrusted,
	sdk.CodeIncompatible: sdk.ErrIncompatible,
	sdk.CodeCrashed:      sdk.ErrCrashed,
	sdk.CodeInternal:     sdk.ErrInternal,
}

// standard are the errors of the standard library that say the same as a code.
var standard = map[sdk.Code]error{
	sdk.CodeNotFound:    fs.ErrNotExist,
	sdk.CodePermission:  fs.ErrPermission,
	sdk.CodeUnsupported: errors.ErrUnsupported,
	sdk.CodeTimeout:     context.DeadlineExceeded,
	sdk.CodeCanceled:    context.Canceled,
}

// TestEveryCodeHasASentinel: the list is append-only, and the tests of it with it.
func TestEveryCodeHasASentinel(t *testing.T) {
	source, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`(?m)^\tCode\w+ +Code = "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(codes) != len(sentinels) {
		t.Errorf("errors.go has %d codes, the tests know %d", len(codes), len(sentinels))
	}
	for _, c := range codes {
		if sentinel := sentinels[sdk.Code(c[1])]; sentinel == nil || sdk.AsError(sentinel, sdk.Ran).Code != sdk.Code(c[1]) {
			t.Errorf("%s: its sentinel is %v", c[1], sentinel)
		}
	}
}

// TestErrorsCrossTheBoundary: what a backend returns is what its host gets, but for the cause.
func TestErrorsCrossTheBoundary(t *testing.T) {
	var next error
	client := connect(t, &fake{open: func(context.Context, sdk.OpenRequest) error { return next }})
	for code := range sentinels {
		for _, d := range []sdk.Delivery{sdk.NotStarted, sdk.MayHaveRun, sdk.Ran} {
			sent := sdk.Errorf(code, d, "open é: %w", os.ErrClosed).WithHint("try %d", 2)
			next = fmt.Errorf("around: %w", sent)
			_, err := client.Open(t.Context(), sdk.OpenRequest{ID: "x", Target: "fake:"})

			var got *sdk.Error
			if !errors.As(err, &got) {
				t.Fatalf("%s: got %T %v", code, err, err)
			}
			want := &sdk.Error{Code: code, Delivery: d, Message: "around: open é: file already closed", Hint: "try 2"}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(sdk.Error{}, "Cause")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			for side, err := range map[string]error{"plugin": next, "host": err} {
				for other, s := range sentinels {
					if is := errors.Is(err, s); is != (other == code) {
						t.Errorf("%s, in the %s: errors.Is with the sentinel of %s is %v", code, side, other, is)
					}
				}
				for other, std := range standard {
					if is := errors.Is(err, std); is != (other == code) {
						t.Errorf("%s, in the %s: errors.Is with %v is %v", code, side, std, is)
					}
				}
			}
		}
	}
}

func TestErrorIsAlsoTheStandardLibrarys(t *testing.T) {
	for code, std := range standard {
		err := sdk.Errorf(code, sdk.Ran, "x")
		if !errors.Is(err, std) || errors.Is(err, fs.ErrClosed) {
			t.Errorf("%s: errors.Is with %v", code, std)
		}
		if got := sdk.AsError(fmt.Errorf("y: %w", std), sdk.Ran); got.Code != code || got.Delivery != sdk.Ran {
			t.Errorf("%v was classified as %+v", std, got)
		}
	}
	if got := sdk.AsError(&os.PathError{Op: "write", Err: syscall.ENOSPC}, sdk.Ran); got.Code != sdk.CodeExhausted {
		t.Errorf("a full disk was classified as %s", got.Code)
	}
	if got := sdk.AsError(errors.New("?"), sdk.MayHaveRun); got.Code != sdk.CodeInternal {
		t.Errorf("got %s", got.Code)
	}
	if sdk.AsError(nil, sdk.Ran) != nil {
		t.Error("AsError(nil) is not nil")
	}
}

// TestLongErrorsAreCut: no detail gets past 4 KiB, whatever a backend says.
func TestLongErrorsAreCut(t *testing.T) {
	long := strings.Repeat("é\xff", 50_000)
	client := connect(t, &fake{open: func(context.Context, sdk.OpenRequest) error {
		return &sdk.Error{Code: sdk.CodeInvalid, Message: long, Hint: long}
	}})
	_, err := client.Open(t.Context(), sdk.OpenRequest{ID: "x"})
	got := sdk.AsError(err, sdk.MayHaveRun)
	if n := len(got.Message) + len(got.Hint); n > 4096 || n < 3900 || !utf8.ValidString(got.Message+got.Hint) || got.Code != sdk.CodeInvalid {
		t.Errorf("got %d bytes, code %s", n, got.Code)
	}
}

func TestDecode(t *testing.T) {
	type config struct {
		Host string `json:"host"`
		Opt  struct {
			Port int `json:"port"`
		} `json:"opt"`
	}
	got, err := sdk.Decode[config]([]byte(`{"host":"a","opt":{"port":22}}`))
	if err != nil || got.Host != "a" || got.Opt.Port != 22 {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := sdk.Decode[config](nil); err != nil || got != (config{}) {
		t.Errorf("nothing: got %+v, %v", got, err)
	}
	for in, want := range map[string]string{
		`{"hots":"a"}`:           `config: unknown field "hots"`,
		`{"host":7}`:             `config: field "host" must be of type string, not number`,
		`{"opt":{"port":"s3c"}}`: `config: field "opt.port" must be of type int, not string`,
		`[]`:                     `config: must be a JSON object, not a array`,
		`{"host":"a"`:            `config: not valid JSON: it ends too early`,
		`{"host":"a"} {}`:        `config: there is more than one JSON value`,
		`{host}`:                 `config: not valid JSON at byte 2`,
	} {
		_, err := sdk.Decode[config]([]byte(in))
		if !errors.Is(err, sdk.ErrInvalid) || err.Error() != want {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
}

// FuzzDecode: whatever the config is, the error never quotes its values.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"port":1}`, `{"port":"secretvalue"}`, `{"x":1}`, `null`, `"secretvalue"`, `{"port":1e999}`, "\xff", `{"port":1}{`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		_, err := sdk.Decode[struct {
			Port int `json:"port"`
		}](in)
		if err != nil && !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%q: %v", in, err)
		}
	})
}
