package hermes_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var writeDocs = flag.Bool("write-docs", false, "put the files into the documents that show them")

// shown is a code block that names the file which it shows.
var shown = regexp.MustCompile("(?ms)^```go ([a-z][a-z0-9/_-]*\\.go)\n.*?^```$")

// TestDocsShowTheFiles: a block that names a file is that file, which is built and tested beside it.
func TestDocsShowTheFiles(t *testing.T) {
	const doc = "docs/write-a-backend.md"
	text := readDoc(t, doc)

	files := 0
	want := shown.ReplaceAllStringFunc(text, func(block string) string {
		files++
		name := shown.FindStringSubmatch(block)[1]
		code := readDoc(t, name)
		if n := strings.Count(code, "\n"); n > 60 {
			t.Errorf("%s has %d lines: too many for a document", name, n)
		}
		return "```go " + name + "\n" + code + "```"
	})
	if files != 2 {
		t.Errorf("%s shows %d files, want 2", doc, files)
	}
	if want == text {
		return
	}
	if !*writeDocs {
		t.Fatalf("%s does not show the files as they are; go test -run TestDocsShowTheFiles -write-docs . puts them in", doc)
	}
	if err := os.WriteFile(doc, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}

func readDoc(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// spoilt is a document with a mistake that its check must find.
type spoilt struct{ old, new string }

// checkDoc reports what check finds in a document, and fails too if check does not find the mistakes.
func checkDoc(t *testing.T, doc string, check func(string) []string, mistakes []spoilt) {
	t.Helper()
	text := readDoc(t, doc)
	for _, problem := range check(text) {
		t.Errorf("%s: %s", doc, problem)
	}
	for _, m := range mistakes {
		switch bad := strings.Replace(text, m.old, m.new, 1); {
		case bad == text:
			t.Errorf("%s: %q, which this test replaces, is not in it", doc, m.old)
		case len(check(bad)) == 0:
			t.Errorf("%s with %q in place of %q: nothing is found wrong", doc, m.new, m.old)
		}
	}
}

// TestThePathNamesWhatThereIs: docs/path-of-a-cell.md has ten steps on at most 60 lines, and each names functions that are where it says.
func TestThePathNamesWhatThereIs(t *testing.T) {
	checkDoc(t, "docs/path-of-a-cell.md", pathProblems, []spoilt{
		{"`Engine.Run`", "`Engine.Walk`"},
		{"`core/run.go`", "`core/walk.go`"},
		{"`Host.Open`", "`Open`"},
		{"`become_host`", "`become_guest`"},
		{"`Kernel._give`", "`Cell._give`"},
		{"[`core/run.go`: `Engine.Run`]", "in the engine"},
		{"[`core/run.go`: `Engine.Run`]", "[`core/run.go`, `Engine.Run`]"},
		{"10. ", "11. "},
		{"2. ", "* "},
		{"\n", strings.Repeat("\n", 61)},
	})
}

var (
	stepNumber = regexp.MustCompile(`(?m)^(\d+)\. `)
	// place is a function and the file that it is in: [`core/run.go`: `Engine.Run`].
	place = regexp.MustCompile("\\[`([^`\n]+)`: `([^`\n]+)`\\]")
)

func pathProblems(text string) []string {
	var problems []string
	if n := strings.Count(text, "\n"); n > 60 {
		problems = append(problems, fmt.Sprintf("%d lines, want at most 60", n))
	}
	steps := stepNumber.FindAllStringSubmatchIndex(text, -1)
	if len(steps) != 10 {
		problems = append(problems, fmt.Sprintf("%d steps, want 10", len(steps)))
	}
	for i, at := range steps {
		number := text[at[2]:at[3]]
		if want := fmt.Sprint(i + 1); number != want {
			problems = append(problems, fmt.Sprintf("step %s where step %s was expected", number, want))
		}
		step, _, _ := strings.Cut(text[at[0]:], "\n\n")
		if i+1 < len(steps) {
			step = text[at[0]:steps[i+1][0]]
		}
		for _, problem := range placeProblems(step) {
			problems = append(problems, fmt.Sprintf("step %s: %s", number, problem))
		}
	}
	return problems
}

func placeProblems(step string) []string {
	places := place.FindAllStringSubmatch(step, -1)
	if len(places) == 0 || len(places) != strings.Count(step, "[`") {
		return []string{"it must name its places, each as [`file`: `function`]"}
	}
	var problems []string
	for _, p := range places {
		switch names, err := functions(p[1]); {
		case err != nil:
			problems = append(problems, err.Error())
		case !slices.Contains(names, p[2]):
			problems = append(problems, fmt.Sprintf("%s has no function %s", p[1], p[2]))
		}
	}
	return problems
}

// functions lists the functions of a Go or Python file, methods as Type.Name.
func functions(file string) ([]string, error) {
	if filepath.Ext(file) == ".py" {
		return pythonFunctions(file)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		switch {
		case !ok:
		case f.Recv == nil:
			names = append(names, f.Name.Name)
		default:
			names = append(names, receiver(f.Recv.List[0].Type)+"."+f.Name.Name)
		}
	}
	return names, nil
}

// receiver is the name of a method's type, without its pointer and parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// pythonName begins a class, a method or a function.
var pythonName = regexp.MustCompile(`(?m)^(?:class (\w+)|( {4})?def (\w+)\()`)

func pythonFunctions(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var names []string
	class := ""
	for _, m := range pythonName.FindAllStringSubmatch(string(data), -1) {
		switch {
		case m[1] != "":
			class = m[1]
		case m[2] != "":
			names = append(names, class+"."+m[3])
		default:
			names = append(names, m[3])
		}
	}
	return names, nil
}

// TestContributingNamesWhatThereIs: every file and directory in backticks in CONTRIBUTING.md is there.
func TestContributingNamesWhatThereIs(t *testing.T) {
	checkDoc(t, "CONTRIBUTING.md", fileProblems, []spoilt{
		{"`core/pool/pool.go`", "`core/pool/pond.go`"},
		{"`core/kernelhost`", "`core/kernelguest`"},
		{"`layers_test.go`", "`layer_test.go`"},
		{"./scripts/generate", "./scripts/degenerate"},
		{"`plugins/*`", "`plugouts/*`"},
	})
}

var (
	code = regexp.MustCompile("`([^`\n]+)`")
	// placeholder stands for whatever a reader puts there.
	placeholder = regexp.MustCompile(`NAME|DIR|X\.Y|\.\.\.|…`)
	extensions  = []string{".go", ".json", ".md", ".mod", ".proto", ".py", ".sh", ".sum", ".txt", ".yaml", ".yml"}
)

func fileProblems(text string) []string {
	var problems []string
	for _, m := range code.FindAllStringSubmatch(text, -1) {
		for _, file := range namedFiles(m[1]) {
			if found, err := filepath.Glob(file); err != nil || len(found) == 0 {
				problems = append(problems, fmt.Sprintf("`%s`: there is no %s", m[1], file))
			}
		}
	}
	return problems
}

// namedFiles lists what in a span of code looks like a file or directory of the project: the span itself or, in a command, the arguments that
// begin with "./".
func namedFiles(span string) []string {
	var files []string
	words := strings.Fields(span)
	for _, word := range words {
		isFile := strings.HasPrefix(word, "./")
		if len(words) == 1 {
			isFile = isFile || strings.Contains(word, "/") || slices.Contains(extensions, filepath.Ext(word))
		}
		if isFile && !placeholder.MatchString(word) {
			files = append(files, word)
		}
	}
	return files
}
