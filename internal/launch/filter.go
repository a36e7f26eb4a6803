package launch

import (
	"bytes"
	"io"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

const (
	maxLine       = 64 << 10 // a longer line is cut there and goes on as another
	tailSize      = 64 << 10 // of stderr, kept for the error
	panicLines    = 100
	maxNoiseLines = 100 // stray lines on stdout that are logged
)

// lines cuts a byte stream into lines. It is a Writer that never fails; line gets each one without its end.
type lines struct {
	line    func(text []byte)
	partial []byte
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			l.grow(p)
			return n, nil
		}
		l.grow(p[:i])
		l.flush(true)
		p = p[i+1:]
	}
	return n, nil
}

// grow adds to the unfinished line and passes on what is too long to wait for its end.
func (l *lines) grow(p []byte) {
	for len(l.partial)+len(p) > maxLine {
		room := maxLine - len(l.partial)
		l.partial = append(l.partial, p[:room]...)
		p = p[room:]
		l.flush(false)
	}
	l.partial = append(l.partial, p...)
}

// flush passes on what there is; an empty line only if its end was seen.
func (l *lines) flush(ended bool) {
	if len(l.partial) > 0 || ended {
		l.line(bytes.TrimSuffix(l.partial, []byte("\r")))
	}
	l.partial = l.partial[:0]
}

// handshake is a go-plugin handshake line.
type handshake struct {
	line    string
	core    int
	version int
	network string
	address string
	proto   string
	cert    string
}

const handshakeRest = `\|([0-9]{1,9})\|(unix|tcp)\|([^|]+)(?:\|([a-z]*)(?:\|([^|]*))?(?:\|[a-z]*)?)?$`

var (
	// A handshake of the one version of go-plugin's own protocol that there is may stand behind something printed without a newline.
	handshakeEnd = regexp.MustCompile(`(1)` + handshakeRest)
	// One of another version only stands alone: after a digit nobody could tell where it begins.
	handshakeWhole = regexp.MustCompile(`^([0-9]{1,3})` + handshakeRest)
)

// parseHandshake reads a line that is a handshake or ends in one; before is what stands in front of it.
func parseHandshake(text []byte) (h handshake, before []byte, ok bool) {
	text = bytes.TrimRight(text, " \t")
	m := handshakeWhole.FindSubmatchIndex(text)
	if m == nil || string(text[m[2]:m[3]]) != "1" {
		if end := handshakeEnd.FindSubmatchIndex(text); end != nil {
			m = end
		}
	}
	if m == nil {
		return handshake{}, nil, false
	}
	group := func(i int) string {
		if m[2*i] < 0 {
			return ""
		}
		return string(text[m[2*i]:m[2*i+1]])
	}
	h = handshake{line: group(0), network: group(3), address: group(4), proto: group(5), cert: group(6)}
	h.core, _ = strconv.Atoi(group(1))    // digits only, too few to overflow
	h.version, _ = strconv.Atoi(group(2)) // likewise
	return h, text[:m[0]], true
}

// stdoutFilter passes the handshake on and logs what else a plugin prints on stdout.
type stdoutFilter struct {
	handshake *lineReader

	mu    sync.Mutex
	split lines
	log   *logQueue
	seen  *handshake
	check func(handshake) bool // called once, with the handshake; false keeps it from go-plugin
	noise int
	first string // the first stray line, for the error
}

func newStdoutFilter(log *logQueue) *stdoutFilter {
	f := &stdoutFilter{handshake: newLineReader(), log: log}
	f.split.line = f.take
	return f
}

func (f *stdoutFilter) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.split.Write(p)
}

// remote is where lines go that come through go-plugin's stdio stream once the plugin serves.
func (f *stdoutFilter) remote() io.Writer {
	var mu sync.Mutex
	split := lines{line: func(text []byte) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.stray(text)
	}}
	return writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return split.Write(p)
	})
}

