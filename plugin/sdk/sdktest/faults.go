package sdktest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Step is a kind of remote operation, as a Faults counts them.
type Step string

// The steps. What passes is what Fault.Match is looked for in.
const (
	StepOpen    Step = "open"    // Backend.Open; what passes is the target
	StepExec    Step = "exec"    // Environment.Exec; the arguments, with NUL between them
	StepStdin   Step = "stdin"   // bytes towards a command
	StepStdout  Step = "stdout"  // bytes from a command
	StepDial    Step = "dial"    // Dialer.Dial; the path
	StepSend    Step = "send"    // bytes towards a socket that was dialled
	StepReceive Step = "receive" // bytes from it
	StepPut     Step = "put"     // Files.Put; the path
	StepGet     Step = "get"     // Files.Get; the path
	StepClose   Step = "close"   // Environment.Close; nothing
)

// Effect is what goes wrong.
type Effect string

// The effects. A connection that is cut is closed for both ends; a command that is cut is stopped, and its Exec fails with CodeUnavailable. An
// environment is freed by Close whatever its caller is told.
const (
	// FailBefore: the step is not done. Of a stream the chunk that completes the match does not pass, and the stream is cut.
	FailBefore Effect = "before"
	// FailAfter: the step is done and its answer is lost: the call runs to its end and fails with MayHaveRun. What goes towards a command or
	// socket passes, and the stream is cut when the first byte comes back; of what comes from there the chunk with the match passes, then the stream is cut.
	FailAfter Effect = "after"
	// Hang: the step is not done and nothing is answered until ctx is done, the environment is closed, or either end closes the connection. On a
	// stream nothing passes in either direction.
	Hang Effect = "hang"
	// Rubbish: the step is done, its answer is nonsense: bytes 0xff in place of the chunk that comes from the far side (the one with the match, or
	// the first one after a match in what goes there), an exit status that is not the command's, a file of other bytes, no environment, no connection.
	Rubbish Effect = "rubbish"
	// Cut: a stream is cut when At bytes have passed.
	Cut Effect = "cut"
)

// Fault says which step goes wrong, and how.
type Fault struct {
	Step Step   `json:"step"`
	Do   Effect `json:"do"`
	// Arg must be one of the command's arguments (exec, stdin, stdout), the path (dial, send, receive, put, get) or the target. Empty: any.
	Arg string `json:"arg,omitempty"`
	// Match must occur in what passes. In a stream each occurrence counts, also one that comes in several chunks: what came of it in the chunks
	// before has passed by then, its last byte has not. Empty: each call counts, and each stream once, at its first byte. JSON has it in base64.
	Match []byte `json:"match,omitempty"`
	Skip  int    `json:"skip,omitempty"`  // so many occurrences go well first
	Times int    `json:"times,omitempty"` // how often it happens; 0: once, negative: always
	At    int64  `json:"at,omitempty"`    // of Cut: bytes from the beginning of the match, or of the stream
}

var (
	unarySteps  = []Step{StepOpen, StepExec, StepDial, StepPut, StepGet, StepClose}
	streamSteps = []Step{StepStdin, StepStdout, StepSend, StepReceive}
	effects     = []Effect{FailBefore, FailAfter, Hang, Rubbish, Cut}
)

func (f Fault) check() error {
	stream := slices.Contains(streamSteps, f.Step)
	switch {
	case !stream && !slices.Contains(unarySteps, f.Step):
		return fmt.Errorf("there is no step %q", f.Step)
	case !slices.Contains(effects, f.Do):
		return fmt.Errorf("there is no effect %q", f.Do)
	case f.Do == Cut && !stream:
		return fmt.Errorf("step %q is no stream and cannot be cut", f.Step)
	case f.Skip < 0 || f.At < 0:
		return errors.New("a negative number")
	}
	return nil
}

// Record is a step that happened: a call, or one chunk of a stream.
type Record struct {
	Step  Step     `json:"step"`
	Call  int      `json:"call"`            // the number of the call; a chunk has that of the exec or dial it belongs to
	Argv  []string `json:"argv,omitempty"`  // of the command; else the path or the target
	Bytes int      `json:"bytes,omitempty"` // of the chunk
	Data  []byte   `json:"data,omitempty"`  // the chunk itself, if data are kept
	Fault int      `json:"fault,omitempty"` // the number of the fault that hit it, counted from 1
}

// Faults makes chosen steps of the backends that it wraps go wrong, and records the steps. Its methods may be called concurrently, also while
// the backends are in use.
type Faults struct {
	mu      sync.Mutex
	faults  []faultState
	bad     error // a fault that makes no sense; Open says so
	records []Record
	calls   int
	data    bool
	log     string // a file to which records are appended
}

// faultState is a fault and what is left of it.
type faultState struct {
	Fault

	skip int
	left int // negative: always
}

// NewFaults returns a Faults with these faults. Without any it only records.
func NewFaults(faults ...Fault) *Faults {
	f := &Faults{}
	f.Set(faults...)
	return f
}

