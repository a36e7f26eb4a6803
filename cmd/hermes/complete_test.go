package main

import (
	"testing"

	"github.com/hermes-framework/hermes/core/cell"
)

func TestInputState(t *testing.T) {
	for _, tt := range []struct {
		language cell.Language
		text     string
		want     input
	}{
		{cell.Python, "1+1", inputComplete},
		{cell.Python, "x = [1,", inputOpen},
		{cell.Python, "x = [1,\n2]", inputComplete},
		{cell.Python, "f(')'", inputOpen},
		{cell.Python, "f(')')", inputComplete},
		{cell.Python, "if x:", inputBlock},
		{cell.Python, "if x:\n  y", inputBlock},
		{cell.Python, "if x:\n  y\n", inputComplete},
		{cell.Python, "if x: y", inputBlock},
		{cell.Python, "if x: y\n", inputComplete},
		{cell.Python, "match x:\n  case 1:\n    y", inputBlock},
		{cell.Python, "@dec", inputBlock},
		{cell.Python, "async def f():", inputBlock},
		{cell.Python, "classes = 1", inputComplete},
		{cell.Python, "format('x')", inputComplete},
		{cell.Python, "d = {'a': 1}", inputComplete},
		{cell.Python, "x: int", inputComplete},
		{cell.Python, `s = """abc`, inputOpen},
		{cell.Python, "s = \"\"\"abc\nif x:\n\n\"\"\"", inputComplete},
		{cell.Python, `s = '''it"s''' + ""`, inputComplete},
		{cell.Python, `x = 1 + \`, inputOpen},
		{cell.Python, "x = 1 + \\\n2", inputComplete},
		{cell.Python, "s = 'a\\", inputOpen},
		{cell.Python, "s = 'unfinished", inputComplete}, // the interpreter says it better
		{cell.Python, "x = 1 # (", inputComplete},
		{cell.Python, "x = '#' + f(", inputOpen},
		{cell.Python, ")", inputComplete},
		{cell.Python, "if f(1,\n2):", inputBlock},
		{cell.Python, "with open('x') as f:  # comment", inputBlock},

		{cell.Bash, "echo a", inputComplete},
		{cell.Bash, "echo if then", inputComplete},
		{cell.Bash, "if true", inputOpen},
		{cell.Bash, "if true; then echo a; fi", inputComplete},
		{cell.Bash, "for x in a b\ndo\necho $x", inputOpen},
		{cell.Bash, "for x in a b\ndo\necho $x\ndone", inputComplete},
		{cell.Bash, "while read x; do echo done; done", inputComplete},
		{cell.Bash, "echo 'a", inputOpen},
		{cell.Bash, "echo 'a\nb'", inputComplete},
		{cell.Bash, `echo "a\"`, inputOpen},
		{cell.Bash, `echo it\'s`, inputComplete},
		{cell.Bash, "a |", inputOpen},
		{cell.Bash, "a &&", inputOpen},
		{cell.Bash, "a &&\nb", inputComplete},
		{cell.Bash, "a &", inputComplete},
		{cell.Bash, `echo \`, inputOpen},
		{cell.Bash, "(cd /; ls", inputOpen},
		{cell.Bash, "x=$(ls)", inputComplete},
		{cell.Bash, "f() {", inputOpen},
		{cell.Bash, "f() { echo; }", inputComplete},
		{cell.Bash, "function f {\necho\n}", inputComplete},
		{cell.Bash, "function f {\necho", inputOpen},
		{cell.Bash, "case x in", inputOpen},
		{cell.Bash, "case x in\na) echo;;\nb) echo;;\nesac", inputComplete},
		{cell.Bash, "if true; then case x in a) b;; esac; fi", inputComplete},
		{cell.Bash, "cat <<EOF\nif", inputOpen},
		{cell.Bash, "cat <<'E F'\nif\nE F", inputComplete},
		{cell.Bash, "cat <<-EOF\n\tx\n\tEOF", inputComplete},
		{cell.Bash, "cat <<<x", inputComplete},
		{cell.Bash, "echo $((1<<2))", inputComplete},
		{cell.Bash, "echo a # (", inputComplete},
		{cell.Bash, "echo ${#x} ${x}", inputComplete},
	} {
		if got := inputState(tt.language, tt.text); got != tt.want {
			t.Errorf("inputState(%s, %q) = %d, want %d", tt.language, tt.text, got, tt.want)
		}
	}
}

func TestContinuesBlock(t *testing.T) {
	for _, tt := range []struct {
		text, line string
		want       bool
	}{
		{"if x:\n  y", "  z", true},
		{"if x:\n  y", "else:", true},
		{"if x:\n  y", "elsewhere", false},
		{"if x:\n  y", "# comment", true},
		{"if x:\n  y", "z", false},
		{"@dec", "def f():", true},
		{"try:\n  y", "except ValueError:", true},
	} {
		if got := continuesBlock(tt.text, tt.line); got != tt.want {
			t.Errorf("continuesBlock(%q, %q) = %v, want %v", tt.text, tt.line, got, tt.want)
		}
	}
}

func FuzzInputState(f *testing.F) {
	f.Add("if x:\n '''\n(\\")
	f.Add("case x in <<E\n\"$(")
	f.Fuzz(func(_ *testing.T, text string) {
		inputState(cell.Python, text)
		inputState(cell.Bash, text)
	})
}
