package main

import (
	"regexp"
	"strings"

	"github.com/hermes-framework/hermes/core/cell"
)

// input is what has been typed since the last cell.
type input int

// The states of an input.
const (
	inputComplete input = iota // a cell
	inputBlock                 // an indented block: a blank line, or one that is not indented, ends it
	inputOpen                  // something is open: a bracket, a quote, an if without its fi
)

// inputState guesses, as codeop does, whether text is a cell or its beginning. A wrong guess costs a key press: text that is
// complete and wrong goes to the interpreter, which says so better.
func inputState(language cell.Language, text string) input {
	if language == cell.Bash {
		return bashState(text)
	}

	return pythonState(text)
}

// blockKeyword begins a statement that has a block; what else ends with a colon has one too.
var blockKeyword = regexp.MustCompile(`^(if|for|while|def|class|with|try|async)\b|^@`)

// blockClause goes on with the statement above it.
var blockClause = regexp.MustCompile(`^(else|elif|except|finally)\b`)

// pythonState looks at logical lines: physical ones joined over brackets, triple quotes and backslashes.
func pythonState(text string) input {
	var scan pythonScanner
	block := false
	lines := strings.Split(text, "\n")
	for _, line := range lines {
		fresh := !scan.open()
		scan.line(line)
		code := strings.TrimSpace(scan.code.String())
		if fresh && blockKeyword.MatchString(strings.TrimLeft(line, " \t")) {
			block = true
		}
		if !scan.open() && strings.HasSuffix(code, ":") {
			block = true
		}
	}
	switch {
	case scan.open():
		return inputOpen
	case block && strings.TrimSpace(lines[len(lines)-1]) != "":
		return inputBlock
	}

	return inputComplete
}

// pythonScanner follows brackets and strings through lines.
type pythonScanner struct {
	depth     int
	triple    string // the quotes that end the string that is open
	continued bool   // the line ended with a backslash
	code      strings.Builder
}

func (s *pythonScanner) open() bool { return s.depth > 0 || s.triple != "" || s.continued }

// line reads one physical line; code is then what is neither comment nor string in it.
func (s *pythonScanner) line(line string) {
	s.continued = false
	s.code.Reset()
	for i := 0; i < len(line); {
		if s.triple != "" {
			i += s.inTriple(line[i:])
			continue
		}
		switch c := line[i]; c {
		case '#':
			return
		case '\\':
			s.continued = i == len(line)-1
		case '(', '[', '{':
			s.depth++
		case ')', ']', '}':
			s.depth = max(0, s.depth-1)
		case '\'', '"':
			s.code.WriteByte(c)
			i += s.quote(line[i:])
			continue
		}
		s.code.WriteByte(line[i])
		i++
	}
}

// inTriple skips to the end of a triple-quoted string, or of the line, and returns how far that is.
func (s *pythonScanner) inTriple(rest string) int {
	for i := 0; i < len(rest); i++ {
		if rest[i] == '\\' {
			i++
			continue
		}
		if strings.HasPrefix(rest[i:], s.triple) {
			s.triple = ""
			return i + 3
		}
	}

	return len(rest)
}

// quote skips a string that begins here and returns its length; a triple-quoted one only begins.
func (s *pythonScanner) quote(rest string) int {
	if three := strings.Repeat(rest[:1], 3); strings.HasPrefix(rest, three) {
		s.triple = three
		return 3
	}
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			if i == len(rest)-1 {
				s.continued = true
			}
			i++
		case rest[0]:
			return i + 1
		}
	}

	return len(rest)
}

// continuesBlock says whether line, typed while a block is open, belongs to it.
func continuesBlock(text, line string) bool {
	if line == "" || strings.IndexByte(" \t#", line[0]) >= 0 {
		return true
	}
	lines := strings.Split(text, "\n")
	if strings.HasPrefix(lines[len(lines)-1], "@") {
		return true
	}

	return blockClause.MatchString(line)
}

