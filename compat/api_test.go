package compat_test

import (
	"regexp"
	"slices"
	"strings"
)

// api is what a record of exported names (api/*.txt, written by scripts/api) says, looked up by qualified name: import/path.Name.
type api struct {
	packages map[string]bool
	decls    map[string]decl
}

// decl is one package-level name.
type decl struct {
	word    string   // const, func, type or var
	lines   []string // what is recorded of it, methods and fields included: without the package, and as the record words it
	alias   string   // what an alias stands for, qualified
	generic bool
}

// readAPI reads a record. What it cannot read it returns as faults.
func readAPI(name, text string) (api, []string) {
	a := api{packages: map[string]bool{}, decls: map[string]decl{}}
	var faults []string
	for line := range strings.Lines(text) {
		pkg, item, systems, ok := cutItem(strings.TrimSuffix(line, "\n"))
		head, owner := ownerOf(item)
		if !ok || owner == "" {
			faults = append(faults, "api/"+name+".txt: not understood: "+strings.TrimSpace(line))
			continue
		}
		a.packages[pkg] = true

		d := a.decls[pkg+"."+owner]
		d.lines = append(d.lines, item+systems)
		if word, declares := strings.CutSuffix(head, " "); declares {
			d.word = word
			after := strings.TrimPrefix(item, head+owner)
			d.generic = strings.HasPrefix(after, "[")
			if _, target, found := strings.Cut(after, " = "); found && word == "type" {
				d.alias = target
			}
		}
		a.decls[pkg+"."+owner] = d
	}

	for name, d := range a.decls { // once all names of its package are known
		if d.alias != "" {
			pkg, _ := split(name)
			d.alias = a.qualify(pkg, d.alias)
			a.decls[name] = d
		}
	}
	return a, faults
}

// cutItem divides "pkg PATH, ITEM". Of the item that only some systems have, "pkg PATH (linux), ITEM", systems is " (linux)".
func cutItem(line string) (pkg, item, systems string, ok bool) {
	pkg, item, ok = strings.Cut(line, ", ")
	pkg, isPackage := strings.CutPrefix(pkg, "pkg ")
	pkg, systems, some := strings.Cut(pkg, " ")
	if some {
		systems = " " + systems
	}
	return pkg, item, systems, ok && isPackage
}

var (
	declared = regexp.MustCompile(`^(const|func|type|var) (\w+)`)
	received = regexp.MustCompile(`^method \(\*?(\w+)\) \w+\(`)
	member   = regexp.MustCompile(`^type (\w+) (?:struct|interface), `)
)

// ownerOf names the package-level name that an item belongs to, and what stands before it if the item declares it ("const ").
func ownerOf(item string) (head, owner string) {
	if m := member.FindStringSubmatch(item); m != nil {
		return "type", m[1]
	}
	if m := received.FindStringSubmatch(item); m != nil {
		return "method", m[1]
	}
	if m := declared.FindStringSubmatch(item); m != nil && len(m[0]) < len(item) {
		return m[1] + " ", m[2]
	}
	return "", ""
}

// split divides import/path.Name.
func split(full string) (pkg, name string) {
	slash := strings.LastIndex(full, "/")
	pkg, name, _ = strings.Cut(full[slash+1:], ".")
	return full[:slash+1] + pkg, name
}

// qualified is a name in the text of a type, with its import path if it has one.
var qualified = regexp.MustCompile(`[\pL\pN_][\pL\pN_./~-]*`)

// qualify gives the types of pkg in the text of a type their import path.
func (a api) qualify(pkg, text string) string {
	return qualified.ReplaceAllStringFunc(text, func(name string) string {
		if a.decls[pkg+"."+name].word == "type" {
			return pkg + "." + name
		}
		return name
	})
}

// shapes is what a name is made of, so that it can be compared with another name elsewhere: its own name is left out, and rename
// is asked about each qualified name in a type. It maps each shape to its line of the record.
func (a api) shapes(name string, rename func(string) string) map[string]string {
	pkg, own := split(name)
	out := map[string]string{}
	for _, line := range a.decls[name].lines {
		about, types, rest := dissect(line, own)
		out[about+qualified.ReplaceAllStringFunc(a.qualify(pkg, types), rename)+rest] = line
	}
	return out
}

// dissections divide a line into what it is about, the types in it, and a struct tag or a value, the first that fits.
var dissections = []*regexp.Regexp{
	regexp.MustCompile(`^(type NAME struct, (?:embedded )?\w+ )(.*?)((?: ".*")?(?: \([a-z ]+\))?)$`),
	regexp.MustCompile(`^(type NAME interface, (?:in |\w+))(.*)()$`),
	regexp.MustCompile(`^(method \(\*?NAME\) \w+)(.*)()$`),
	regexp.MustCompile(`^(const NAME )(.*?)( = .*)$`),
	regexp.MustCompile(`^(\w+ NAME)(.*)()$`),
}

// dissect is the first of dissections that fits a line, with NAME for the name that the line is about.
func dissect(line, name string) (about, types, rest string) {
	line = regexp.MustCompile(`^(method \(\*?|\w+ )`+name+`\b`).ReplaceAllString(line, "${1}NAME")
	i := slices.IndexFunc(dissections, func(re *regexp.Regexp) bool { return re.MatchString(line) })
	m := dissections[i].FindStringSubmatch(line)
	return m[1], m[2], m[3]
}

// resolve follows aliases to what they stand for.
func (a api) resolve(name string) string {
	for a.decls[name].alias != "" {
		name = a.decls[name].alias
	}
	return name
}