func (f *stdoutFilter) take(text []byte) {
	if f.seen == nil {
		if h, before, ok := parseHandshake(text); ok {
			if len(before) > 0 {
				f.stray(before)
			}
			f.seen = &h
			if f.check == nil || f.check(h) {
				f.handshake.send(h.line + "\n")
			}
			f.handshake.end()
			return
		}
	}
	f.stray(text)
}

func (f *stdoutFilter) stray(text []byte) {
	if len(bytes.TrimSpace(text)) == 0 {
		return
	}
	f.noise++
	if f.noise == 1 {
		f.first = clip(sanitize(text), 200)
	}
	switch {
	case f.noise <= maxNoiseLines:
		f.log.add(slog.LevelWarn, "plugin printed on stdout", slog.String("line", clip(sanitize(text), maxLogText)))
	case f.noise == maxNoiseLines+1:
		f.log.add(slog.LevelWarn, "plugin goes on printing on stdout; no more of it is logged")
	}
}

// finish ends the stream: there will be no handshake any more.
func (f *stdoutFilter) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.split.flush(false)
	f.handshake.end()
}

// state tells what came so far.
func (f *stdoutFilter) state() (h *handshake, firstStray string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen, f.first
}

// stderrFilter turns a plugin's stderr into log records, and keeps its end and its panic.
type stderrFilter struct {
	mu     sync.Mutex
	split  lines
	log    *logQueue
	kept   []byte
	block  []string
	inside bool // a panic's block
}

func newStderrFilter(log *logQueue) *stderrFilter {
	f := &stderrFilter{log: log}
	f.split.line = f.take
	return f
}

func (f *stderrFilter) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.split.Write(p)
}

// remote is where lines go that come through go-plugin's stdio stream once the plugin serves.
func (f *stderrFilter) remote() io.Writer {
	var mu sync.Mutex
	split := lines{line: func(text []byte) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.take(text)
	}}
	return writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return split.Write(p)
	})
}

func (f *stderrFilter) take(text []byte) {
	clean := sanitize(text)
	f.keep(clean)
	if rec, ok := parseRecord(text); ok {
		f.log.add(rec.level, rec.message, rec.attrs...)
		return
	}
	level := slog.LevelDebug
	if f.collectPanic(clean) {
		level = slog.LevelError // but not its block: the errors that come of it carry that
	}
	if clean != "" {
		f.log.add(level, clip(clean, maxLogText))
	}
}

// keep remembers the last tailSize bytes.
func (f *stderrFilter) keep(line string) {
	f.kept = append(append(f.kept, line...), '\n')
	if len(f.kept) > 2*tailSize {
		f.kept = append(f.kept[:0], f.kept[len(f.kept)-tailSize:]...)
	}
}

// collectPanic reports whether a panic begins with this line.
func (f *stderrFilter) collectPanic(line string) bool {
	begins := strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")
	if begins {
		f.inside, f.block = true, f.block[:0]
	}
	if f.inside && len(f.block) < panicLines {
		f.block = append(f.block, line)
	}
	return begins
}

func (f *stderrFilter) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.split.flush(false)
}

func (f *stderrFilter) tail() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := f.kept
	if len(kept) > tailSize {
		kept = kept[len(kept)-tailSize:]
	}
	return strings.ToValidUTF8(string(kept), "")
}

func (f *stderrFilter) panicBlock() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.TrimRight(strings.Join(f.block, "\n"), "\n")
}

// lineReader is a reader that gets at most one line.
type lineReader struct {
	c    chan string
	once sync.Once
	rest string
}

func newLineReader() *lineReader { return &lineReader{c: make(chan string, 1)} }

func (r *lineReader) send(line string) { r.c <- line }

func (r *lineReader) end() { r.once.Do(func() { close(r.c) }) }

func (r *lineReader) Read(p []byte) (int, error) {
	if r.rest == "" {
		line, ok := <-r.c
		if !ok {
			return 0, io.EOF
		}
		r.rest = line
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Close does nothing: end does it.
func (r *lineReader) Close() error { return nil }

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
