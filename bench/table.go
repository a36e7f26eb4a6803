package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// page keeps the table, between these two lines.
const (
	page  = "docs/performance.md"
	begin = "<!-- bench: begin -->\n"
	end   = "<!-- bench: end -->\n"
)

// row is one line of the table. Meets is what the figure is held against.
type row struct {
	what, hermes, peer, goal string
	met                      bool
}

func table(rows []row) string {
	var b strings.Builder
	b.WriteString("| what | Hermes | beside it | goal | met |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		met := "yes"
		if !r.met {
			met = "**no**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.what, r.hermes, r.peer, r.goal, met)
	}
	return b.String()
}

// machine says in a sentence where and when the figures were taken.
func machine(ctx context.Context, python string) string {
	version, _ := exec.CommandContext(ctx, python, "-c", "import platform; print(platform.python_version())").Output()
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _ := os.ReadFile("/proc/loadavg")
	model, memory := "unknown processor", ""
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		model = field(string(info), "model name")
	}
	if info, err := os.ReadFile("/proc/meminfo"); err == nil {
		memory = field(string(info), "MemTotal")
	}
	return fmt.Sprintf("%s: %d cores of %s, %s of memory, Linux %s, %s, Python %s; load when it began %s.\n",
		time.Now().UTC().Format("2006-01-02"), runtime.NumCPU(), model, memory, strings.TrimSpace(string(kernel)),
		runtime.Version(), strings.TrimSpace(string(version)), strings.Fields(string(load) + " unknown")[0])
}

// field is the value of the first "name: value" line.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func replaceTable(path, text string) error {
	was, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, found := strings.Cut(string(was), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return errors.New(path + ": the two lines between which the table goes are not there")
	}
	return os.WriteFile(path, []byte(head+begin+"\n"+text+"\n"+end+tail), 0o644) //nolint:gosec // G306: a page of the repository, for everybody to read
}

// percentile of the samples, p from 0 to 1.
func percentile(samples []time.Duration, p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[int(p*float64(len(sorted)-1)+0.5)]
}

func median(samples []time.Duration) time.Duration { return percentile(samples, 0.5) }

// ms writes a duration with three significant digits or so.
func ms(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	switch {
	case v < 1:
		return fmt.Sprintf("%.3f ms", v)
	case v < 100:
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f ms", v)
}

func mb(bytes float64) string { return fmt.Sprintf("%.2f MB", bytes/1e6) }
