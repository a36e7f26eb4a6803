package cell

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The expected bytes are those of the MessagePack specification's formats.
func TestMessagesEncodeInTheShortestForm(t *testing.T) {
	for _, c := range []struct {
		value any
		want  string
	}{
		{nil, "c0"},
		{false, "c2"},
		{true, "c3"},
		{int64(0), "00"},
		{int64(127), "7f"},
		{int64(128), "cc80"},
		{int64(256), "cd0100"},
		{int64(65536), "ce00010000"},
		{int64(1 << 32), "cf0000000100000000"},
		{int64(-1), "ff"},
		{int64(-32), "e0"},
		{int64(-33), "d0df"},
		{int64(-129), "d1ff7f"},
		{int64(-32769), "d2ffff7fff"},
		{int64(math.MinInt64), "d38000000000000000"},
		{1.5, "cb3ff8000000000000"},
		{"", "a0"},
		{"é", "a2c3a9"},
		{strings.Repeat("a", 32), "d920" + strings.Repeat("61", 32)},
		{[]byte{}, "c400"},
		{[]byte{1, 2}, "c4020102"},
		{[]any{int64(1), "a"}, "9201a161"},
		{Fields{"b": int64(1), "a": nil}, "82a161c0a16201"},
	} {
		got := AppendValue(nil, c.value)
		if hex.EncodeToString(got) != c.want {
			t.Errorf("%#v encodes as %x, want %s", c.value, got, c.want)
		}
		d := decoder{data: got}
		back, err := d.value(0)
		if diff := cmp.Diff(c.value, back); err != nil || diff != "" {
			t.Errorf("%s decodes with error %v and (-want +got):\n%s", c.want, err, diff)
		}
	}
}

func TestLongValuesSurvive(t *testing.T) {
	list := make([]any, 70_000)
	for i := range list {
		list[i] = int64(i)
	}
	want := Fields{"s16": strings.Repeat("x", 300), "s32": strings.Repeat("y", 70_000), "b": bytes.Repeat([]byte{7}, 70_000), "l": list, "m": Fields{}}
	for i := range 20 {
		want.Map("m")[strings.Repeat("k", i+1)] = true
	}
	got, err := DecodeFields(AppendValue(nil, want))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v, (-want +got):\n%s", err, diff)
	}
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	for name, data := range map[string]string{
		"nothing":                "",
		"not a map":              "c0",
		"trailing bytes":         "80c0",
		"cut string":             "81a161a561",
		"key is a number":        "8101c0",
		"string not UTF-8":       "81a161a1ff",
		"ext type":               "81a161d40101",
		"array longer than data": "81a161ddffffffff",
		"number over int64":      "81a161cfffffffffffffffff",
		"reserved byte":          "81a161c1",
		"nested too deeply":      strings.Repeat("81a161", 40) + "c0",
	} {
		raw, err := hex.DecodeString(data)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeFields(raw); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %v and error %v, want errMalformed", name, got, err)
		}
	}
}

func TestFramesSurvive(t *testing.T) {
	frames := []Frame{
		{Msg: Fields{"t": "ping"}},
		{Channel: 7, Stream: StreamErr, Offset: 1 << 40, Data: []byte("out\x00put")},
		{Channel: 1, Stream: StreamOut, Data: []byte{}},
	}
	var wire bytes.Buffer
	for _, f := range frames {
		wire.Write(EncodeFrame(f))
	}
	r := bufio.NewReader(&wire)
	for _, want := range frames {
		got, err := ReadFrame(r, MaxFrame)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Frame{}), cmpopts.IgnoreFields(Frame{}, "body")); err != nil || diff != "" {
			t.Errorf("error %v, (-want +got):\n%s", err, diff)
		}
	}
}

func FuzzDecodeFrame(f *testing.F) {
	f.Add(EncodeMessage(Fields{"t": "submit", "cell": "a-1", "ch": 1, "code": "1", "digest": []byte{1}, "x": []any{1.5, nil, -7}})[4:])
	f.Add(EncodeFrame(Frame{Channel: 1, Stream: StreamOut, Offset: 3, Data: []byte("abc")})[4:])
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := DecodeFrame(bytes.Clone(body))
		if err != nil {
			return
		}
		again, err := DecodeFrame(EncodeFrame(got)[4:])
		if err != nil {
			t.Fatalf("%x decodes, and its encoding does not: %v", body, err)
		}
		if !bytes.Equal(EncodeFrame(got), EncodeFrame(again)) {
			t.Errorf("%x decodes as %v and then as %v", body, got, again)
		}
	})
}
