package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// printed plays events and a result to the printer that an app with the given output form has.
func printed(t *testing.T, form string, req core.Request, events []cell.Event, res cell.Result) (stdout, stderr string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close() //nolint:errcheck // a test
	var diag bytes.Buffer
	a := &app{stdout: out, stderr: &diag, json: form == "json", events: form == "events"}
	p := a.newPrinter()
	for _, ev := range events {
		if err := p.event(ev); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.result(req, res); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(data), diag.String()
}

func TestTextPrinter(t *testing.T) {
	value := "'v'"
	out := func(stream, data string) cell.Event {
		return cell.Event{Kind: cell.EventOutput, Stream: stream, Data: []byte(data)}
	}
	raised := &cell.CellError{Type: "ValueError", Message: "m", Traceback: "Traceback\nValueError: m\n"}
	for _, tt := range []struct {
		name           string
		req            core.Request
		events         []cell.Event
		res            cell.Result
		stdout, stderr string
	}{
		{
			name:   "value after a whole line",
			events: []cell.Event{out("stdout", "a\n")},
			res:    cell.Result{Cell: cell.Cell{Outcome: cell.OutcomeOK, Value: &value}},
			stdout: "a\n'v'\n",
		},
		{
			name:   "value after a begun line",
			events: []cell.Event{out("stdout", "a"), out("stderr", "e")},
			res:    cell.Result{Cell: cell.Cell{Outcome: cell.OutcomeOK, Value: &value}},
			stdout: "a\n'v'\n", stderr: "e",
		},
		{
			name:   "bytes as they are",
			events: []cell.Event{out("stdout", "\xff\x00")},
			res:    cell.Result{Cell: cell.Cell{Outcome: cell.OutcomeOK}},
			stdout: "\xff\x00",
		},
		{
			name:   "traceback after a begun line",
			events: []cell.Event{out("stderr", "e")},
			res:    cell.Result{Cell: cell.Cell{Outcome: cell.OutcomeError, Error: raised}},
			stderr: "e\nTraceback\nValueError: m\n",
		},
		{
			name: "a shell's status needs no words",
			req:  core.Request{Language: cell.Bash},
			res:  cell.Result{Cell: cell.Cell{Outcome: cell.OutcomeError, Error: &cell.CellError{Type: "status", Message: "7"}}},
		},
		{
			name: "gap and note",
			events: []cell.Event{
				{Kind: cell.EventGap, Stream: "stdout", Offset: 10, Omitted: 5}, {Kind: cell.EventNote, Text: "n"},
			},
			res:    cell.Result{Cell: cell.Cell{Outcome: cell.OutcomeOK}},
			stderr: "hermes: note: 5 bytes of stdout, from offset 10, were not passed on: this program was read too slowly\nhermes: note: n\n",
		},
		{
			name:   "timeout",
			req:    core.Request{Timeout: time.Second},
			res:    cell.Result{Cell: cell.Cell{Outcome: cell.OutcomeTimeout}},
			stderr: "hermes: the cell was stopped after 1s (--timeout)\n",
		},
		{
			name:   "lost by a signal",
			res:    cell.Result{Cell: cell.Cell{Outcome: cell.OutcomeLost, Signal: "KILL"}},
			stderr: "hermes: the cell was lost: its kernel ended before it did (killed by SIGKILL); what it had done by then stays done\n",
		},
		{
			name:   "refused",
			res:    cell.Result{Cell: cell.Cell{Outcome: cell.OutcomeRefused, Reason: "conflict"}},
			stderr: "hermes: the cell was refused (conflict); it did not run\n",
		},
		{
			name:   "state lost",
			res:    cell.Result{Cell: cell.Cell{Outcome: cell.OutcomeOK}, Kernel: cell.Kernel{StateLost: true, StateLostReason: "died"}},
			stderr: "hermes: note: the variables of earlier cells are gone (died); this cell ran in a fresh kernel\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr := printed(t, "text", tt.req, tt.events, tt.res)
			if diff := cmp.Diff(tt.stdout, stdout); diff != "" {
				t.Errorf("stdout (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.stderr, stderr); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
		})
	}
}

func TestJSONPrinters(t *testing.T) {
	res := cell.Result{Cell: cell.Cell{ID: "c", Outcome: cell.OutcomeUnknown, Stdout: "<&>"}, Kernel: cell.Kernel{Language: cell.Python}}
	events := []cell.Event{{Kind: cell.EventOutput, Cell: "c", Stream: "stdout", Data: []byte("<&>"), Text: "<&>"}}

	stdout, _ := printed(t, "json", core.Request{}, events, res)
	if err := checkJSON("result", stdout); err != nil {
		t.Error(err)
	}
	if !strings.Contains(stdout, `"stdout":"<&>"`) {
		t.Errorf("%s: want < & and > as they are", stdout)
	}

	// An engine that could tell no end gave no end event either; the line is there all the same, and once.
	for _, seen := range [][]cell.Event{events, append(events, cell.Event{Kind: cell.EventEnd, Cell: "c", Result: &res})} {
		stdout, _ := printed(t, "events", core.Request{}, seen, res)
		lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
		if len(lines) != 2 || !strings.Contains(lines[1], `{"event":"end"`) {
			t.Errorf("events printed: %q", lines)
		}
		for _, line := range lines {
			if err := checkLine("event", line); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestFailureSchema shows that every code and delivery is described, and in the words of the contract.
func TestFailureSchema(t *testing.T) {
	for _, code := range []sdk.Code{
		sdk.CodeInvalid, sdk.CodeNotFound, sdk.CodePermission, sdk.CodeUnavailable, sdk.CodeUnsupported, sdk.CodeTimeout,
		sdk.CodeCanceled, sdk.CodeExhausted, sdk.CodeConflict, sdk.CodeClosed, sdk.CodeUntrusted, sdk.CodeIncompatible,
		sdk.CodeCrashed, sdk.CodeInternal,
	} {
		for _, d := range []sdk.Delivery{sdk.NotStarted, sdk.MayHaveRun, sdk.Ran} {
			err := &sdk.Error{Code: code, Delivery: d, Message: "m", Hint: "h"}
			line, _ := json.Marshal(failureDoc{Failure: failureOf(err)})
			if err := checkLine("failure_document", string(line)); err != nil {
				t.Error(err)
			}
		}
	}
	line, _ := json.Marshal(failureDoc{Failure: failureOf(errors.New("x"))})
	if err := checkLine("failure_document", string(line)); err != nil {
		t.Error(err)
	}
}

// TestSchemaRefuses is the control of the tests that use the schema: it does refuse what is wrong.
func TestSchemaRefuses(t *testing.T) {
	for definition, line := range map[string]string{
		"failure_document": `{"failure":{"code":"nonsense","delivery":"ran","message":"m","hint":""}}`,
		"version":          `{"version":"1","revision":"","go":"","platform":"","more":1}`,
		"kernels":          `[{"id":"x"}]`,
		"nothing":          `{}`,
	} {
		if checkLine(definition, line) == nil {
			t.Errorf("%s passes as %s", line, definition)
		}
	}
}

// TestExitCodesDocumented wants each status of the help text in the page, and the other way round.
func TestExitCodesDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []string{"0", "1", "n", "2", "121", "124", "125", "130"} {
		if !strings.Contains(exitCodes, "\n  "+status+" ") {
			t.Errorf("hermes help exit-codes does not explain %s", status)
		}
		if !strings.Contains(string(page), "\n| "+status+" |") {
			t.Errorf("docs/exit-codes.md does not explain %s", status)
		}
	}
}
