package cell

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"
)

// Fields is one message of the kernel protocol: a map with string keys whose values are nil, bool, int64, float64, string,
// []byte, []any or Fields (AppendValue takes int, uint32 and map[string]string, too). Its encoding is the subset of MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md) that docs/protocol.md names.
type Fields map[string]any

// ErrMalformed is wrapped by every decoding error.
var ErrMalformed = errors.New("malformed message")

// maxDepth bounds nesting, so that a hostile message cannot exhaust the stack.
const maxDepth = 16

// Text is the string at key; empty if there is none.
func (f Fields) Text(key string) string { s, _ := f[key].(string); return s }

// Bytes are the bytes at key; nil if there are none.
func (f Fields) Bytes(key string) []byte { b, _ := f[key].([]byte); return b }

// Flag is the bool at key; false if there is none.
func (f Fields) Flag(key string) bool { b, _ := f[key].(bool); return b }

// Map is the message at key; nil if there is none.
func (f Fields) Map(key string) Fields { m, _ := f[key].(Fields); return m }

// List is the array at key; nil if there is none.
func (f Fields) List(key string) []any { l, _ := f[key].([]any); return l }

// Int is the integer at key; 0 if there is none.
func (f Fields) Int(key string) int64 { n, _ := f[key].(int64); return n }

// Has says whether there is anything but nil at key.
func (f Fields) Has(key string) bool { return f[key] != nil }

// Float is the number at key, also if it is an integer; 0 if there is none.
func (f Fields) Float(key string) float64 {
	switch n := f[key].(type) {
	case float64:
		return n
	case int64:
		return float64(n)
	}
	return 0
}

// AppendValue appends the shortest encoding of v, whose type must be one that Fields lists. Keys are written in order, so equal messages are equal bytes.
func AppendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, 0xc0)
	case bool:
		if v {
			return append(b, 0xc3)
		}
		return append(b, 0xc2)
	case int:
		return appendInt(b, int64(v))
	case uint32:
		return appendInt(b, int64(v))
	case int64:
		return appendInt(b, v)
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v))
	case string:
		return append(appendHead(b, len(v), 0xa0, 32, 0xd9), v...)
	case []byte:
		return append(appendHead(b, len(v), 0, 0, 0xc4), v...)
	case []any:
		b = appendHead(b, len(v), 0x90, 16, 0xdb)
		for _, e := range v {
			b = AppendValue(b, e)
		}
		return b
	case map[string]string:
		b = appendHead(b, len(v), 0x80, 16, 0xdd)
		for _, k := range slices.Sorted(maps.Keys(v)) {
			b = AppendValue(AppendValue(b, k), v[k])
		}
		return b
	case Fields:
		b = appendHead(b, len(v), 0x80, 16, 0xdd)
		for _, k := range slices.Sorted(maps.Keys(v)) {
			b = AppendValue(AppendValue(b, k), v[k])
		}
		return b
	}
	panic(fmt.Sprintf("cell: no encoding for a %T", v)) // a fault of this module, which builds every message
}

func appendInt(b []byte, n int64) []byte {
	switch {
	case n >= 0 && n < 128, n < 0 && n >= -32:
		return append(b, byte(n))
	case n >= 0 && n <= math.MaxUint8:
		return append(b, 0xcc, byte(n))
	case n >= 0 && n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	case n >= 0 && n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	case n >= 0:
		return binary.BigEndian.AppendUint64(append(b, 0xcf), uint64(n))
	case n >= math.MinInt8:
		return append(b, 0xd0, byte(n))
	case n >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(b, 0xd1), uint16(n))
	case n >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(n))
}

// appendHead appends the type and length of a str, bin, array or map. Below fixed the short form fix|n is used;
// wide is the code of the 8-bit form for str and bin. Arrays and maps have no 8-bit form: theirs is one before the 16-bit one.
func appendHead(b []byte, n int, fix byte, fixed int, wide byte) []byte {
	switch {
	case n < fixed:
		return append(b, fix|byte(n))
	case n <= math.MaxUint8 && fix != 0x80 && fix != 0x90:
		return append(b, wide, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, wide+1), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, wide+2), uint32(n))
}

