package sdk

import (
	"errors"
	"io"
	"sync"
)

// queue holds bytes on their way from the goroutine that receives messages to the one that uses them. Its size is bounded
// by the credit that its owner grants.
type queue struct {
	mu     sync.Mutex
	cond   sync.Cond
	buf    []byte
	read   int   // how much of buf was taken
	err    error // what a reader gets after the bytes
	failed bool  // the reader gets err at once
}

func newQueue() *queue {
	q := &queue{}
	q.cond.L = &q.mu
	return q
}

// push adds p and reports how many bytes are waiting.
func (q *queue) push(p []byte) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		if q.read > 0 && len(q.buf)+len(p) > cap(q.buf) {
			q.buf, q.read = q.buf[:copy(q.buf, q.buf[q.read:])], 0
		}
		q.buf = append(q.buf, p...)
		q.cond.Signal()
	}
	return len(q.buf) - q.read
}

// end lets the reader have what is there, then err.
func (q *queue) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
		q.cond.Broadcast()
	}
}

// fail gives the reader err at once; what is there is dropped.
func (q *queue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil || errors.Is(q.err, io.EOF) {
		q.err = err
	}
	q.failed = true
	q.cond.Broadcast()
}

// wait waits for bytes or the end, with mu held.
func (q *queue) wait() error {
	for q.read == len(q.buf) && q.err == nil {
		q.cond.Wait()
	}
	if q.failed || q.read == len(q.buf) {
		return q.err
	}
	return nil
}

// take waits for bytes and returns all of them. The queue goes on with spare, the slice that the last take returned.
func (q *queue) take(spare []byte) ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.wait(); err != nil {
		return nil, err
	}
	p := q.buf[q.read:]
	q.buf, q.read = spare[:0], 0
	return p, nil
}

// Read implements io.Reader.
func (q *queue) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.wait(); err != nil {
		return 0, err
	}
	n := copy(p, q.buf[q.read:])
	q.read += n
	return n, nil
}

// credit is how far a sender may go; another goroutine raises it.
type credit struct {
	mu    sync.Mutex
	cond  sync.Cond
	limit uint64
	err   error
}

func newCredit(limit uint64) *credit {
	c := &credit{limit: limit}
	c.cond.L = &c.mu
	return c
}

// raise sets the limit, which never sinks.
func (c *credit) raise(limit uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if limit > c.limit {
		c.limit = limit
		c.cond.Broadcast()
	}
}

// stop makes wait return err.
func (c *credit) stop(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		c.cond.Broadcast()
	}
}

// wait waits until something may be sent at offset and returns how much, at most want.
func (c *credit) wait(offset uint64, want int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.limit <= offset && c.err == nil {
		c.cond.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	return int(min(uint64(want), c.limit-offset)), nil
}
