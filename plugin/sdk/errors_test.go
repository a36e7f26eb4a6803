package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hermes-framework/hermes/plugin"
)

var sentinels = map[plugin.Code]error{
	plugin.CodeInvalid:      plugin.ErrInvalid,
	plugin.CodeNotFound:     plugin.ErrNotFound,
	plugin.CodePermission:   plugin.ErrPermission,
	plugin.CodeUnavailable:  plugin.ErrUnavailable,
	plugin.CodeUnsupported:  plugin.ErrUnsupported,
	plugin.CodeTimeout:      plugin.ErrTimeout,
	plugin.CodeCanceled:     plugin.ErrCanceled,
	plugin.CodeExhausted:    plugin.ErrExhausted,
	plugin.CodeConflict:     plugin.ErrConflict,
	plugin.CodeClosed:       plugin.ErrClosed,
	plugin.CodeUntrusted:    plugin.ErrUntrusted,
	plugin.CodeIncompatible: plugin.ErrIncompatible,
	plugin.CodeCrashed:      plugin.ErrCrashed,
	plugin.CodeInternal:     plugin.ErrInternal,
}

// TestErrorsCrossTheBoundary: what a backend returns is what its host gets, but for the cause.
func TestErrorsCrossTheBoundary(t *testing.T) {
	var next error
	client := connect(t, &fake{open: func(context.Context, plugin.OpenRequest) error { return next }})
	for code, sentinel := range sentinels {
		for _, d := range []plugin.Delivery{plugin.NotStarted, plugin.MayHaveRun, plugin.Ran} {
			sent := plugin.Errorf(code, d, "open é: %w", os.ErrClosed).WithHint("try %d", 2)
			next = fmt.Errorf("around: %w", sent)
			_, err := client.Open(t.Context(), plugin.OpenRequest{ID: "x", Target: "fake:"})

			var got *plugin.Error
			if !errors.As(err, &got) {
				t.Fatalf("%s: got %T %v", code, err, err)
			}
			want := &plugin.Error{Code: code, Delivery: d, Message: "around: open é: file already closed", Hint: "try 2"}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(plugin.Error{}, "Cause")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if !errors.Is(err, sentinel) || !errors.Is(next, sentinel) {
				t.Errorf("%s: errors.Is does not find the sentinel", code)
			}
			for other, s := range sentinels {
				if other != code && errors.Is(err, s) {
					t.Errorf("%s is also %s", code, other)
				}
			}
		}
	}
}

func TestErrorIsAlsoTheStandardLibrarys(t *testing.T) {
	for code, std := range map[plugin.Code]error{
		plugin.CodeNotFound:    fs.ErrNotExist,
		plugin.CodePermission:  fs.ErrPermission,
		plugin.CodeUnsupported: errors.ErrUnsupported,
		plugin.CodeTimeout:     context.DeadlineExceeded,
		plugin.CodeCanceled:    context.Canceled,
	} {
		err := plugin.Errorf(code, plugin.Ran, "x")
		if !errors.Is(err, std) || errors.Is(err, fs.ErrClosed) {
			t.Errorf("%s: errors.Is with %v", code, std)
		}
		if got := plugin.AsError(fmt.Errorf("y: %w", std), plugin.Ran); got.Code != code || got.Delivery != plugin.Ran {
			t.Errorf("%v was classified as %+v", std, got)
		}
	}
	if got := plugin.AsError(&os.PathError{Op: "write", Err: syscall.ENOSPC}, plugin.Ran); got.Code != plugin.CodeExhausted {
		t.Errorf("a full disk was classified as %s", got.Code)
	}
	if got := plugin.AsError(errors.New("?"), plugin.MayHaveRun); got.Code != plugin.CodeInternal {
		t.Errorf("got %s", got.Code)
	}
	if plugin.AsError(nil, plugin.Ran) != nil {
		t.Error("AsError(nil) is not nil")
	}
}

// TestLongErrorsAreCut: no detail gets past 4 KiB, whatever a backend says.
func TestLongErrorsAreCut(t *testing.T) {
	long := strings.Repeat("é\xff", 50_000)
	client := connect(t, &fake{open: func(context.Context, plugin.OpenRequest) error {
		return &plugin.Error{Code: plugin.CodeInvalid, Message: long, Hint: long}
	}})
	_, err := client.Open(t.Context(), plugin.OpenRequest{ID: "x"})
	got := plugin.AsError(err, plugin.MayHaveRun)
	if n := len(got.Message) + len(got.Hint); n > 4096 || n < 3900 || !utf8.ValidString(got.Message+got.Hint) || got.Code != plugin.CodeInvalid {
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
	got, err := plugin.Decode[config]([]byte(`{"host":"a","opt":{"port":22}}`))
	if err != nil || got.Host != "a" || got.Opt.Port != 22 {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := plugin.Decode[config](nil); err != nil || got != (config{}) {
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
		_, err := plugin.Decode[config]([]byte(in))
		if !errors.Is(err, plugin.ErrInvalid) || err.Error() != want {
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
		_, err := plugin.Decode[struct {
			Port int `json:"port"`
		}](in)
		if err != nil && !errors.Is(err, plugin.ErrInvalid) {
			t.Errorf("%q: %v", in, err)
		}
	})
}
