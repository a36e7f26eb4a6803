package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Items lists what the public packages of the module in dir export on the given
// systems, sorted. What only some of them have is marked with their names.
func Items(ctx context.Context, dir string, systems []string) ([]string, error) {
	on := map[string][]string{}
	for _, goos := range systems {
		items, err := itemsOn(ctx, dir, goos)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			on[item] = append(on[item], goos)
		}
	}

	var all []string
	for item, where := range on {
		if len(where) < len(systems) {
			pkg, rest, _ := strings.Cut(item, ",")
			item = fmt.Sprintf("%s (%s),%s", pkg, strings.Join(where, " "), rest)
		}
		all = append(all, item)
	}
	slices.Sort(all)
	return all, nil
}

// Diff lists the items that are only in was, with a minus sign, and those only in now, with a plus sign.
func Diff(was, now []string) []string {
	var out []string
	for _, item := range was {
		if !slices.Contains(now, item) {
			out = append(out, "-"+item)
		}
	}
	for _, item := range now {
		if !slices.Contains(was, item) {
			out = append(out, "+"+item)
		}
	}
	return out
}

// listed is what go list says about a package.
type listed struct {
	ImportPath string
	Name       string
	Export     string // the compiler's export data; a directory that has only tests has none
	DepOnly    bool
}

// public says whether programs outside this module can import the package.
func (p listed) public() bool {
	return !p.DepOnly && p.Export != "" && p.Name != "main" && !slices.Contains(strings.Split(p.ImportPath, "/"), "internal")
}

func itemsOn(ctx context.Context, dir, goos string) ([]string, error) {
	packages, err := list(ctx, dir, goos)
	if err != nil {
		return nil, err
	}
	export := map[string]string{}
	for _, p := range packages {
		export[p.ImportPath] = p.Export
	}
	imp := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(export[path])
	})

	var items []string
	for _, p := range packages {
		if !p.public() {
			continue
		}
		pkg, err := imp.Import(p.ImportPath)
		if err != nil {
			return nil, fmt.Errorf("read the types of %s: %w", p.ImportPath, err)
		}
		items = append(items, describe(pkg)...)
	}
	return items, nil
}

func list(ctx context.Context, dir, goos string) ([]listed, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-export", "-deps", "-json=ImportPath,Name,Export,DepOnly", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS="+goos)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list for %s: %w\n%s", goos, err, stderr.Bytes())
	}

	var packages []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list for %s: %w", goos, err)
		}
		packages = append(packages, p)
	}
}
