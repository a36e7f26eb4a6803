package kernelhost

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// frameVersions are the versions of the kernel frames that this engine speaks. From 2 on a link has a name, and its messages numbers.
var frameVersions = []any{1, 2}

const (
	helloLimit = 4 << 10
	tokenSize  = 32
)

// NewToken makes the secret that opens one kernel host: 32 random bytes.
func NewToken() []byte {
	token := make([]byte, tokenSize)
	_, _ = rand.Read(token) // never fails
	return token
}

// greet has both ends of conn prove that they have the token, and returns the host's welcome. It closes conn when it fails.
func (h *Host) greet(ctx context.Context, conn io.ReadWriteCloser, about cell.Fields) (welcome cell.Fields, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	proof := cell.Fields{"client": h.Place.ClientID, "remote": h.Place.Remote}
	maps.Copy(proof, about)
	welcome, err = hello(conn, h.Token, h.Info.Incarnation, proof)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("hello to the kernel host: %w", err)
	}
	return welcome, nil
}

// hello is the hello of docs/protocol.md, section 2.1: the host proves itself first. about goes with our proof; the welcome is completed by the version.
func hello(conn io.ReadWriter, token []byte, inc string, about cell.Fields) (cell.Fields, error) {
	versions := frameVersions
	if !about.Has("link") {
		versions = versions[:1]
	}
	nonce := make([]byte, tokenSize)
	_, _ = rand.Read(nonce) // never fails
	if _, err := conn.Write(cell.EncodeMessage(cell.Fields{"t": "hello", "v": versions, "nonce": nonce})); err != nil {
		return nil, err
	}
	theirHello, err := readMessage(conn, "hello")
	if err != nil {
		return nil, err
	}
	theirs := theirHello.Bytes("nonce")
	if len(theirs) != tokenSize || !hmac.Equal(theirHello.Bytes("proof"), prove(token, "hermes host v1", nonce, theirs)) {
		if other := theirHello.Text("inc"); other != "" && inc != "" && other != inc { // the next one listens at the same place
			return nil, sdk.Errorf(sdk.CodeNotFound, sdk.NotStarted, "the kernel host %s is gone: %s is there", inc, other)
		}
		return nil, sdk.Errorf(sdk.CodePermission, sdk.NotStarted, "the kernel host does not know our token")
	}
	about["t"], about["proof"] = "proof", prove(token, "hermes client v1", theirs, nonce)
	if _, err := conn.Write(cell.EncodeMessage(about)); err != nil {
		return nil, err
	}
	welcome, err := readMessage(conn, "welcome")
	if err == nil {
		welcome["v"] = theirHello.Int("v")
	}
	return welcome, err
}

func prove(token []byte, label string, nonces ...[]byte) []byte {
	mac := hmac.New(sha256.New, token)
	mac.Write([]byte(label))
	mac.Write(bytes.Join(nonces, nil))
	return mac.Sum(nil)
}

func readMessage(r io.Reader, kind string) (cell.Fields, error) {
	f, err := cell.ReadFrame(r, helloLimit)
	switch {
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	case f.Msg.Text("t") == "error" && f.Msg.Text("code") == "version":
		return nil, fmt.Errorf("it speaks frame versions %v, this program speaks %v: use the version of hermes that started it, or end it with that version's `hermes kernels prune`", f.Msg.List("v"), frameVersions)
	case f.Msg.Text("t") == "error":
		return nil, fmt.Errorf("it answered %s: %s", f.Msg.Text("code"), f.Msg.Text("msg"))
	case f.Msg.Text("t") != kind:
		return nil, fmt.Errorf("%w: %q where %q was expected", cell.ErrMalformed, f.Msg.Text("t"), kind)
	}
	return f.Msg, nil
}
