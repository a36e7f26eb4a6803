package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/hermes-framework/hermes/core"
	"github.com/hermes-framework/hermes/core/cell"
)

// maxConfig is the largest configuration file that is read.
const maxConfig = 1 << 20

// settings is the configuration in effect: a flag goes before an environment variable, that before the file, that before the default.
type settings struct {
	environment       string
	language          cell.Language
	interpreter       string
	maxSessionKernels int
	kernelIdleTimeout time.Duration
	throughPlugin     bool
	pluginDirs        []string
	logLevel          string
	environments      map[string]core.EnvironmentConfig
	spillDir          string // not configured: where this command keeps large output

	shown []shownSetting
}

// shownSetting is one value with its origin, as `config show` prints it.
type shownSetting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"` // "default", the configuration file's path, or the name of an environment variable
}

// option is a scalar setting. Its text is checked and kept by set, wherever it came from.
type option struct {
	key, variable, fallback string
	set                     func(s *settings, text string) error
}

// options is the list of everything that a scalar of the file, or an environment variable, can say.
var options = []option{
	{"environment", "HERMES_ENVIRONMENT", "local:", func(s *settings, text string) error {
		s.environment = text
		return notEmpty(text)
	}},
	{"language", "HERMES_LANGUAGE", "python", func(s *settings, text string) (err error) {
		s.language, err = parseLanguage(text)
		return err
	}},
	{"interpreter", "HERMES_INTERPRETER", "python3", func(s *settings, text string) error {
		s.interpreter = text
		return notEmpty(text)
	}},
	{"max_session_kernels", "HERMES_MAX_SESSION_KERNELS", "4", func(s *settings, text string) (err error) {
		if s.maxSessionKernels, err = strconv.Atoi(text); err != nil || s.maxSessionKernels == 0 {
			return errors.New("must be a number from 1, or -1 for no bound")
		}
		return nil
	}},
	{"kernel_idle_timeout", "HERMES_KERNEL_IDLE_TIMEOUT", "30m", func(s *settings, text string) (err error) {
		if s.kernelIdleTimeout, err = parseDuration(text); err != nil || s.kernelIdleTimeout <= 0 {
			return errors.New("must be a time such as 30m or 1800s, more than 0")
		}
		return nil
	}},
	{"through_plugin", "HERMES_THROUGH_PLUGIN", "false", func(s *settings, text string) (err error) {
		if s.throughPlugin, err = strconv.ParseBool(text); err != nil {
			return errors.New("must be true or false")
		}
		return nil
	}},
	{"log_level", "HERMES_LOG_LEVEL", "error", func(s *settings, text string) error {
		s.logLevel = text
		if text == "off" || new(slog.Level).UnmarshalText([]byte(text)) == nil {
			return nil
		}
		return errors.New("must be off, error, warn, info or debug")
	}},
}

func notEmpty(text string) error {
	if text == "" {
		return errors.New("must not be empty")
	}

	return nil
}

func parseLanguage(text string) (cell.Language, error) {
	switch l := cell.Language(text); l {
	case cell.Python, cell.Bash:
		return l, nil
	}

	return "", fmt.Errorf("must be python or bash, not %q", text)
}

// parseDuration takes a Go duration or a plain number of seconds.
func parseDuration(text string) (time.Duration, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || seconds != seconds || seconds > 1e9 || seconds < -1e9 {
		return 0, fmt.Errorf("%q is no time; write 30s, 5m or 1h30m", text)
	}

	return time.Duration(seconds * float64(time.Second)), nil
}

// settings reads the configuration file and the environment variables.
func (a *app) settings() (*settings, error) {
	path := a.paths().config
	file, err := readConfig(path)
	if err != nil {
		return nil, err
	}

	return a.resolve(path, file)
}

// resolve joins what the file at path says with the environment variables and the defaults.
func (a *app) resolve(path string, file fileConfig) (_ *settings, err error) {
	s := &settings{pluginDirs: file.pluginDirs, environments: file.environments}
	for _, o := range options {
		if err := a.apply(s, o, file.scalars, path); err != nil {
			return nil, err
		}
	}
	source := path
	if list := a.getenv("HERMES_PLUGIN_DIRS"); list != "" {
		source = "HERMES_PLUGIN_DIRS"
		if s.pluginDirs, err = a.absolute(filepath.SplitList(list)); err != nil {
			return nil, usagef("", "%s: %v", source, err)
		}
	} else if s.pluginDirs, err = a.absolute(s.pluginDirs); err != nil {
		return nil, usagef("", "%s: plugin_dirs: %v", path, err)
	}
	if len(s.pluginDirs) > 0 {
		s.shown = append(s.shown, shownSetting{"plugin_dirs", strings.Join(s.pluginDirs, string(filepath.ListSeparator)), source})
	}

	return s, nil
}

func (a *app) apply(s *settings, o option, scalars map[string]scalar, path string) error {
	text, source, where := o.fallback, "default", o.key
	if v, ok := scalars[o.key]; ok {
		text, source, where = v.text, path, v.pos+": "+o.key
	}
	if v := a.getenv(o.variable); v != "" {
		text, source, where = v, o.variable, o.variable+"="+v
	}
	if err := o.set(s, text); err != nil {
		return usagef("", "%s: %v", where, err)
	}
	s.shown = append(s.shown, shownSetting{o.key, text, source})

	return nil
}

