package kernelhost

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/plugin/sdk"
	"github.com/hermes-framework/hermes/plugins/local"
)

var _ kernel.Process = (*Host)(nil)

// hangs is an environment whose commands never end by themselves.
type hangs struct {
	sdk.UnimplementedEnvironment
}

func (hangs) Exec(ctx context.Context, _ sdk.Command, _ sdk.IO) (sdk.ExitStatus, error) {
	<-ctx.Done()
	return sdk.ExitStatus{}, sdk.Errorf(sdk.CodeCanceled, sdk.Ran, "%w", ctx.Err())
}

func TestAnInterpreterThatHangsIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Place{Name: "fake:", Env: hangs{}, Caps: []sdk.Capability{sdk.CapStdin}, Interpreter: "slow"}
		_, err := Start(t.Context(), p, NewToken(), false)
		if e := sdk.AsError(err, sdk.MayHaveRun); e.Code != sdk.CodeUnavailable || e.Delivery != sdk.NotStarted || e.Hint == "" {
			t.Errorf("got %s, %s, hint %q: %v", e.Code, e.Delivery, e.Hint, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = Start(ctx, p, NewToken(), false)
		if e := sdk.AsError(err, sdk.MayHaveRun); e.Code != sdk.CodeCanceled || e.Delivery != sdk.NotStarted {
			t.Errorf("cancelled: got %s, %s: %v", e.Code, e.Delivery, err)
		}
	})
}

// TestRefused: the codes of docs/protocol.md, section 2.2, and what callers may rely on.
func TestRefused(t *testing.T) {
	h := &Host{}
	for code, want := range map[string][]error{
		"invalid":     {sdk.ErrInvalid},
		"not_found":   {sdk.ErrNotFound, fs.ErrNotExist},
		"conflict":    {sdk.ErrConflict},
		"exhausted":   {sdk.ErrExhausted},
		"unsupported": {sdk.ErrUnsupported, errors.ErrUnsupported},
		"closed":      {sdk.ErrClosed},
		"internal":    {sdk.ErrInternal},
		"":            {sdk.ErrInternal},
	} {
		err := h.Refused(code, "no kernel k-1")
		for _, is := range want {
			if !errors.Is(err, is) {
				t.Errorf("%q: %v is not %v", code, err, is)
			}
		}
		if code != "not_found" && errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v is fs.ErrNotExist", code, err)
		}
		if e := sdk.AsError(err, sdk.MayHaveRun); e.Delivery != sdk.NotStarted || e.Message != "kernel host: no kernel k-1" {
			t.Errorf("%q: %s, %q", code, e.Delivery, e.Message)
		}
	}
}

// scripted is an environment whose commands print what it says, and in which every socket leads to a host that does not know the token.
type scripted struct {
	sdk.UnimplementedEnvironment

	stdout string
	status sdk.ExitStatus
	err    error
	execs  int
}

func (s *scripted) Exec(_ context.Context, _ sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	s.execs++
	_, _ = io.WriteString(stdio.Stdout, s.stdout)
	return s.status, s.err
}

func (s *scripted) Dial(context.Context, sdk.DialRequest) (sdk.Endpoint, error) {
	here, there := net.Pipe()
	go func() { // ends with the connection
		defer func() { _ = there.Close() }()
		if f, err := cell.ReadFrame(there, helloLimit); err == nil {
			proof := prove(NewToken(), "hermes host v1", f.Msg.Bytes("nonce"), NewToken())
			_, _ = there.Write(cell.EncodeMessage(cell.Fields{"t": "hello", "v": 1, "nonce": NewToken(), "proof": proof}))
			_, _ = cell.ReadFrame(there, helloLimit)
		}
	}()
	return sdk.Endpoint{Conn: here}, nil
}

func line(marker string, msg cell.Fields) string {
	return marker + " " + hex.EncodeToString(cell.AppendValue(nil, msg)) + "\n"
}

