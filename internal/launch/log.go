package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	logQueueSize = 512
	maxLogText   = 8 << 10
	maxLogAttrs  = 32
)

// logQueue hands records to the logger in a goroutine of its own, so that a slow sink never keeps a pipe from being
// read. What does not fit is dropped and counted.
type logQueue struct {
	handler slog.Handler // nil: nobody listens

	mu      sync.Mutex
	closed  bool
	queue   chan slog.Record
	dropped int
	idle    chan struct{} // closed when the goroutine has ended
}

func newLogQueue(logger *slog.Logger, name string) *logQueue {
	if logger == nil {
		return &logQueue{}
	}
	return &logQueue{handler: logger.Handler().WithAttrs([]slog.Attr{slog.String("plugin", name)})}
}

func (q *logQueue) add(level slog.Level, message string, attrs ...slog.Attr) {
	if q.handler == nil || !q.handler.Enabled(context.Background(), level) { //nolint:forbidigo // a record has no caller
		return
	}
	rec := slog.NewRecord(time.Now(), level, message, 0)
	rec.AddAttrs(attrs...)

	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if q.queue == nil {
		q.queue, q.idle = make(chan slog.Record, logQueueSize), make(chan struct{})
		go q.run(q.queue, q.idle) // ended and awaited by close
	}
	if q.dropped > 0 {
		rec.AddAttrs(slog.Int("dropped_before", q.dropped))
	}
	select {
	case q.queue <- rec:
		q.dropped = 0
	default:
		q.dropped++
	}
}

func (q *logQueue) run(queue <-chan slog.Record, idle chan<- struct{}) {
	defer close(idle)
	for rec := range queue {
		_ = q.handler.Handle(context.Background(), rec) //nolint:forbidigo // a record has no caller; a failing log has nobody to tell
	}
}

// close ends the goroutine and waits for what it still has to deliver, but not for ever: the sink may hang.
func (q *logQueue) close() {
	q.mu.Lock()
	queue, idle := q.queue, q.idle
	if !q.closed && queue != nil {
		close(queue)
	}
	q.closed = true
	q.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-time.After(pipeGrace):
	}
}

// record is one hclog record.
type record struct {
	level   slog.Level
	message string
	attrs   []slog.Attr
}

// parseRecord reads a line that hclog wrote as JSON. Everything else is not a record: go-plugin's own parser trusts the
// types of the fields and panics.
func parseRecord(line []byte) (record, bool) {
	if len(line) == 0 || line[0] != '{' {
		return record{}, false
	}
	var fields map[string]any
	if json.Unmarshal(line, &fields) != nil {
		return record{}, false
	}
	message, ok := fields["@message"].(string)
	if !ok {
		return record{}, false
	}
	levelName, ok := fields["@level"].(string)
	if !ok {
		return record{}, false
	}
	level, ok := hclogLevels[strings.ToLower(levelName)]
	if !ok {
		return record{}, false
	}

	rec := record{level: level, message: clip(sanitize([]byte(message)), maxLogText)}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if key == "@message" || key == "@level" || key == "@timestamp" || len(rec.attrs) == maxLogAttrs {
			continue
		}
		name := clip(sanitize([]byte(strings.TrimPrefix(key, "@"))), 100)
		rec.attrs = append(rec.attrs, slog.String(name, clip(sanitize([]byte(text(fields[key]))), maxLogText)))
	}
	return rec, true
}

var hclogLevels = map[string]slog.Level{
	"trace": slog.LevelDebug - 4,
	"debug": slog.LevelDebug,
	"info":  slog.LevelInfo,
	"warn":  slog.LevelWarn,
	"error": slog.LevelError,
}

// text prints a JSON value.
func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// sanitize makes a line from a plugin safe to show: control characters, characters that reorder text, and bytes that
// are not UTF-8 are escaped.
func sanitize(line []byte) string {
	if clean(line) {
		return string(line)
	}
	var b strings.Builder
	for len(line) > 0 {
		r, size := utf8.DecodeRune(line)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, line[0])
		case r == '\t' || !hidden(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		line = line[size:]
	}
	return b.String()
}

// clean says that every byte is printable ASCII or a tab, which is nearly always so.
func clean(line []byte) bool {
	for _, c := range line {
		if (c < ' ' && c != '\t') || c > '~' {
			return false
		}
	}
	return true
}

func hidden(r rune) bool {
	return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Bidi_Control, r)
}

// clip shortens s to about n bytes, at a character's boundary, and says so.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return fmt.Sprintf("%s… (%d more bytes)", s[:n], len(s)-n)
}
