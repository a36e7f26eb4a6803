package core

import (
	"log/slog"
	"slices"
	"time"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

// Config says how an Engine works. The zero value of every field has a meaning; core itself reads no environment variable.
type Config struct {
	// PluginDirs are searched in order for backend binaries, hermes-backend-NAME. Nothing in them is executed to find out.
	PluginDirs []string
	// LockFile is the plugins.lock with the hashes of the binaries that may be run. Empty: only built-in backends run.
	LockFile string
	// Builtin are backends that need no binary of their own and no lock: the program re-executes itself.
	Builtin []Builtin
	// StateDir holds the records of named sessions (made 0700). Empty: Request.Session is an error.
	StateDir string
	// RuntimeDir holds plugin sockets and copies (made 0700). Empty: a new directory under os.TempDir.
	RuntimeDir string
	// Environments gives names to targets.
	Environments map[string]EnvironmentConfig
	// Interpreter is the Python that runs kernel hosts, a name on the environment's PATH or a path. Empty: python3.
	Interpreter string
	// MaxSessionKernels bounds the kernels of this engine for each environment; the least recently used idle one ends first. 0: 4; negative: no bound.
	// Kernels of named sessions are not this engine's and are not counted.
	MaxSessionKernels int
	// KernelIdleTimeout ends a kernel that ran nothing for so long. 0: 30 minutes; negative: never. A named session's kernel host has the timeout
	// of the engine that started it; there negative means 30 minutes, too.
	KernelIdleTimeout time.Duration
	// NoFallback makes it an error if no kernel host can be had in an environment. Otherwise a cell then runs once in an interpreter of its own,
	// if it is certain that it has not run, and its result says so (Kernel.Fallback).
	NoFallback bool
	// ThroughPlugin sends every byte of a cell through the backend plugin, also where the plugin names an address to dial directly.
	ThroughPlugin bool
	// SpillDir keeps output too large for a Result, one 0600 file for each stream. Empty: RuntimeDir, and the files go with the engine.
	SpillDir string
	// Logger gets the engine's and the plugins' records. Nil: none.
	Logger *slog.Logger
}

// EnvironmentConfig is a target and its backend's configuration.
type EnvironmentConfig struct {
	Target string         `json:"target"`
	Config map[string]any `json:"config,omitempty"`
}

func withDefaults(cfg Config) Config {
	if cfg.Interpreter == "" {
		cfg.Interpreter = defaultPython
	}
	if cfg.MaxSessionKernels == 0 {
		cfg.MaxSessionKernels = defaultKernels
	}
	if cfg.KernelIdleTimeout == 0 {
		cfg.KernelIdleTimeout = defaultIdle
	}
	cfg.Builtin = slices.Clone(cfg.Builtin)
	for i, b := range cfg.Builtin {
		if b.Args == nil {
			cfg.Builtin[i].Args = sdk.BuiltinArgs(b.Name)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg
}
