package cell_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core/cell"
)

// vector is a frame that both codecs read; core/kernelhost/hosttest/test_link.py is the other reader.
type vector struct {
	Name     string                     `json:"name"`
	Frame    string                     `json:"frame"`
	Shortest bool                       `json:"shortest"`
	Value    map[string]json.RawMessage `json:"value"`
}

func loadVectors(t *testing.T, name string) []vector {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "frames", name))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	return vectors
}

func (v vector) read(t *testing.T) (cell.Frame, []byte, error) {
	t.Helper()
	data, err := hex.DecodeString(v.Frame)
	if err != nil {
		t.Fatal(err)
	}
	f, err := cell.ReadFrame(bufio.NewReader(bytes.NewReader(data)), cell.MaxFrame)
	return f, data, err
}

// vectorValue turns the tagged form of the vectors into what the codec decodes.
func vectorValue(t *testing.T, tagged map[string]json.RawMessage) any {
	t.Helper()
	for kind, raw := range tagged {
		switch kind {
		case "nil":
			return nil
		case "bool":
			return into[bool](t, raw)
		case "str":
			return into[string](t, raw)
		case "int":
			return must(t)(strconv.ParseInt(into[string](t, raw), 10, 64))
		case "float":
			return must(t)(strconv.ParseFloat(into[string](t, raw), 64))
		case "bin":
			return must(t)(hex.DecodeString(into[string](t, raw)))
		case "array":
			items := []any{}
			for _, item := range into[[]map[string]json.RawMessage](t, raw) {
				items = append(items, vectorValue(t, item))
			}
			return items
		case "map":
			found := cell.Fields{}
			for _, pair := range into[[][2]json.RawMessage](t, raw) {
				found[into[string](t, pair[0])] = vectorValue(t, into[map[string]json.RawMessage](t, pair[1]))
			}
			return found
		}
	}
	t.Fatalf("a value of no known kind: %v", tagged)
	return nil
}

func into[T any](t *testing.T, raw json.RawMessage) T {
	t.Helper()
	var value T
	if err := json.Unmarshal(raw, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func must(t *testing.T) func(value any, err error) any {
	return func(value any, err error) any {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestFrameVectors(t *testing.T) {
	for _, v := range loadVectors(t, "valid.json") {
		f, data, err := v.read(t)
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		got := f.Msg
		if got == nil {
			got = cell.Fields{"t": "O", "ch": int64(f.Channel), "stream": int64(f.Stream), "offset": f.Offset, "data": f.Data}
		}
		if diff := cmp.Diff(vectorValue(t, v.Value), any(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", v.Name, diff)
		}
		if v.Shortest && !bytes.Equal(cell.EncodeMessage(got), data) {
			t.Errorf("%s encodes as %x, want %x", v.Name, cell.EncodeMessage(got), data)
		}
	}
	for _, v := range loadVectors(t, "invalid.json") {
		if f, _, err := v.read(t); err == nil {
			t.Errorf("%s is read as %+v", v.Name, f)
		}
	}
}