// Set replaces the faults. What is counted for them begins at this moment; in streams that are open, too.
func (f *Faults) Set(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults, f.bad = nil, nil
	for i, one := range faults {
		if err := one.check(); err != nil && f.bad == nil {
			f.bad = sdk.Errorf(sdk.CodeInvalid, sdk.NotStarted, "fault %d: %w", i+1, err)
		}
		one.Match = bytes.Clone(one.Match)
		state := faultState{Fault: one, skip: one.Skip, left: one.Times}
		if state.left == 0 {
			state.left = 1
		}
		f.faults = append(f.faults, state)
	}
}

// KeepData has the records of streams carry their bytes from now on. Those may hold secrets.
func (f *Faults) KeepData() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = true
}

// Records returns the steps that have happened so far, in order.
func (f *Faults) Records() []Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.records)
}

// Fired returns how often a fault has hit.
func (f *Faults) Fired() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, r := range f.records {
		if r.Fault > 0 {
			n++
		}
	}
	return n
}

// step records a call and returns its number and what is to become of it; an empty effect is none.
func (f *Faults) step(step Step, argv ...string) (call int, do Effect) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	r := Record{Step: step, Call: f.calls, Argv: argv}
	text := []byte(strings.Join(argv, "\x00"))
	for i := range f.faults {
		s := &f.faults[i]
		if s.fits(step, argv) && bytes.Contains(text, s.Match) && s.happens() && r.Fault == 0 {
			r.Fault, do = i+1, s.Do
		}
	}
	f.record(r)
	return f.calls, do
}

// fits reports whether the fault is about this kind of step.
func (s *faultState) fits(step Step, argv []string) bool {
	return s.left != 0 && s.Step == step && (s.Arg == "" || slices.Contains(argv, s.Arg))
}

// happens counts one occurrence and reports whether the fault hits it.
func (s *faultState) happens() bool {
	if s.skip > 0 {
		s.skip--
		return false
	}
	if s.left > 0 {
		s.left--
	}
	return true
}

// record keeps r and writes it to the log, with mu held.
func (f *Faults) record(r Record) {
	f.records = append(f.records, r)
	if f.log == "" {
		return
	}
	if err := appendRecord(f.log, r); err != nil {
		sdk.Logger().Error("the log of steps is not complete", "error", err.Error())
	}
}

func appendRecord(path string, r Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}

// ReadRecords reads the log of a backend that Faulty made. One that is not there yet has no records.
func ReadRecords(path string) ([]Record, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Record
	for line := range bytes.Lines(data) {
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			return out, fmt.Errorf("%s: line %d: %w", path, len(out)+1, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// resume has the log at path continued: the faults that have hit according to it count as having hit.
func (f *Faults) resume(path string) error {
	before, err := ReadRecords(path)
	if err != nil {
		return sdk.Errorf(sdk.AsError(err, sdk.NotStarted).Code, sdk.NotStarted, "the log of steps: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = path
	for _, r := range before {
		f.calls = max(f.calls, r.Call)
		if r.Fault > 0 && r.Fault <= len(f.faults) {
			s := &f.faults[r.Fault-1]
			s.skip = 0
			s.happens()
		}
	}
	return nil
}

func (f *Faults) invalid() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bad
}

// flow is one direction of a stream as faults see it. The goroutine that carries the bytes uses it.
type flow struct {
	faults *Faults
	step   Step
	call   int
	argv   []string
	begun  bool
	tail   []byte // the last bytes, in which a match may have begun
	left   int64  // how many bytes may pass before the cut; negative: no cut
}

func newFlow(f *Faults, step Step, call int, argv []string) flow {
	return flow{faults: f, step: step, call: call, argv: argv, left: -1}
}

// next records the chunk p and returns what is to become of it. Cut is told in w.left.
func (w *flow) next(p []byte) (do Effect) {
	if len(p) == 0 {
		return ""
	}
	f := w.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	r := Record{Step: w.step, Call: w.call, Argv: w.argv, Bytes: len(p)}
	if f.data {
		r.Data = bytes.Clone(p)
	}
	longest := 0
	joined := append(w.tail, p...)
	for i := range f.faults {
		s := &f.faults[i]
		longest = max(longest, len(s.Match))
		if !s.fits(w.step, w.argv) {
			continue
		}
		if at, hit := w.occurs(s, joined, len(joined)-len(p)); hit && r.Fault == 0 {
			r.Fault, do = i+1, s.Do
			if do == Cut {
				w.left = max(0, int64(at)+s.At)
			}
		}
	}
	w.begun = true
	w.tail = bytes.Clone(joined[max(0, len(joined)-max(0, longest-1)):])
	f.record(r)
	return do
}

// occurs counts the occurrences in a chunk, which is joined[old:], and reports at which offset of the chunk the fault hits.
func (w *flow) occurs(s *faultState, joined []byte, old int) (at int, hit bool) {
	if len(s.Match) == 0 {
		return 0, !w.begun && s.happens()
	}
	for from := max(0, old-len(s.Match)+1); ; {
		i := bytes.Index(joined[from:], s.Match)
		if i < 0 {
			return 0, false
		}
		if s.happens() {
			return from + i - old, true
		}
		from += i + 1
	}
}
