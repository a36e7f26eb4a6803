// Command api records what the public packages of this module export, one line
// for each item, in api/current.txt.
//
//	go run ./scripts/api       fails and prints the difference if the record is stale
//	go run ./scripts/api -w    writes the record
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
)

// record is where the items are kept, relative to the root of the module.
const record = "api/current.txt"

func main() {
	write := flag.Bool("w", false, "write "+record+" instead of comparing with it")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "api: unexpected argument %q; usage: go run ./scripts/api [-w]\n", flag.Arg(0))
		os.Exit(2)
	}

	if err := run(context.Background(), *write); err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, write bool) error {
	items, err := Items(ctx, ".", []string{"linux", "darwin"})
	if err != nil {
		return err
	}
	now := strings.Join(items, "\n") + "\n"
	if write {
		return os.WriteFile(record, []byte(now), 0o644) //nolint:gosec // G306: a file of the repository, for everybody to read
	}

	was, err := os.ReadFile(record)
	if err != nil {
		return fmt.Errorf("%w; go run ./scripts/api -w writes it", err)
	}
	if string(was) == now {
		return nil
	}
	for _, line := range Diff(strings.Split(strings.TrimSuffix(string(was), "\n"), "\n"), items) {
		fmt.Fprintln(os.Stderr, line)
	}
	return fmt.Errorf("%s differs from the code; if the change is meant, go run ./scripts/api -w", record)
}
