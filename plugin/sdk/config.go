package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Decode reads OpenRequest.Config into a T. An empty config is T's zero value. A field that T does not have, a value of another type
// and anything that is not one JSON object is an Error with CodeInvalid that names the field.
func Decode[T any](config []byte) (T, error) {
	var v T
	if len(bytes.TrimSpace(config)) == 0 {
		return v, nil
	}
	dec := json.NewDecoder(bytes.NewReader(config))
	dec.DisallowUnknownFields()
	err := dec.Decode(&v)
	if err == nil {
		if _, more := dec.Token(); more != io.EOF {
			err = errors.New("there is more than one JSON value")
		}
	}
	if err != nil {
		var none T
		return none, Errorf(CodeInvalid, NotStarted, "config: %s", describeJSON(err))
	}
	return v, nil
}

// describeJSON says what is wrong without quoting a value, which may be a secret.
func describeJSON(err error) string {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if e.Field == "" {
			return fmt.Sprintf("must be a JSON object, not a %s", kind(e.Value))
		}
		return fmt.Sprintf("field %q must be of type %s, not %s", e.Field, e.Type, kind(e.Value))
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("not valid JSON at byte %d", e.Offset)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "not valid JSON: it ends too early"
	}
	return strings.TrimPrefix(err.Error(), "json: ") // unknown field "x"
}

// kind is the JSON type in an UnmarshalTypeError's value, which for numbers goes on with the number itself.
func kind(value string) string {
	k, _, _ := strings.Cut(value, " ")
	return k
}
