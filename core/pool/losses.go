package pool

import "container/list"

// mostLosses bounds what is kept for owners that never come back. The oldest is dropped then: should its owner come back after 10,000 others have
// lost their kernels, it gets a fresh kernel that does not say why.
const mostLosses = 10_000

// losses are the reasons why state is gone, until somebody tells them: one for each key, the latest.
type losses struct {
	byKey map[Key]*list.Element
	order *list.List // oldest first
}

type loss struct {
	key    Key
	reason string
}

func newLosses() losses { return losses{byKey: map[Key]*list.Element{}, order: list.New()} }

// get returns the reason of key, or nothing.
func (l losses) get(key Key) string {
	if at := l.byKey[key]; at != nil {
		return at.Value.(loss).reason
	}
	return ""
}

func (l losses) note(key Key, reason string) {
	l.take(key)
	l.byKey[key] = l.order.PushBack(loss{key, reason})
	if l.order.Len() > mostLosses {
		l.take(l.order.Front().Value.(loss).key)
	}
}

// take removes the reason of key and returns it.
func (l losses) take(key Key) string {
	at := l.byKey[key]
	if at == nil {
		return ""
	}
	delete(l.byKey, key)
	return l.order.Remove(at).(loss).reason
}

// drop removes the reasons of the keys that match.
func (l losses) drop(match func(Key) bool) {
	for key := range l.byKey {
		if match(key) {
			l.take(key)
		}
	}
}