// DecodeFields decodes one message that fills data. Its errors wrap ErrMalformed.
func DecodeFields(data []byte) (Fields, error) {
	d := decoder{data: data}
	v, err := d.value(0)
	if err != nil {
		return nil, err
	}
	m, ok := v.(Fields)
	if !ok {
		return nil, fmt.Errorf("%w: a %T where a map was expected", ErrMalformed, v)
	}
	if len(d.data) > 0 {
		return nil, fmt.Errorf("%w: %d bytes after the map", ErrMalformed, len(d.data))
	}
	return m, nil
}

type decoder struct{ data []byte }

func (d *decoder) take(n int) ([]byte, error) {
	if n < 0 || n > len(d.data) {
		return nil, fmt.Errorf("%w: it ends early", ErrMalformed)
	}
	b := d.data[:n]
	d.data = d.data[n:]
	return b, nil
}

// uint reads an n-byte big-endian number.
func (d *decoder) uint(n int) (uint64, error) {
	b, err := d.take(n)
	if err != nil {
		return 0, err
	}
	var v uint64
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return v, nil
}

func (d *decoder) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: nested deeper than %d", ErrMalformed, maxDepth)
	}
	head, err := d.take(1)
	if err != nil {
		return nil, err
	}
	c := head[0]
	switch {
	case c < 0x80:
		return int64(c), nil
	case c < 0x90:
		return d.mapOf(int(c&0x0f), depth)
	case c < 0xa0:
		return d.arrayOf(int(c&0x0f), depth)
	case c < 0xc0:
		return d.text(int(c & 0x1f))
	case c >= 0xe0:
		return int64(int8(c)), nil
	}
	switch c {
	case 0xc0:
		return nil, nil
	case 0xc2, 0xc3:
		return c == 0xc3, nil
	case 0xca:
		n, err := d.uint(4)
		return float64(math.Float32frombits(uint32(n))), err
	case 0xcb:
		n, err := d.uint(8)
		return math.Float64frombits(n), err
	case 0xcc, 0xcd, 0xce, 0xcf:
		n, err := d.uint(1 << (c - 0xcc))
		if n > math.MaxInt64 {
			return nil, fmt.Errorf("%w: the number %d does not fit", ErrMalformed, n)
		}
		return int64(n), err
	case 0xd0, 0xd1, 0xd2, 0xd3:
		size := 1 << (c - 0xd0)
		n, err := d.uint(size)
		shift := 64 - 8*size
		return int64(n) << shift >> shift, err
	}
	return d.long(c, depth)
}

// long decodes the forms whose length is a number of its own.
func (d *decoder) long(c byte, depth int) (any, error) {
	sizes := map[byte]int{0xc4: 1, 0xc5: 2, 0xc6: 4, 0xd9: 1, 0xda: 2, 0xdb: 4, 0xdc: 2, 0xdd: 4, 0xde: 2, 0xdf: 4}
	size, known := sizes[c]
	if !known {
		return nil, fmt.Errorf("%w: type byte %#x", ErrMalformed, c)
	}
	n, err := d.uint(size)
	if err != nil {
		return nil, err
	}
	if n > uint64(len(d.data)) {
		return nil, fmt.Errorf("%w: a length of %d with %d bytes left", ErrMalformed, n, len(d.data))
	}
	switch c {
	case 0xc4, 0xc5, 0xc6:
		return d.take(int(n))
	case 0xd9, 0xda, 0xdb:
		return d.text(int(n))
	case 0xdc, 0xdd:
		return d.arrayOf(int(n), depth)
	}
	return d.mapOf(int(n), depth)
}

func (d *decoder) text(n int) (any, error) {
	b, err := d.take(n)
	if err == nil && !utf8.Valid(b) {
		return nil, fmt.Errorf("%w: a string that is not UTF-8", ErrMalformed)
	}
	return string(b), err
}

func (d *decoder) arrayOf(n, depth int) (any, error) {
	list := make([]any, 0, min(n, len(d.data)))
	for range n {
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

func (d *decoder) mapOf(n, depth int) (any, error) {
	m := make(Fields, min(n, len(d.data)))
	for range n {
		k, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		key, ok := k.(string)
		if !ok {
			return nil, fmt.Errorf("%w: a %T as a key", ErrMalformed, k)
		}
		if m[key], err = d.value(depth + 1); err != nil {
			return nil, err
		}
	}
	return m, nil
}
