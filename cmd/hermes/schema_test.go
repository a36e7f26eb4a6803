package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
)

// loadSchemas reads docs/cli.schema.json, once, into one schema for each of its definitions. They are made stricter than the
// published ones: a key that is not described there is an error, so that whoever adds one must describe it.
var loadSchemas = sync.OnceValues(func() (map[string]*jsonschema.Resolved, error) {
	data, err := os.ReadFile("../../docs/cli.schema.json")
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	forbidOtherKeys(doc["$defs"])

	all := map[string]*jsonschema.Resolved{}
	for name := range doc["$defs"].(map[string]any) {
		one, err := json.Marshal(map[string]any{"$ref": "#/$defs/" + name, "$defs": doc["$defs"]})
		if err != nil {
			return nil, err
		}
		var schema jsonschema.Schema
		if err := json.Unmarshal(one, &schema); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if all[name], err = schema.Resolve(nil); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}

	return all, nil
})

func forbidOtherKeys(node any) {
	switch node := node.(type) {
	case map[string]any:
		if _, ok := node["properties"]; ok && node["type"] == "object" {
			node["additionalProperties"] = false
		}
		for _, sub := range node {
			forbidOtherKeys(sub)
		}
	case []any:
		for _, sub := range node {
			forbidOtherKeys(sub)
		}
	}
}

// checkJSON says why text is not exactly one line with one JSON value that fits a definition of the schema.
func checkJSON(definition, text string) error {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) != 1 || !strings.HasSuffix(text, "\n") {
		return fmt.Errorf("want one line, got %q", text)
	}

	return checkLine(definition, lines[0])
}

func checkLine(definition, line string) error {
	schemas, err := loadSchemas()
	if err != nil {
		return err
	}
	schema, ok := schemas[definition]
	if !ok {
		return fmt.Errorf("docs/cli.schema.json has no definition %q", definition)
	}
	var value any
	if err := json.Unmarshal([]byte(line), &value); err != nil {
		return fmt.Errorf("%w in %s", err, line)
	}
	if err := schema.Validate(value); err != nil {
		return fmt.Errorf("%w in %s", err, line)
	}

	return nil
}

// field returns what stands at a dotted path of a JSON value, as JSON; a number in the path is an index.
func field(text, path string) (string, error) {
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		return "", fmt.Errorf("%w in %q", err, text)
	}
	for key := range strings.SplitSeq(path, ".") {
		switch v := value.(type) {
		case map[string]any:
			sub, ok := v[key]
			if !ok {
				return "", fmt.Errorf("no key %q in %s", key, text)
			}
			value = sub
		case []any:
			if key == "len" {
				value = len(v)
				continue
			}
			i := 0
			if _, err := fmt.Sscan(key, &i); err != nil || i < 0 || i >= len(v) {
				return "", fmt.Errorf("no index %q in %s", key, text)
			}
			value = v[i]
		default:
			return "", fmt.Errorf("nothing below %q in %s", key, text)
		}
	}
	out, err := json.Marshal(value)

	return string(out), err
}

// matchField says why the value at path does not match pattern as a whole.
func matchField(text, path, pattern string) error {
	got, err := field(text, path)
	if err != nil {
		return err
	}
	re, err := regexp.Compile("^(?:" + pattern + ")$")
	if err != nil {
		return err
	}
	if !re.MatchString(got) {
		return fmt.Errorf("%s = %s, want a match for %s", path, got, pattern)
	}

	return nil
}