// TestAWrongTokenIsNotTriedAgain: not by another way, and whoever asks errors.Is does not try either.
func TestAWrongTokenIsNotTriedAgain(t *testing.T) {
	env := &scripted{}
	h := &Host{Place: &Place{Name: "fake:", Env: env, Caps: []sdk.Capability{sdk.CapSocket, sdk.CapStdin, sdk.CapStream}}, Token: NewToken()}
	_, _, err := h.Connect(t.Context(), nil)
	for _, want := range []error{sdk.ErrPermission, fs.ErrPermission} {
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if env.execs != 0 {
		t.Error("another way was tried")
	}
}

// stuck is an environment whose sockets cannot be dialled, and whose dial does not say so.
type stuck struct{ scripted }

func (s *stuck) Dial(ctx context.Context, _ sdk.DialRequest) (sdk.Endpoint, error) {
	<-ctx.Done()
	return sdk.Endpoint{}, context.Cause(ctx)
}

// TestAWayThatHangsLeavesTimeForTheNext: the host leaves when nobody came for 10 s.
func TestAWayThatHangsLeavesTimeForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := &stuck{}
		h := &Host{Place: &Place{Name: "fake:", Env: env, Caps: []sdk.Capability{sdk.CapSocket, sdk.CapStdin, sdk.CapStream}}, Token: NewToken()}
		begun := time.Now()
		_, _, err := h.Connect(t.Context(), nil)
		if took := time.Since(begun); err == nil || env.execs != 1 || took != wayTimeout {
			t.Errorf("after %s and %d relays: %v; want one relay after %s", took, env.execs, err, wayTimeout)
		}
	})
}

// firstHangs is an environment whose first command hangs, and whose others end at once.
type firstHangs struct{ scripted }

func (f *firstHangs) Exec(ctx context.Context, cmd sdk.Command, stdio sdk.IO) (sdk.ExitStatus, error) {
	if f.execs++; f.execs == 1 {
		return hangs{}.Exec(ctx, cmd, stdio)
	}
	return sdk.ExitStatus{Code: 1}, nil
}

// TestTheOnlyWayIsTriedAgainIfItHangs, and only then.
func TestTheOnlyWayIsTriedAgainIfItHangs(t *testing.T) {
	for _, caps := range [][]sdk.Capability{{sdk.CapStdin, sdk.CapStream}, {sdk.CapStdin}} {
		synctest.Test(t, func(t *testing.T) {
			env := &firstHangs{}
			h := &Host{Place: &Place{Name: "fake:", Env: env, Caps: caps}, Token: NewToken()}
			begun := time.Now()
			_, _, err := h.Connect(t.Context(), nil)
			if took := time.Since(begun); !errors.Is(err, errHangs) || env.execs != 2 || took != wayTimeout {
				t.Errorf("%v: after %s and %d commands: %v; want two, the second after %s", caps, took, env.execs, err, wayTimeout)
			}
			_, _, err = h.Connect(t.Context(), nil)
			if err == nil || env.execs != 3 {
				t.Errorf("%v: after %d commands: %v; want one more", caps, env.execs, err)
			}
		})
	}
}

