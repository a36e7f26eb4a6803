package kernel

import (
	"fmt"

	"github.com/hermes-framework/hermes/core/cell"
)

const (
	// mostKept bounds the bytes of messages that are kept for a host that has not heard them; who wants to send more waits.
	mostKept = 16 << 20
	// tellEvery is after how many messages the host is told that they were heard, should nothing else be said.
	tellEvery = 32
)

// numbers is one end of a numbered link (docs/protocol.md, section 2.4), its state and nothing else. The other end is class Numbers of host.py;
// testdata/link.json drives both.
type numbers struct {
	sent  int64    // the number of our last message
	kept  [][]byte // the last of them, as frames: those that were not heard
	size  int      // of kept, in bytes
	heard int64    // the number of the host's last message
	told  int64    // what the host knows of that
}

// send returns the frame of our next message.
func (n *numbers) send(msg cell.Fields) []byte {
	n.sent++
	n.told = n.heard
	frame := cell.EncodeNumbered(n.sent, n.heard, msg)
	n.kept = append(n.kept, frame)
	n.size += len(frame)
	return frame
}

// take says whether a message that has come is to be handled: not if it came before.
func (n *numbers) take(number, heard int64) (fresh bool, err error) {
	if err := n.acknowledge(heard); err != nil {
		return false, err
	}
	if number > n.heard+1 || number < 1 {
		return false, fmt.Errorf("%w: message %d after message %d", cell.ErrMalformed, number, n.heard)
	}
	fresh = number > n.heard
	n.heard = max(n.heard, number)
	return fresh, nil
}

// acknowledge lets go of what the host has heard.
func (n *numbers) acknowledge(heard int64) error {
	if heard > n.sent {
		return fmt.Errorf("%w: message %d was heard, of %d", cell.ErrMalformed, heard, n.sent)
	}
	for first := n.sent - int64(len(n.kept)); first < heard; first++ {
		n.size -= len(n.kept[0])
		n.kept[0] = nil
		n.kept = n.kept[1:]
	}
	return nil
}

// resume returns the frames to send again to a host that has heard so much.
func (n *numbers) resume(heard int64) ([][]byte, error) {
	if first := n.sent - int64(len(n.kept)); heard < first {
		return nil, fmt.Errorf("%w: message %d is not heard any more, and %d was", cell.ErrMalformed, heard+1, first)
	}
	if err := n.acknowledge(heard); err != nil {
		return nil, err
	}
	return append([][]byte(nil), n.kept...), nil
}

// hearing adds to a message without a number how far the host was heard.
func (n *numbers) hearing(msg cell.Fields) cell.Fields {
	n.told = n.heard
	msg["heard"] = n.heard
	return msg
}
