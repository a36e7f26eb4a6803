package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pss is the proportional set size of a process in bytes: its own pages, and its share of those it has in common with others.
func pss(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	return kilobytes(field(string(data), "Pss"))
}

// rss is the resident set size of a process in bytes.
func rss(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return kilobytes(field(string(data), "VmRSS"))
}

func kilobytes(text string) (float64, error) {
	n, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(text, "kB")), 64)
	return n * 1024, err
}

// switches counts how often the threads of a process have been put on a processor and taken off again.
func switches(pid int) (int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("process %d is gone", pid)
	}
	total := 0
	for _, path := range tasks {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // that thread has just ended
		}
		for _, key := range []string{"voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"} {
			n, err := strconv.Atoi(field(string(data), key))
			if err != nil {
				return 0, fmt.Errorf("%s: %w", path, err)
			}
			total += n
		}
	}
	return total, nil
}

func parent(pid int) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(field(string(data), "PPid"))
}

// children lists the processes whose parent is pid.
func children(pid int) ([]int, error) {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, entry := range entries {
		child, err := strconv.Atoi(filepath.Base(entry))
		if err != nil {
			continue
		}
		if up, err := parent(child); err == nil && up == pid {
			found = append(found, child)
		}
	}
	return found, nil
}
