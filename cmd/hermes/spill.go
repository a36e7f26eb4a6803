package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// spillAge is how long a file with a cell's whole output is kept after it was written.
const spillAge = 24 * time.Hour

// spillDir is where --json and --events keep output that is too large for a result: the file must outlive this program to be of
// use to its reader. Files that are older than a day go when the next ones may come.
func spillDir(state string) string {
	if state == "" {
		return ""
	}
	dir := filepath.Join(state, "spill")
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // what cannot be read is not ours to clean
		}
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > spillAge {
			_ = os.Remove(path)
		}
		return nil
	})

	return dir
}
