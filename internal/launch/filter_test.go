package launch

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseHandshake(t *testing.T) {
	tests := []struct {
		line, before string
		want         handshake
	}{
		{"1|1|unix|/run/x|grpc|CERT", "", handshake{core: 1, version: 1, network: "unix", address: "/run/x", proto: "grpc", cert: "CERT"}},
		{"1|12|tcp|127.0.0.1:1234|grpc", "", handshake{core: 1, version: 12, network: "tcp", address: "127.0.0.1:1234", proto: "grpc"}},
		{"1|1|unix|/run/x|grpc|CERT|true", "", handshake{core: 1, version: 1, network: "unix", address: "/run/x", proto: "grpc", cert: "CERT"}},
		{"1|1|unix|/run/x", "", handshake{core: 1, version: 1, network: "unix", address: "/run/x"}},
		{"2|1|unix|/run/x|grpc|CERT", "", handshake{core: 2, version: 1, network: "unix", address: "/run/x", proto: "grpc", cert: "CERT"}},
		{"ready in 421|1|unix|/run/x|grpc|CERT  ", "ready in 42", handshake{core: 1, version: 1, network: "unix", address: "/run/x", proto: "grpc", cert: "CERT"}},
	}
	for _, tt := range tests {
		h, before, ok := parseHandshake([]byte(tt.line))
		h.line = ""
		if !ok || h != tt.want || string(before) != tt.before {
			t.Errorf("%q: %+v behind %q, %v; want %+v behind %q", tt.line, h, before, ok, tt.want, tt.before)
		}
	}
	for _, line := range []string{"", "a|b|c|d", "1|1|unix", "1|x|unix|/run/x|grpc", "1|1|udp|/run/x|grpc", "1|9999999999|unix|/run/x|grpc"} {
		if h, _, ok := parseHandshake([]byte(line)); ok {
			t.Errorf("%q is taken for a handshake: %+v", line, h)
		}
	}
}

func FuzzStdout(f *testing.F) {
	f.Add([]byte("noise\n1|1|unix|/run/x|grpc|CERT\nmore"), 3)
	f.Add([]byte("42 1|1|tcp|x|grpc"), 1)
	f.Fuzz(func(t *testing.T, input []byte, step int) {
		filter := newStdoutFilter(newLogQueue(nil, ""))
		writeInSteps(filter, input, step)
		filter.finish()
		line, err := io.ReadAll(filter.handshake)
		if err != nil || bytes.Count(line, []byte("\n")) > 1 {
			t.Errorf("go-plugin gets %q, %v; want at most one line", line, err)
		}
		if seen, _ := filter.state(); (seen != nil) != (len(line) > 0) {
			t.Errorf("handshake %+v, line %q", seen, line)
		}
	})
}

func FuzzStderr(f *testing.F) {
	f.Add([]byte(`{"@message": 1}`+"\n"), 5)
	f.Add([]byte(`{"@level":"info","@message":"hi","@timestamp":7,"k":{"a":[1]}}`+"\r\n"), 100)
	f.Add([]byte("panic: boom\n\ngoroutine 1 [running]:\n\x1b[31m\xff\n"), 1)
	f.Fuzz(func(t *testing.T, input []byte, step int) {
		var log bytes.Buffer
		queue := newLogQueue(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug - 4})), "fuzz")
		filter := newStderrFilter(queue)
		writeInSteps(filter, input, step)
		filter.finish()
		queue.close()
		for _, s := range []string{filter.tail(), filter.panicBlock()} {
			if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r != '\n' && r != '\t' && hidden(r) }) {
				t.Errorf("%q holds what may do harm on a terminal", s)
			}
		}
		if len(filter.tail()) > tailSize || strings.Count(filter.panicBlock(), "\n") >= panicLines {
			t.Errorf("kept %d bytes and %d lines of panic", len(filter.tail()), strings.Count(filter.panicBlock(), "\n")+1)
		}
	})
}

func writeInSteps(w io.Writer, p []byte, step int) {
	step = max(step%64, 1)
	for chunk := range slices.Chunk(p, step) {
		_, _ = w.Write(chunk)
	}
}

