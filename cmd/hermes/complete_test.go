package main

import (
	"testing"

	"github.com/hermes-framework/hermes/core"
)

func TestInputState(t *testing.T) {
	for _, tt := range []struct {
		language core.Language
		text     string
		want     input
	}{
		{core.Python, "1+1", inputComplete},
		{core.Python, "x = [1,", inputOpen},
		{core.Python, "x = [1,\n2]", inputComplete},
		{core.Python, "f(')'", inputOpen},
		{core.Python, "f(')')", inputComplete},
		{core.Python, "if x:", inputBlock},
		{core.Python, "if x:\n  y", inputBlock},
		{core.Python, "if x:\n  y\n", inputComplete},
		{core.Python, "if x: y", inputBlock},
		{core.Python, "if x: y\n", inputComplete},
		{core.Python, "match x:\n  case 1:\n    y", inputBlock},
		{core.Python, "@dec", inputBlock},
		{core.Python, "async def f():", inputBlock},
		{core.Python, "classes = 1", inputComplete},
		{core.Python, "format('x')", inputComplete},
		{core.Python, "d = {'a': 1}", inputComplete},
		{core.Python, "x: int", inputComplete},
		{core.Python, `s = """abc`, inputOpen},
		{core.Python, "s = \"\"\"abc\nif x:\n\n\"\"\"", inputComplete},
		{core.Python, `s = '''it"s''' + ""`, inputComplete},
		{core.Python, `x = 1 + \`, inputOpen},
		{core.Python, "x = 1 + \\\n2", inputComplete},
		{core.Python, "s = 'a\\", inputOpen},
		{core.Python, "s = 'unfinished", inputComplete}, // the interpreter says it better
		{core.Python, "x = 1 # (", inputComplete},
		{core.Python, "x = '#' + f(", inputOpen},
		{core.Python, ")", inputComplete},
		{core.Python, "if f(1,\n2):", inputBlock},
		{core.Python, "with open('x') as f:  # comment", inputBlock},

		{core.Bash, "echo a", inputComplete},
		{core.Bash, "echo if then", inputComplete},
		{core.Bash, "if true", inputOpen},
		{core.Bash, "if true; then echo a; fi", inputComplete},
		{core.Bash, "for x in a b\ndo\necho $x", inputOpen},
		{core.Bash, "for x in a b\ndo\necho $x\ndone", inputComplete},
		{core.Bash, "while read x; do echo done; done", inputComplete},
		{core.Bash, "echo 'a", inputOpen},
		{core.Bash, "echo 'a\nb'", inputComplete},
		{core.Bash, `echo "a\"`, inputOpen},
		{core.Bash, `echo it\'s`, inputComplete},
		{core.Bash, "a |", inputOpen},
		{core.Bash, "a &&", inputOpen},
		{core.Bash, "a &&\nb", inputComplete},
		{core.Bash, "a &", inputComplete},
		{core.Bash, `echo \`, inputOpen},
		{core.Bash, "(cd /; ls", inputOpen},
		{core.Bash, "x=$(ls)", inputComplete},
		{core.Bash, "f() {", inputOpen},
		{core.Bash, "f() { echo; }", inputComplete},
		{core.Bash, "function f {\necho\n}", inputComplete},
		{core.Bash, "function f {\necho", inputOpen},
		{core.Bash, "case x in", inputOpen},
		{core.Bash, "case x in\na) echo;;\nb) echo;;\nesac", inputComplete},
		{core.Bash, "if true; then case x in a) b;; esac; fi", inputComplete},
		{core.Bash, "cat <<EOF\nif", inputOpen},
		{core.Bash, "cat <<'E F'\nif\nE F", inputComplete},
		{core.Bash, "cat <<-EOF\n\tx\n\tEOF", inputComplete},
		{core.Bash, "cat <<<x", inputComplete},
		{core.Bash, "echo $((1<<2))", inputComplete},
		{core.Bash, "echo a # (", inputComplete},
		{core.Bash, "echo ${#x} ${x}", inputComplete},
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
		inputState(core.Python, text)
		inputState(core.Bash, text)
	})
}
