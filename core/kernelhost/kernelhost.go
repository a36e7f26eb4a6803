// Package kernelhost brings kernel hosts up in environments.
package kernelhost

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // the kernel host is shipped inside the engine
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/lockdown"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

//go:embed host.py
var hostSource []byte

//go:embed loader.py
var hostLoader string

var hostSum = func() string {
	sum := sha256.Sum256(hostSource)
	return hex.EncodeToString(sum[:])
}()

// How long each step of bringing a kernel host up may take.
const (
	startTimeout  = 60 * time.Second
	attachTimeout = 20 * time.Second
	wayTimeout    = 4 * time.Second // of attaching by one way when there is another; a host that nobody comes to leaves after 10 s
	pollTimeout   = 20 * time.Second
	callTimeout   = pollTimeout + 10*time.Second // of a command that says nothing: it waits pollTimeout for the host by itself
	lingerLocal   = 10 * time.Second
	lingerRemote  = 5 * time.Minute

	// IdleDetached is how long a kernel of a named session may be idle where nobody says otherwise.
	IdleDetached = 30 * time.Minute
)

// Place is an environment, as a kernel host needs it. It must not be changed while it is used.
type Place struct {
	Name          string // for messages
	Env           sdk.Environment
	Caps          []sdk.Capability // of Env's backend
	Remote        bool             // on another machine: a host there lingers longer
	ThroughPlugin bool             // every byte goes through the plugin, also where it names an address to dial
	Interpreter   string           // a name on the environment's PATH or a path
	ClientID      string           // tells the engines that a host serves apart
	Idle          time.Duration    // after which a named host ends a kernel that ran nothing
	EngineDir     string           // the engine's directory, if it is on the same machine: the host removes it should the engine have died
}

// Label is the environment's name as messages have it before a colon.
func (p *Place) Label() string { return strings.TrimSuffix(p.Name, ":") }

// Can says whether the backend announces the capability.
func (p *Place) Can(c sdk.Capability) bool { return slices.Contains(p.Caps, c) }

// Info is what a kernel host says of itself when it is ready; a named host's is kept in its record.
type Info struct {
	Incarnation string   `json:"incarnation"` // random, of this life
	Boot        string   `json:"boot"`        // of its machine
	PID         int      `json:"pid"`
	Dir         string   `json:"dir"`        // its own, 0700
	Socket      string   `json:"socket"`     // in Dir
	Executable  string   `json:"executable"` // the real interpreter
	Python      string   `json:"python"`     // its version, "3.11.2"
	Hostname    string   `json:"hostname"`
	Journal     string   `json:"journal,omitempty"` // the file that tells what became of its cells when it is gone; empty if an older version started it
	Existing    bool     `json:"-"`                 // a named host that was there before
	Warnings    []string `json:"-"`                 // what it cannot do there, in sentences
}

// Host is a kernel host that is up, and how to reach it: a kernel.Process. Its methods may be called concurrently.
type Host struct {
	Place *Place
	Info  Info
	Token []byte
}

// Start brings a kernel host up in p, within a minute, and returns what it says of itself. A named host that is there already, with whatever token,
// is returned as it is. Errors are *sdk.Error and say that nothing was started.
func Start(ctx context.Context, p *Place, token []byte, named bool) (Info, error) {
	if !p.Can(sdk.CapStdin) && !p.Can(sdk.CapPrivate) {
		return Info{}, &sdk.Error{
			Code: sdk.CodeUnsupported, Delivery: sdk.NotStarted,
			Message: fmt.Sprintf("%s: its backend has no private way to pass a secret (capability stdin or private), so it can run commands but no kernels", p.Label()),
		}
	}
	linger := lingerLocal
	if p.Remote {
		linger = lingerRemote
	} else if p.calls() {
		linger += callTimeout // a client that waits for a command that hangs is not there
	}
	config := cell.Fields{"token": token, "named": named, "linger": linger.Seconds(), "idle": p.Idle.Seconds(), "engine": p.EngineDir, "remote": p.Remote, "fresh": !named}

	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	l := launcher{place: p, interpreter: p.Interpreter, mode: "start", step: "start the kernel host", most: tailSize}
	ready, err := l.run(ctx, config)
	if err == nil && (ready.Text("inc") == "" || ready.Text("sock") == "") {
		err = l.malformed("its answer names no host")
	}
	if err != nil && ctx.Err() != nil && outer.Err() == nil {
		return Info{}, &sdk.Error{
			Code: sdk.CodeUnavailable, Delivery: sdk.NotStarted, Cause: err,
			Message: fmt.Sprintf("%s: start the kernel host: %s did not get it up within %s", p.Label(), p.Interpreter, startTimeout),
			Hint:    "is that a Python 3.8 or later, and does it start? `hermes env check` shows what works there",
		}
	}
	if err != nil {
		return Info{}, err
	}
	return Info{
		Incarnation: ready.Text("inc"), Boot: ready.Text("boot"), PID: int(ready.Int("pid")),
		Dir: ready.Text("dir"), Socket: ready.Text("sock"), Executable: ready.Text("exe"),
		Python: ready.Text("python"), Hostname: ready.Text("hostname"), Journal: ready.Text("journal"),
		Existing: ready.Flag("existing"), Warnings: texts(ready.List("warnings")),
	}, nil
}