// bashState follows quotes, brackets, here-documents and the words that open and close a compound command.
func bashState(text string) input {
	s := bashScanner{command: true}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if len(s.heredocs) > 0 {
			if strings.TrimLeft(line, "\t") == s.heredocs[0] {
				s.heredocs = s.heredocs[1:]
			}
			continue
		}
		s.continued = false
		s.line(line)
		if i == len(lines)-1 && s.open() {
			return inputOpen
		}
	}
	if s.open() {
		return inputOpen
	}

	return inputComplete
}

type bashScanner struct {
	quote     byte
	parens    int
	depth     int  // compound commands that want their fi, done or }
	cases     int  // those that want their esac
	command   bool // a command may begin here
	function  bool // the next word names a function
	continued bool // the line ended with a backslash or an operator that wants more
	heredocs  []string
}

func (s *bashScanner) open() bool {
	return s.quote != 0 || s.parens > 0 || s.depth > 0 || s.cases > 0 || s.continued || len(s.heredocs) > 0
}

var (
	heredocStart = regexp.MustCompile(`^<<-?[ \t]*(?:'([^']+)'|"([^"]+)"|\\?([A-Za-z0-9_]+))`)
	bashOpens    = map[string]bool{"if": true, "for": true, "while": true, "until": true, "select": true, "{": true}
	bashCloses   = map[string]bool{"fi": true, "done": true, "}": true}
	bashLeads    = map[string]bool{"then": true, "do": true, "else": true, "elif": true, "!": true, "time": true}
)

func (s *bashScanner) line(line string) {
	if s.quote == 0 {
		s.command = true
	}
	for i := 0; i < len(line); {
		i += s.step(line, i)
	}
}

// step reads one token of line at i and returns its length.
func (s *bashScanner) step(line string, i int) int {
	c, rest := line[i], line[i:]
	if s.quote != 0 {
		if c == '\\' && s.quote == '"' {
			return 2
		}
		if c == s.quote {
			s.quote = 0
		}
		return 1
	}
	switch {
	case c == '\\':
		s.continued = i == len(line)-1
		return 2
	case c == '\'' || c == '"':
		s.quote, s.command = c, false
		return 1
	case c == '#' && (i == 0 || strings.IndexByte(" \t;(", line[i-1]) >= 0):
		return len(rest)
	case c == ' ' || c == '\t':
		return 1
	case strings.HasPrefix(rest, "<<<"):
		return 3
	case s.parens < 2 && heredocStart.MatchString(rest): // in (( )) it is a shift
		m := heredocStart.FindStringSubmatch(rest)
		s.heredocs = append(s.heredocs, m[1]+m[2]+m[3])
		return len(m[0])
	}

	return s.operator(rest)
}

func (s *bashScanner) operator(rest string) int {
	switch rest[0] {
	case '(':
		s.parens++
		s.command = true
		return 1
	case ')': // also behind a pattern of case, without its bracket
		s.parens = max(0, s.parens-1)
		s.command = true
		return 1
	case ';', '&', '|':
		n := 1
		if len(rest) > 1 && rest[1] == rest[0] {
			n = 2
		}
		s.command = true
		s.continued = strings.TrimSpace(rest[n:]) == "" && (rest[0] == '|' || rest[0] == '&' && n == 2)
		return n
	}

	return s.word(rest)
}

func (s *bashScanner) word(rest string) int {
	n := strings.IndexAny(rest, " \t;&|()'\"\\<>")
	switch n {
	case -1:
		n = len(rest)
	case 0: // < or >
		return 1
	}
	word := rest[:n]
	if !s.command {
		return n
	}
	s.command = s.function || bashLeads[word] || bashOpens[word]
	switch {
	case s.function:
		s.function = false
	case word == "function":
		s.function, s.command = true, true
	case word == "case":
		s.cases++
	case word == "esac":
		s.cases = max(0, s.cases-1)
	case bashOpens[word]:
		s.depth++
	case bashCloses[word]:
		s.depth = max(0, s.depth-1)
	}

	return n
}
