package kernelhost

import (
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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

// A command that hangs breaks the connection, so that what was asked is asked again.
func TestACallThatHangsBreaksTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := newCallConn(t.Context(), callPlace(hangs{}), Info{}, NewToken())
		defer func() { _ = conn.Close() }()
		begun := time.Now()
		if _, err := conn.Write(cell.EncodeMessage(cell.Fields{"t": "list", "req": int64(1)})); err != nil {
			t.Fatal(err)
		}
		stop := time.AfterFunc(time.Hour, func() { _ = conn.Close() })
		defer stop.Stop()
		_, err := conn.Read(make([]byte, 1))
		if took := time.Since(begun); !errors.Is(err, sdk.ErrUnavailable) || took != callTimeout {
			t.Errorf("after %s: %v; want ErrUnavailable after %s", took, err, callTimeout)
		}
	})
}

// A command that ends without the answer does so, too: nobody brings it later.
func TestACallWithoutAnAnswerBreaksTheConnection(t *testing.T) {
	conn := newCallConn(t.Context(), callPlace(&scripted{stdout: "hermes-call\n"}), Info{}, NewToken())
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write(cell.EncodeMessage(cell.Fields{"t": "list", "req": int64(1)})); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(10*time.Second, func() { _ = conn.Close() })
	defer stop.Stop()
	if _, err := conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "before the host had answered") {
		t.Errorf("got %v", err)
	}
}