// absolute expands a leading ~/ and refuses relative directories, which would mean something else in each working directory.
func (a *app) absolute(dirs []string) ([]string, error) {
	var out []string
	for _, d := range dirs {
		if rest, ok := strings.CutPrefix(d, "~/"); ok {
			d = filepath.Join(a.getenv("HOME"), rest)
		}
		if !filepath.IsAbs(d) {
			return nil, fmt.Errorf("%q is not an absolute path", d)
		}
		out = append(out, d)
	}

	return out, nil
}

// fileConfig is what a configuration file says, its scalars not yet looked at.
type fileConfig struct {
	scalars      map[string]scalar
	pluginDirs   []string
	environments map[string]core.EnvironmentConfig
}

type scalar struct{ text, pos string }

// readConfig reads the file at path. A file that is not there says nothing.
func readConfig(path string) (fileConfig, error) {
	if path == "" {
		return fileConfig{}, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return fileConfig{}, nil
	}
	if err != nil {
		return fileConfig{}, usagef("make it readable or remove it", "read the configuration: %v", err)
	}
	defer f.Close() //nolint:errcheck // it was only read

	info, err := f.Stat()
	if err == nil && info.Mode().Perm()&0o002 != 0 {
		return fileConfig{}, usagef("run: chmod go-w "+path, "%s can be written by every user of this machine, so it is not trusted", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return fileConfig{}, usagef("make it a readable file or remove it", "read the configuration: %v", err)
	}
	if len(data) > maxConfig {
		return fileConfig{}, usagef("", "%s is larger than %d bytes, which no configuration is", path, maxConfig)
	}

	return parseConfig(path, data)
}

// parseConfig is strict: a key that it does not know is an error, with its line and column.
func parseConfig(path string, data []byte) (fileConfig, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	out := fileConfig{scalars: map[string]scalar{}}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return out, configError(path, err)
	}
	if len(file.Docs) > 1 {
		return out, configErrorAt(path, file.Docs[1], "only one document is allowed")
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil || file.Docs[0].Body.Type() == ast.NullType || file.Docs[0].Body.Type() == ast.CommentType {
		return out, nil
	}
	top, ok := file.Docs[0].Body.(ast.MapNode)
	if !ok {
		return out, configErrorAt(path, file.Docs[0].Body, "the file must consist of lines like \"key: value\"")
	}
	for pairs := top.MapRange(); pairs.Next(); {
		if err := out.take(path, pairs.Key(), pairs.Value()); err != nil {
			return out, err
		}
	}

	return out, nil
}

// take keeps one key of the top level.
func (c *fileConfig) take(path string, key ast.MapKeyNode, value ast.Node) error {
	name := key.GetToken().Value
	switch name {
	case "plugin_dirs":
		if err := yaml.NodeToValue(value, &c.pluginDirs); err != nil {
			return configError(path, err)
		}
		return nil
	case "environments":
		return c.takeEnvironments(path, value)
	}
	for _, o := range options {
		if o.key != name {
			continue
		}
		text, ok := scalarText(value)
		if !ok {
			return configErrorAt(path, value, name+" must be one plain value")
		}
		c.scalars[name] = scalar{text: text, pos: position(path, value)}
		return nil
	}

	known := []string{"plugin_dirs", "environments"}
	for _, o := range options {
		known = append(known, o.key)
	}
	slices.Sort(known)

	return configErrorAt(path, key, fmt.Sprintf("unknown key %q; the keys are %s", name, strings.Join(known, ", ")))
}

func scalarText(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return strings.TrimSpace(n.Value.Value), true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return node.GetToken().Value, true
	}

	return "", false
}

// environmentName leaves out what a target URL has, so that -E can take both.
var environmentName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func (c *fileConfig) takeEnvironments(path string, node ast.Node) error {
	if node.Type() == ast.NullType {
		return nil
	}
	all, ok := node.(ast.MapNode)
	if !ok {
		return configErrorAt(path, node, "environments must be a map of names")
	}
	c.environments = map[string]core.EnvironmentConfig{}
	for pairs := all.MapRange(); pairs.Next(); {
		name := pairs.Key().GetToken().Value
		if !environmentName.MatchString(name) {
			return configErrorAt(path, pairs.Key(), fmt.Sprintf("environment name %q may only have letters, digits, '.', '_' and '-'", name))
		}
		var env struct {
			Target string         `yaml:"target"`
			Config map[string]any `yaml:"config"`
		}
		if err := yaml.NodeToValue(pairs.Value(), &env, yaml.Strict()); err != nil {
			return configError(path, err)
		}
		if !strings.Contains(env.Target, ":") {
			return configErrorAt(path, pairs.Key(), fmt.Sprintf("environment %s needs a target, a URL such as local: or ssh://host", name))
		}
		c.environments[name] = core.EnvironmentConfig{Target: env.Target, Config: env.Config}
	}

	return nil
}

// configError turns an error of the YAML package into one sentence with file, line and column.
func configError(path string, err error) error {
	var at yaml.Error
	if errors.As(err, &at) && at.GetToken() != nil && at.GetToken().Position != nil {
		p := at.GetToken().Position
		return usagef("", "%s:%d:%d: %s", path, p.Line, p.Column, at.GetMessage())
	}

	return usagef("", "%s: %v", path, err)
}

func configErrorAt(path string, node ast.Node, msg string) error {
	return usagef("", "%s: %s", position(path, node), msg)
}

func position(path string, node ast.Node) string {
	tok := node.GetToken()
	if tok == nil || tok.Position == nil {
		return path
	}

	return fmt.Sprintf("%s:%d:%d", path, tok.Position.Line, tok.Position.Column)
}
