// SPDX-License-Identifier: Apache-2.0

// Before: the shards' reply rings. After: the calls that wait for what is in them.

package shm

import (
	"fmt"
)

// maxMatches bounds one shard's answer.
const maxMatches = 1 << 20

// broken says that the server broke the rules.
func broken(err error) error { return fmt.Errorf("%w: %w", ErrGone, err) }

// consume takes out all replies that are there. The caller holds mu.
func (c *Client) consume() {
	if c.dead != nil {
		return
	}
	some := false
	for i := range c.shards {
		s := &c.shards[i]
		got := false
		for s.in.ready() {
			if err := c.take(i, s); err != nil {
				c.killLocked(broken(err))
				return
			}
			got = true
		}
		if !got {
			continue
		}
		some = true
		s.in.free()
		if s.words.serverStuck.Load() != 0 {
			s.words.serverBell.Add(1)
			wake(s.words.serverBell)
		}
	}
	if some {
		c.pushOthers()
	}
}

// pushOthers wakes those whose request had no room: where replies came, requests were
// taken.
func (c *Client) pushOthers() {
	if c.unsent == 0 {
		return
	}
	for _, call := range c.calls {
		if call != nil && call.unsent > 0 && call.waits {
			call.wake()
		}
	}
}

// take reads the next record of shard i's replies.
func (c *Client) take(i int, s *clientShard) error {
	var h header
	n, err := s.in.next(&h, c.mostIn)
	if err != nil {
		return err
	}
	matches := h.u32(recMatches)
	at, of := h.records()
	if matches > maxMatches || n%matchSize != 0 || of != uint32(records(int(matches)*matchSize, c.mostIn)) || at >= of || Status(h.u32(recStatus)) >= numStatuses {
		return errRing
	}
	id := h.u64(recID)
	call := c.calls[id%maxCalls]
	if call == nil || call.id != id || call.done.Load() {
		s.in.skip(n) // whoever asked has left
		return nil
	}
	p := &call.parts[i]
	if at == 0 {
		p.matches = int(matches)
	}
	p.matches -= n / matchSize
	last := at+1 == of
	if at != p.next || at > 0 && of != p.of || p.matches < 0 || last != (p.matches == 0) && of > 1 || last && p.matches != 0 {
		return errRing
	}
	p.next, p.of = at+1, of
	from := len(call.Matches)
	call.Matches = grow(call.Matches, n/matchSize)
	s.in.payload(0, matchBytes(call.Matches[from:]))
	s.in.skip(n)
	if !last {
		return nil
	}
	call.Status = max(call.Status, Status(h.u32(recStatus)))
	call.Version = max(call.Version, h.u64(recVersion))
	if call.left--; call.left == 0 {
		c.finish(call, nil)
	}
	return nil
}
