package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// outsider is a backend in a module of its own.
const outsider = "../../compat/testdata/plugin_v0"

// cmdBuildBackend builds the backend in a module of its own, or the program in DIR, into FILE: buildbackend FILE [DIR]. It runs in
// this process' environment, which has the build cache.
func cmdBuildBackend(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: buildbackend FILE [DIR]")
	}
	source := outsider
	if len(args) == 2 {
		source = args[1]
	}
	dir, err := filepath.Abs(source)
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-o", ts.MkAbs(args[0]), ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		ts.Fatalf("go build in %s: %v\n%s", source, err, out)
	}
}
