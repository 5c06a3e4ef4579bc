// SPDX-License-Identifier: Apache-2.0

// Before: whoever asks about workers. After: the socket, to the server's Asker; then back,
// part by part.

package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
)

// AnsweredError is how the server ended what it was asked through the socket.
type AnsweredError struct {
	Kind int // as the server's Asker numbers it
	Text string
}

func (e *AnsweredError) Error() string { return e.Text }

// asking is what is asked through the socket now.
type asking struct {
	mu      sync.Mutex
	dead    error
	next    uint32
	open    map[uint32]*ask
	writing sync.Mutex
}

// ask is one of them: parts of its answer, in order.
type ask struct {
	parts [][]byte
	bytes int   // of parts
	err   error // how it ended; nil: it goes on
	over  bool  // the server sends no more of it
	some  chan struct{}
}

// ErrBehind is the end of an answer whose caller took nothing while [maxBehind] came.
var ErrBehind = errors.New("the answer was not taken as it came: more waited than is kept")

// maxBehind bounds, in bytes, the parts that wait for one caller, but for a single
// one, which may be as long as a frame.
const maxBehind = 64 << 20

// errEnded is how an answer ends that ends well.
var errEnded = errors.New("ended")

// Ask asks through the socket and calls part with each part of the answer, until that
// returns an error or ctx ends. A caller that is slow makes the parts wait in memory,
// within bounds.
//
// Errors: a *AnsweredError of the server's, part's, ErrGone, ErrBehind, the context's.
func (c *Client) Ask(ctx context.Context, question []byte, part func([]byte) error) error {
	g := &c.asking
	a := &ask{some: make(chan struct{}, 1)}
	g.mu.Lock()
	if g.dead != nil {
		g.mu.Unlock()
		return g.dead
	}
	if g.open == nil {
		g.open = map[uint32]*ask{}
	}
	g.next++
	id := g.next
	g.open[id] = a
	g.mu.Unlock()
	err := c.send(frameAsk, id, question)
	for err == nil {
		g.mu.Lock()
		parts, end := a.parts, a.err
		a.parts, a.bytes = nil, 0
		g.mu.Unlock()
		for _, p := range parts {
			if err = part(p); err != nil {
				break
			}
		}
		if err == nil {
			err = end
		}
		if err != nil {
			break
		}
		select {
		case <-a.some:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	g.mu.Lock()
	delete(g.open, id)
	over := a.over
	g.mu.Unlock()
	if !over {
		_ = c.send(frameCancel, id, nil) // where it fails the connection is gone, and with it the rest
	}
	if errors.Is(err, errEnded) {
		return nil
	}
	return err
}

// send writes a frame of request id.
func (c *Client) send(kind byte, id uint32, body []byte) error {
	c.asking.writing.Lock()
	defer c.asking.writing.Unlock()
	err := writeFor(c.conn, frame(kind, func(b []byte) []byte {
		return append(binary.LittleEndian.AppendUint32(b, id), body...)
	}), writePatience)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return nil
}

// answered takes an answer frame.
func (c *Client) answered(body []byte) error {
	if len(body) < 5 || body[4] == 1 && len(body) < 6 {
		return errors.New("shm: the server's answer is cut short")
	}
	g := &c.asking
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.open[binary.LittleEndian.Uint32(body)]
	if a == nil || a.err != nil {
		return nil // whoever asked has left
	}
	switch part := body[5:]; {
	case body[4] == 0 && len(a.parts) > 0 && a.bytes+len(part) > maxBehind:
		a.parts, a.err = nil, ErrBehind
	case body[4] == 0:
		a.parts = append(a.parts, append([]byte(nil), part...))
		a.bytes += len(part)
	case part[0] == 0 && len(part) == 1:
		a.err, a.over = errEnded, true
	default:
		a.err, a.over = &AnsweredError{int(part[0]), string(part[1:])}, true
	}
	a.tell()
	return nil
}

func (a *ask) tell() {
	select {
	case a.some <- struct{}{}:
	default:
	}
}

// end ends all that is asked.
func (g *asking) end(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead = err
	for _, a := range g.open {
		if a.over = true; a.err == nil {
			a.err = err
		}
		a.tell()
	}
}
