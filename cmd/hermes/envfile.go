package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// maxEnvFile is the largest file that --env-file reads.
const maxEnvFile = 1 << 20

// variables joins the files of --env-file and the -e flags, in this order; the later one wins.
func variables(files, flags []string, lookup func(string) (string, bool)) (map[string]string, error) {
	vars := map[string]string{}
	for _, path := range files {
		data, err := readEnvFile(path)
		if err != nil {
			return nil, usagef("", "--env-file %s: %v", path, rootCause(err))
		}
		if err := parseEnvFile(data, vars, lookup); err != nil {
			return nil, usagef("lines are NAME=VALUE, with # for comments and quotes around values", "%s:%v", path, err)
		}
	}
	for _, entry := range flags {
		if err := addVariable(vars, entry, lookup); err != nil {
			return nil, usagef("write -e NAME=VALUE, or -e NAME for the value it has here", "-e: %v", err)
		}
	}
	if len(vars) == 0 {
		return nil, nil
	}

	return vars, nil
}

// addVariable takes NAME=VALUE, or NAME for the caller's own value, which is left out when there is none.
func addVariable(vars map[string]string, entry string, lookup func(string) (string, bool)) error {
	name, value, given := strings.Cut(entry, "=")
	if err := checkVariable(name, value); err != nil {
		return err
	}
	if !given {
		if value, given = lookup(name); !given {
			return nil
		}
	}
	vars[name] = value

	return nil
}

// checkVariable names the variable in an error, never its value, which may be a secret.
func checkVariable(name, value string) error {
	switch {
	case name == "":
		return fmt.Errorf("a variable without a name")
	case strings.ContainsAny(name, " \t\r\n\x00"), !utf8.ValidString(name):
		return fmt.Errorf("%q is no name of a variable", name)
	case strings.ContainsRune(value, 0), !utf8.ValidString(value):
		return fmt.Errorf("the value of %s is not plain UTF-8 text", name)
	}

	return nil
}

func readEnvFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read

	data, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err == nil && len(data) > maxEnvFile {
		return nil, fmt.Errorf("it is larger than %d bytes", maxEnvFile)
	}

	return data, err
}

// parseEnvFile reads lines of NAME=VALUE. A value may stand in single quotes (taken as it is) or double quotes (\n, \t, \", \$ and \\ are
// understood); without quotes it ends at " #". The error begins with the line's number.
func parseEnvFile(data []byte, vars map[string]string, lookup func(string) (string, bool)) error {
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxEnvFile+1)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(strings.TrimPrefix(lines.Text(), "\ufeff"))
		if line == "" || line[0] == '#' {
			continue
		}
		line = strings.TrimPrefix(line, "export ")
		name, value, given := strings.Cut(line, "=")
		entry := strings.TrimSpace(name)
		if given {
			value, err := unquote(strings.TrimSpace(value))
			if err != nil {
				return fmt.Errorf("%d: the value of %s %w", n, entry, err)
			}
			entry += "=" + value
		}
		if err := addVariable(vars, entry, lookup); err != nil {
			return fmt.Errorf("%d: %w", n, err)
		}
	}

	return lines.Err()
}

func unquote(value string) (string, error) {
	if value == "" || value[0] != '\'' && value[0] != '"' {
		if i := strings.Index(value, " #"); i >= 0 {
			value = strings.TrimSpace(value[:i])
		}
		return value, nil
	}

	var out strings.Builder
	quote, rest := value[0], value[1:]
	for i := 0; i < len(rest); i++ {
		c := rest[i]
		switch {
		case c == quote:
			if tail := strings.TrimSpace(rest[i+1:]); tail != "" && tail[0] != '#' {
				return "", fmt.Errorf("goes on after its closing quote")
			}
			return out.String(), nil
		case c == '\\' && quote == '"' && i+1 < len(rest):
			i++
			out.WriteString(unescape(rest[i]))
		default:
			out.WriteByte(c)
		}
	}

	return "", fmt.Errorf("has no closing quote")
}

func unescape(c byte) string {
	switch c {
	case 'n':
		return "\n"
	case 't':
		return "\t"
	case '"', '\\', '$':
		return string(c)
	}

	return `\` + string(c)
}
