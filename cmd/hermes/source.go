package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"unicode/utf8"

	"github.com/hermes-framework/hermes/core"
)

// source is where `hermes run` takes its code from.
type source struct {
	code   string
	inline bool   // -c was given, maybe empty
	file   string // FILE, or - for stdin
}

// read returns the code, checked. What is wrong with it is a usage error: nothing has been started yet.
func (s source) read(stdin io.Reader) (string, error) {
	if s.inline {
		return checkCode("the code of -c", []byte(s.code))
	}
	if s.file == "-" {
		code, err := readCode(stdin)
		if err != nil {
			return "", usagef("", "read the code from stdin: %v", rootCause(err))
		}
		return checkCode("the code on stdin", code)
	}

	f, err := os.Open(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", usagef("give a FILE that is there, or the code itself with -c CODE", "%s: no such file", s.file)
	}
	if err != nil {
		return "", usagef("", "%s: %v", s.file, rootCause(err))
	}
	defer f.Close() //nolint:errcheck // it was only read

	code, err := readCode(f)
	if err != nil {
		return "", usagef("give a FILE with the code", "%s: %v", s.file, rootCause(err))
	}

	return checkCode(s.file, code)
}

// readCode reads one byte more than is allowed, so that a file of any size costs no more than that.
func readCode(r io.Reader) ([]byte, error) {
	code, err := io.ReadAll(io.LimitReader(r, core.MaxCode+1))

	return bytes.TrimPrefix(code, []byte("\xef\xbb\xbf")), err
}

func checkCode(name string, code []byte) (string, error) {
	if len(code) > core.MaxCode {
		return "", usagef("put the data in a file and read it in the cell", "%s is over %d MiB, the most a cell may have", name, core.MaxCode>>20)
	}
	if at := invalidUTF8(code); at >= 0 {
		return "", usagef("convert it to UTF-8", "%s is not UTF-8: byte %#02x at offset %d", name, code[at], at)
	}

	return string(code), nil
}

// invalidUTF8 is the offset of the first byte that begins no character, or -1.
func invalidUTF8(b []byte) int {
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}

	return -1
}

// parseSource picks the one place that the command line names.
func parseSource(code string, inline bool, args []string) (source, error) {
	switch {
	case inline && len(args) > 0:
		return source{}, usagef("give one of them", "both -c CODE and FILE %q were given", args[0])
	case inline:
		return source{code: code, inline: true}, nil
	case len(args) == 0:
		return source{}, usagef("give -c CODE, a FILE, or - to read stdin", "no code to run")
	case args[0] == "":
		return source{}, usagef("give a FILE, or - to read stdin", "the name of the file is empty")
	}

	return source{file: args[0]}, nil
}

// durationFlag is a flag that takes 30s, 5m or a number of seconds.
type durationFlag struct{ text string }

func (d *durationFlag) String() string { return d.text }
func (d *durationFlag) Type() string   { return "time" }

func (d *durationFlag) Set(text string) error {
	t, err := parseDuration(text)
	if err != nil {
		return err
	}
	if t < 0 {
		return fmt.Errorf("%s is less than nothing; 0 means no limit", text)
	}
	d.text = text

	return nil
}
