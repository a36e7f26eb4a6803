// Package cell defines the words of Hermes: what goes into a cell, what comes out of it, and the frames that carry both.
package cell

// Language is a language of cells.
type Language string

// The languages.
const (
	Python Language = "python"
	Bash   Language = "bash"
)

// Outcome says how a cell ended.
type Outcome string

// The outcomes. OutcomeLost: it started, its end was not recorded, its effects may be partial or complete; said only after its process tree is gone.
// OutcomeUnknown: it may or may not have run, and nothing left can tell. OutcomeRefused: it certainly did not run.
const (
	OutcomeOK          Outcome = "ok"
	OutcomeError       Outcome = "error"
	OutcomeExit        Outcome = "exit"
	OutcomeTimeout     Outcome = "timeout"
	OutcomeInterrupted Outcome = "interrupted"
	OutcomeLost        Outcome = "lost"
	OutcomeUnknown     Outcome = "unknown"
	OutcomeRefused     Outcome = "refused"
)

// Result is a finished cell and the kernel that ran it. Its JSON form is the one that `hermes run --json` prints.
type Result struct {
	Cell   Cell   `json:"cell"`
	Kernel Kernel `json:"kernel"`
}

// Cell is what became of one cell. Stdout and Stderr hold at most 50 kB, head and tail; Spill names the file with more.
type Cell struct {
	ID            string     `json:"id"`
	Outcome       Outcome    `json:"outcome"`
	Reason        string     `json:"reason,omitempty"` // why it was refused or lost, in a word or a sentence
	Stdout        string     `json:"stdout"`           // UTF-8; bytes that are none became U+FFFD
	Stderr        string     `json:"stderr"`           // likewise; it includes no traceback
	Value         *string    `json:"value"`            // of a last expression that is not None, as repr prints it; nil: none
	Error         *CellError `json:"error"`            // nil: none
	ExitCode      *int       `json:"exit_code"`        // of a shell cell, of sys.exit and os._exit; nil: none
	Signal        string     `json:"signal"`           // that killed the kernel, "SIGKILL"; empty: none
	DurationMS    float64    `json:"duration_ms"`      // from its start to its end in the kernel host
	StdoutBytes   int64      `json:"stdout_bytes"`     // that the cell wrote
	StdoutOmitted int64      `json:"stdout_omitted"`   // bytes of them that Stdout leaves out
	StderrBytes   int64      `json:"stderr_bytes"`
	StderrOmitted int64      `json:"stderr_omitted"`
	Spill         *Spill     `json:"spill"`      // nil: Stdout and Stderr are whole, or could not be kept
	ToolCalls     int        `json:"tool_calls"` // that were dispatched
}

// Spill names the owner-only files that hold a cell's output, up to 64 MiB of each stream.
type Spill struct {
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
}

// CellError is an exception (or, for a shell cell, a status) that ended a cell.
type CellError struct { //nolint:revive // code that embeds core.CellError must find the name
	Type      string `json:"type"` // the class, or ExitStatus
	Message   string `json:"message"`
	Traceback string `json:"traceback"` // as Python prints it; empty for a shell cell
}

// Kernel is the kernel that ran a cell, as of that cell.
type Kernel struct {
	ID              string   `json:"id"`
	Session         string   `json:"session"`     // empty: a kernel of the engine
	Environment     string   `json:"environment"` // as it was asked for
	Host            string   `json:"host"`        // name of the machine
	Language        Language `json:"language"`
	Incarnation     string   `json:"incarnation"`       // the life of the kernel host
	Reused          bool     `json:"reused"`            // it was there before this cell
	StateLost       bool     `json:"state_lost"`        // variables of the owner's earlier cells are gone
	StateLostReason string   `json:"state_lost_reason"` // died, timeout, evicted, idle, fallback, recreated, restarted
	StateReset      bool     `json:"state_reset"`       // they are gone because Request.Reset asked for it
	Cells           int      `json:"cells"`             // that it has run, this one included
	Fallback        bool     `json:"fallback"`          // no kernel could be had: the cell ran alone
}

// EventKind says what an Event tells.
type EventKind string

// The kinds of event.
const (
	EventAccepted EventKind = "accepted" // the cell has its id and place in the kernel's queue
	EventStarted  EventKind = "started"  // its code was handed to the kernel
	EventOutput   EventKind = "output"   // Data from Stream, Offset bytes into it
	EventGap      EventKind = "gap"      // bytes Offset to Offset+Omitted of Stream were not delivered live
	EventNote     EventKind = "note"     // Text for a person
	EventEnd      EventKind = "end"      // the Result is complete
)

// Event is something that happened to a cell while it ran.
type Event struct {
	Kind    EventKind `json:"event"`
	Cell    string    `json:"cell"`
	Stream  string    `json:"stream,omitempty"` // "stdout" or "stderr"
	Offset  int64     `json:"offset,omitempty"`
	Data    []byte    `json:"-"`              // as it came, valid until emit returns; the JSON form is Text, with U+FFFD for what is not UTF-8
	Text    string    `json:"text,omitempty"` // whole characters only: a character cut between two events is in the later one
	Omitted int64     `json:"omitted,omitempty"`
	Result  *Result   `json:"result,omitempty"`
}