func texts(list []any) []string {
	var out []string
	for _, v := range list {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// launcher runs one of the loader's modes that answer with one line.
type launcher struct {
	place       *Place
	interpreter string
	mode        string
	step        string // in messages: what this is
	most        int    // bytes that the answer may have
}

// run runs the loader, a second time with the source should it not be there, and returns the answer. If the plugin ends under it, it is run once more:
// a host that was started, and that nobody will come to, leaves by itself.
func (l launcher) run(ctx context.Context, config cell.Fields) (cell.Fields, error) {
	ready, err := l.complete(ctx, config)
	if errors.Is(err, sdk.ErrCrashed) && ctx.Err() == nil {
		return l.complete(ctx, config)
	}
	return ready, err
}

func (l launcher) complete(ctx context.Context, config cell.Fields) (cell.Fields, error) {
	ready, needSource, err := l.once(ctx, config, nil)
	if needSource {
		ready, needSource, err = l.once(ctx, config, hostSource)
	}
	if needSource {
		return nil, l.malformed("it asks for the source that it was sent")
	}
	return ready, err
}

func (l launcher) once(ctx context.Context, config cell.Fields, source []byte) (ready cell.Fields, needSource bool, err error) {
	stdout, stderr := tailBuffer{most: l.most}, tailBuffer{}
	status, err := l.place.exec(ctx, loaderLaunch(l.interpreter, l.mode, config, source), nil, &stdout, &stderr)
	if err != nil {
		return nil, false, l.explainExec(err)
	}
	for line := range strings.Lines(stdout.String()) {
		answer, ok, err := lockdown.ParseAnswer(line)
		switch {
		case err != nil:
			return nil, false, l.malformed("%w", err)
		case !ok:
			continue
		case answer.Kind == lockdown.NeedSource:
			return nil, true, nil
		case answer.Kind == lockdown.Failed:
			return nil, false, l.place.explainError(l.step, answer.Payload)
		}
		ready, err := cell.DecodeFields(answer.Payload)
		if err != nil {
			return nil, false, l.malformed("%w", err)
		}
		return ready, false, nil
	}
	return nil, false, &sdk.Error{
		Code: sdk.CodeInternal, Delivery: sdk.NotStarted,
		Message: fmt.Sprintf("%s: %s: %s ended (%s) without an answer%s", l.place.Label(), l.step, l.interpreter, status, quoteOutput(stdout.String()+stderr.String())),
		Hint:    "is that a Python 3.8 or later? `hermes env check` shows what works there",
	}
}

// loaderLaunch is the start of the kernel host's program; source is nil if it is believed to be there.
func loaderLaunch(interpreter, mode string, config cell.Fields, source []byte) lockdown.Launch {
	p := lockdown.Program{Name: "hermes-kernel-host", Loader: hostLoader, Sum: hostSum, Source: source}
	return p.Launch(interpreter, mode, cell.AppendValue(nil, config))
}

// exec runs a launch to its end. What is read from more follows on its stdin.
func (p *Place) exec(ctx context.Context, l lockdown.Launch, more io.Reader, stdout, stderr io.Writer) (sdk.ExitStatus, error) {
	stdin := io.Reader(bytes.NewReader(l.Stdin))
	if more != nil {
		stdin = io.MultiReader(stdin, more)
	}
	return p.Env.Exec(ctx, sdk.Command{Argv: l.Argv, Env: l.Env, InheritEnv: true}, sdk.IO{Stdin: stdin, Stdout: stdout, Stderr: stderr})
}

// malformed is the error of an answer that cannot be read.
func (l launcher) malformed(format string, args ...any) error {
	return l.place.malformed(l.step, format, args...)
}

func (p *Place) malformed(step, format string, args ...any) error {
	return sdk.Errorf(sdk.CodeInternal, sdk.NotStarted, "%s: %s: %w: %w", p.Label(), step, cell.ErrMalformed, fmt.Errorf(format, args...))
}

// codeOf is the code that a kernel host names; a host that names none is at fault.
func codeOf(code string) sdk.Code {
	if code == "" {
		return sdk.CodeInternal
	}
	return sdk.Code(code)
}

// explainError is what the far side said in an error line.
func (p *Place) explainError(step string, payload []byte) error {
	msg, err := cell.DecodeFields(payload)
	if err != nil {
		return p.malformed(step, "%w", err)
	}
	return &sdk.Error{
		Code: codeOf(msg.Text("code")), Delivery: sdk.NotStarted,
		Message: fmt.Sprintf("%s: %s: %s", p.Label(), step, msg.Text("msg")), Hint: msg.Text("hint"),
	}
}

func (l launcher) explainExec(err error) error {
	var pe *sdk.Error
	if errors.As(err, &pe) && pe.Code == sdk.CodeNotFound {
		return &sdk.Error{
			Code: sdk.CodeNotFound, Delivery: sdk.NotStarted, Cause: err,
			Message: fmt.Sprintf("%s: %s: there is no %s", l.place.Label(), l.step, l.interpreter),
			Hint:    "install Python 3.8 or later there (Debian: apt-get install python3), or name one with `interpreter` in the configuration; `hermes exec` works without",
		}
	}
	why := sdk.AsError(err, sdk.NotStarted)
	return &sdk.Error{ // whatever became of the launcher, no cell was started
		Code: why.Code, Delivery: sdk.NotStarted, Cause: err,
		Message: fmt.Sprintf("%s: %s: %s", l.place.Label(), l.step, why.Message), Hint: why.Hint,
	}
}

// quoteOutput renders what the far side printed for an error message.
func quoteOutput(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return ""
	}
	const most = 1000
	if len(s) > most {
		s = "… " + strings.ToValidUTF8(s[len(s)-most:], "")
	}
	return "; it printed: " + s
}
