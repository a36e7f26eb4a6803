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

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// frameVersion is the version of the kernel frames that this engine speaks.
const frameVersion = 1

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

// greet has both ends of conn prove that they have the token, and returns the incarnation that answered. It closes conn when it fails.
func (h *Host) greet(ctx context.Context, conn io.ReadWriteCloser) (incarnation string, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	welcome, err := hello(conn, h.Token, h.Place.ClientID, h.Place.Remote)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return "", fmt.Errorf("hello to the kernel host: %w", err)
	}
	return welcome.Text("inc"), nil
}

// hello is the hello of docs/protocol.md, section 2.1: the host proves itself first.
func hello(conn io.ReadWriter, token []byte, clientID string, remote bool) (cell.Fields, error) {
	nonce := make([]byte, tokenSize)
	_, _ = rand.Read(nonce) // never fails
	if _, err := conn.Write(cell.EncodeMessage(cell.Fields{"t": "hello", "v": []any{frameVersion}, "nonce": nonce})); err != nil {
		return nil, err
	}
	theirHello, err := readMessage(conn, "hello")
	if err != nil {
		return nil, err
	}
	theirs := theirHello.Bytes("nonce")
	if len(theirs) != tokenSize || !hmac.Equal(theirHello.Bytes("proof"), prove(token, "hermes host v1", nonce, theirs)) {
		return nil, sdk.Errorf(sdk.CodePermission, sdk.NotStarted, "the kernel host does not know our token")
	}
	proof := prove(token, "hermes client v1", theirs, nonce)
	if _, err := conn.Write(cell.EncodeMessage(cell.Fields{"t": "proof", "proof": proof, "client": clientID, "remote": remote})); err != nil {
		return nil, err
	}
	return readMessage(conn, "welcome")
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
		return nil, fmt.Errorf("it speaks frame versions %v, this program speaks %d: use the version of hermes that started it, or end it with that version's `hermes kernels prune`", f.Msg.List("v"), frameVersion)
	case f.Msg.Text("t") == "error":
		return nil, fmt.Errorf("it answered %s: %s", f.Msg.Text("code"), f.Msg.Text("msg"))
	case f.Msg.Text("t") != kind:
		return nil, fmt.Errorf("%w: %q where %q was expected", cell.ErrMalformed, f.Msg.Text("t"), kind)
	}
	return f.Msg, nil
}