func TestTheAnswerOfAStart(t *testing.T) {
	ready := cell.Fields{
		"inc": "i-1", "boot": "b-1", "pid": 7, "dir": "/d", "sock": "/d/sock", "exe": "/bin/python3", "python": "3.11.2", "hostname": "h", "journal": "/j",
		"existing": true, "warnings": []any{"one", int64(2), "two"},
	}
	want := Info{
		Incarnation: "i-1", Boot: "b-1", PID: 7, Dir: "/d", Socket: "/d/sock", Executable: "/bin/python3", Python: "3.11.2", Hostname: "h", Journal: "/j",
		Existing: true, Warnings: []string{"one", "two"},
	}
	for name, c := range map[string]struct {
		env  scripted
		want Info
		is   error
		says string
		hint string
	}{
		"ready":                   {env: scripted{stdout: line("hermes-ready", ready)}, want: want},
		"ready, after other text": {env: scripted{stdout: "welcome to h\nhermes-readyish 80\n\n" + line("hermes-ready", ready) + "bye"}, want: want},
		"an error": {
			env: scripted{stdout: "noise\n" + line("hermes-error", cell.Fields{"code": "incompatible", "msg": "too old", "hint": "install 3.8"}), status: sdk.ExitStatus{Code: 1}},
			is:  sdk.ErrIncompatible, says: "fake: start the kernel host: too old", hint: "install 3.8",
		},
		"no answer": {
			env: scripted{stdout: "Segmentation fault", status: sdk.ExitStatus{Code: -1, Signal: "SEGV"}},
			is:  sdk.ErrInternal, says: "fake: start the kernel host: py ended (signal SEGV) without an answer; it printed: Segmentation fault", hint: "env check",
		},
		"an answer that is not hex":  {env: scripted{stdout: "hermes-ready xyz\n"}, is: cell.ErrMalformed, says: "malformed"},
		"an answer that is cut":      {env: scripted{stdout: line("hermes-ready", ready)[:40]}, is: cell.ErrMalformed, says: "malformed"},
		"no interpreter":             {env: scripted{err: sdk.Errorf(sdk.CodeNotFound, sdk.NotStarted, "py: command not found")}, is: fs.ErrNotExist, says: "fake: start the kernel host: there is no py", hint: "install Python"},
		"a connection that was lost": {env: scripted{err: sdk.Errorf(sdk.CodeCrashed, sdk.MayHaveRun, "lost")}, is: sdk.ErrCrashed, says: "fake: start the kernel host: lost"},
	} {
		p := &Place{Name: "fake:", Env: &c.env, Caps: []sdk.Capability{sdk.CapStdin}, Interpreter: "py"}
		got, err := Start(t.Context(), p, NewToken(), false)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
		if c.is == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		e := sdk.AsError(err, sdk.NotStarted)
		if !errors.Is(err, c.is) || e.Delivery != sdk.NotStarted || !strings.Contains(e.Message, c.says) || !strings.Contains(e.Hint, c.hint) {
			t.Errorf("%s: got %v, %s, hint %q; want %v, %q, hint %q", name, err, e.Delivery, e.Hint, c.is, c.says, c.hint)
		}
	}
}

// TestARealHostKeepsThePromisesOfAProcess, by each way to attach to it.
func TestARealHostKeepsThePromisesOfAProcess(t *testing.T) {
	python := pythons(t)[0]
	for name, caps := range map[string][]sdk.Capability{
		"socket": {sdk.CapSocket, sdk.CapStdin, sdk.CapStream},
		"relay":  {sdk.CapStdin, sdk.CapStream},
		"calls":  {sdk.CapStdin},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			env, err := local.New().Open(ctx, sdk.OpenRequest{ID: name, Target: "local:"})
			if err != nil {
				t.Fatal(err)
			}
			p := &Place{Name: "local:", Env: env, Caps: caps, Interpreter: python}
			h := &Host{Place: p, Token: NewToken()}
			if h.Info, err = Start(ctx, p, h.Token, false); err != nil {
				t.Fatal(err)
			}
			k := kernel.NewHost(h, kernel.Identity{Incarnation: h.Info.Incarnation})
			opened, err := k.Open(ctx, kernel.OpenRequest{Language: cell.Python}) // the first request: nothing that came before may be its answer
			if err != nil || opened.Kernel.ID == "" || !opened.Created {
				t.Fatalf("got %+v, %v; want a kernel that was created", opened, err)
			}
			second := kernel.NewHost(h, kernel.Identity{Incarnation: h.Info.Incarnation, Detached: true})
			all, err := second.List(ctx)
			if err != nil || len(all) != 1 || all[0].Kernel.ID != opened.Kernel.ID {
				t.Errorf("the host lists %+v, %v; want the kernel %s", all, err, opened.Kernel.ID)
			}
			second.Close(ctx)
			if err := opened.Kernel.End(ctx); err != nil {
				t.Errorf("end the kernel: %v", err)
			}
			if err := opened.Kernel.End(ctx); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, sdk.ErrNotFound) || kernel.IsGone(err) {
				t.Errorf("end it again: got %v, want fs.ErrNotExist of a host that is there", err)
			}

			other := &Host{Place: p, Info: h.Info, Token: NewToken()}
			if _, _, err := other.Connect(ctx, nil); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("another token: got %v, want fs.ErrPermission", err)
			}

			k.Close(ctx)
			if _, _, err := h.Connect(ctx, nil); !kernel.IsGone(err) {
				t.Errorf("a host that has ended: got %v, want one that is gone", err)
			}
			if err := env.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
