// Package sh quotes words for a POSIX shell.
package sh

import "strings"

// Quote returns s as one word of a POSIX shell: the shell that reads the result sees exactly s. A word cannot hold a NUL byte;
// s must not.
func Quote(s string) string {
	if s != "" && strings.IndexFunc(s, special) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Join quotes each word and puts a space between them.
func Join(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = Quote(w)
	}
	return strings.Join(quoted, " ")
}

// special reports whether r may mean something to a shell somewhere in a word. Whatever is not known to be harmless may.
func special(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	default:
		return !strings.ContainsRune("_-./:@%+,", r)
	}
}