func TestLongLinesAreCut(t *testing.T) {
	var got []int
	split := lines{line: func(text []byte) { got = append(got, len(text)) }}
	_, _ = split.Write(bytes.Repeat([]byte("x"), 2*maxLine+10))
	_, _ = split.Write([]byte("y\nz"))
	split.flush(false)
	if want := []int{maxLine, maxLine, 11, 1}; !slices.Equal(got, want) {
		t.Errorf("lines of %v bytes; want %v", got, want)
	}
}

func TestTailAndPanicAreBounded(t *testing.T) {
	filter := newStderrFilter(newLogQueue(nil, ""))
	for i := range 5000 {
		_, _ = fmt.Fprintf(filter, "line %d of something that goes on and on\n", i)
	}
	_, _ = fmt.Fprintln(filter, "panic: first")
	_, _ = fmt.Fprintln(filter, "fatal error: all goroutines are asleep - deadlock!")
	for i := range 500 {
		_, _ = fmt.Fprintf(filter, "goroutine %d [running]:\n", i)
	}
	filter.finish()
	if tail := filter.tail(); len(tail) > tailSize || len(tail) < tailSize-1 || !strings.HasSuffix(tail, "goroutine 499 [running]:\n") {
		t.Errorf("%d bytes, ending in %q", len(tail), tail[max(0, len(tail)-40):])
	}
	if block := strings.Split(filter.panicBlock(), "\n"); len(block) != panicLines || !strings.HasPrefix(block[0], "fatal error: ") {
		t.Errorf("%d lines, the first %q", len(block), block[0])
	}
}

func TestParseRecord(t *testing.T) {
	rec, ok := parseRecord([]byte(`{"@level":"trace","@message":"m\u001b[2J","@module":"backend","n":1.5,"list":["a",{"b":null}]}`))
	if !ok || rec.level != slog.LevelDebug-4 || rec.message != `m\x1b[2J` || fmt.Sprint(rec.attrs) != `[module=backend list=["a",{"b":null}] n=1.5]` {
		t.Errorf("got %+v, %v", rec, ok)
	}
	for _, line := range []string{`{"@message": 1}`, `{"@message":"m"}`, `{"@message":"m","@level":7}`, `{"@message":"m","@level":"loud"}`, `[]`, `{`, `null`, ``} {
		if rec, ok := parseRecord([]byte(line)); ok {
			t.Errorf("%q is taken for a record: %+v", line, rec)
		}
	}
}

func TestSanitize(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext":        "plain\ttext",
		"grün 日本":            "grün 日本",
		"\x1b[31mred":        `\x1b[31mred`,
		"a\x00b\x7f":         `a\x00b\x7f`,
		"bad \xff\xfe":       `bad \xff\xfe`,
		"a\u202eb":           `a\u202eb`,
		"c1 \u009b31m":       `c1 \u009b31m`,
		"one\ntwo\rthree":    `one\ntwo\rthree`,
		"replacement \ufffd": "replacement \ufffd",
	} {
		if got := sanitize([]byte(in)); got != want {
			t.Errorf("%q: %q; want %q", in, got, want)
		}
	}
}

func TestStrayLinesAreCapped(t *testing.T) {
	var log logBuffer
	queue := newLogQueue(log.logger(), "x")
	filter := newStdoutFilter(queue)
	for range 3 * maxNoiseLines {
		_, _ = fmt.Fprintln(filter, "noise")
	}
	queue.close()
	if n := strings.Count(log.String(), "\n"); n != maxNoiseLines+1 {
		t.Errorf("%d records; want %d and a last word", n, maxNoiseLines)
	}
}

func TestMergeEnv(t *testing.T) {
	got := mergeEnv([]string{"A=1", "B=2", "=C:=x"}, []string{"A=3", "nothing", "C=a\x00b"}, []string{"D="})
	if want := []string{"A=3", "B=2", "D="}; !slices.Equal(got, want) {
		t.Errorf("got %q; want %q", got, want)
	}
}

func TestAllowed(t *testing.T) {
	got := allowed([]string{"PATH=/bin", "LC_TIME=C", "AWS_SECRET_ACCESS_KEY=x", "PLUGIN_MIN_PORT=1", "LD_PRELOAD=x", "junk"})
	if want := []string{"PATH=/bin", "LC_TIME=C"}; !slices.Equal(got, want) {
		t.Errorf("got %q; want %q", got, want)
	}
}
