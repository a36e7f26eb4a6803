package kernelhost

import (
	"errors"
	"net"
	"testing"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// callPlace is a place whose commands cannot be talked to while they run.
func callPlace(env sdk.Environment) *Place {
	return &Place{Name: "fake:", Env: env, Caps: []sdk.Capability{sdk.CapStdin}, Interpreter: "py"}
}

// A command that starts when the connection is closed would have nobody who waits for it.
func TestAClosedCallConnectionStartsNoCommand(t *testing.T) {
	env := &scripted{}
	conn := newCallConn(t.Context(), callPlace(env), Info{}, NewToken())
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	for _, msg := range []cell.Fields{{"t": "shutdown", "req": int64(1)}, {"t": "submit", "cell": "c", "ch": int64(1)}} {
		if n, err := conn.Write(cell.EncodeMessage(msg)); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %d bytes taken, error %v; want net.ErrClosed", msg.Text("t"), n, err)
		}
	}
	conn.wg.Wait() // of those that should not be there
	if env.execs != 0 {
		t.Errorf("%d commands were started", env.execs)
	}
}
