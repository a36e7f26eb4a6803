package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

//go:embed jupyter.py
var jupyterSource string

// jupyter is a running jupyter.py with one warm kernel.
type jupyter struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *json.Decoder
}

func (b *bench) startJupyter(ctx context.Context) (*jupyter, error) {
	cmd := exec.CommandContext(ctx, b.python, "-c", jupyterSource)
	cmd.Env = append(os.Environ(), "PYDEVD_DISABLE_FILE_VALIDATION=1", "JUPYTER_PLATFORM_DIRS=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	j := &jupyter{cmd: cmd, stdin: stdin, out: json.NewDecoder(bufio.NewReader(stdout))}

	var ready string
	if err := j.out.Decode(&ready); err != nil {
		_ = j.close()
		return nil, fmt.Errorf("start Jupyter with %s: %w\n%s\napt-get install python3-ipykernel python3-jupyter-client", b.python, err, stderr.String())
	}
	return j, nil
}

// ask has count samples of one kind measured.
func (j *jupyter) ask(kind string, count int) ([]float64, error) {
	if err := json.NewEncoder(j.stdin).Encode(map[string]any{"measure": kind, "count": count}); err != nil {
		return nil, fmt.Errorf("ask Jupyter for %s: %w", kind, err)
	}
	var samples []float64
	if err := j.out.Decode(&samples); err != nil {
		return nil, fmt.Errorf("ask Jupyter for %s: %w", kind, err)
	}
	return samples, nil
}

func (j *jupyter) close() error {
	if err := j.stdin.Close(); err != nil {
		return err
	}
	return j.cmd.Wait()
}

func durations(seconds []float64) []time.Duration {
	out := make([]time.Duration, len(seconds))
	for i, s := range seconds {
		out[i] = time.Duration(s * float64(time.Second))
	}
	return out
}

// pipe is the least that can be had: a line to a Python over a pipe, a line back.
type pipe struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
}

func (b *bench) startPipe(ctx context.Context) (*pipe, error) {
	const loop = "import sys\nfor line in sys.stdin: print(eval(line), flush=True)"
	cmd := exec.CommandContext(ctx, b.python, "-c", loop)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &pipe{cmd: cmd, stdin: stdin, out: bufio.NewReader(stdout)}, cmd.Start()
}

func (p *pipe) cells(n int) ([]time.Duration, error) {
	taken := make([]time.Duration, n)
	for i := range taken {
		begin := time.Now()
		if _, err := io.WriteString(p.stdin, "1\n"); err != nil {
			return nil, fmt.Errorf("bare pipe: %w", err)
		}
		if _, err := p.out.ReadString('\n'); err != nil {
			return nil, fmt.Errorf("bare pipe: %w", err)
		}
		taken[i] = time.Since(begin)
	}
	return taken, nil
}

func (p *pipe) close() error {
	if err := p.stdin.Close(); err != nil {
		return err
	}
	return p.cmd.Wait()
}

// forks measures what no kernel can be had without: a fork of a Python that has imported what a nursery imports, until its first byte.
func (b *bench) forks(ctx context.Context, n int) ([]time.Duration, error) {
	const loop = `import asyncio, ctypes, gc, json, os, sys, time
gc.freeze()
taken = []
for _ in range(int(sys.argv[1])):
    r, w = os.pipe()
    begin = time.perf_counter()
    pid = os.fork()
    if not pid:
        os.write(w, b"x")
        os._exit(0)
    os.read(r, 1)
    taken.append(time.perf_counter() - begin)
    os.waitpid(pid, 0)
    os.close(r)
    os.close(w)
print(json.dumps(taken))`
	cmd := exec.CommandContext(ctx, b.python, "-c", loop, strconv.Itoa(n))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("bare fork: %w", err)
	}
	var seconds []float64
	if err := json.Unmarshal(out, &seconds); err != nil {
		return nil, fmt.Errorf("bare fork: %w", err)
	}
	return durations(seconds), nil
}

// command runs argv once and returns how long it took.
func command(ctx context.Context, env []string, argv ...string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = env
	begin := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, out)
	}
	return time.Since(begin), nil
}
