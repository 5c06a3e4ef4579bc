// SPDX-License-Identifier: Apache-2.0

// Before: a caller with its question. After: the same caller, with the answer that it
// or another caller took out of the reply rings.

package shm

import (
	"context"
	"time"
)

// cancelEvery is how soon a caller that sleeps for all notices that its context was
// cancelled, and napAlone how long it sleeps at most otherwise.
const (
	cancelEvery = 5 * time.Millisecond
	napAlone    = 50 * time.Millisecond
)

// Now returns the clock that deadlines are of, in nanoseconds: the machine's
// monotonic one.
func Now() uint64 { return now() }

// Do asks call and waits for its answer until ctx is cancelled or the clock, see
// [Now], is at deadline. A context's own deadline is the caller's to convert.
//
// Concurrency: several at once; one sleeps in the kernel for all, the others on
// channels. It allocates nothing once call has memory.
// Errors: ErrGone, ErrLeaving, ErrLate, the context's.
func (c *Client) Do(ctx context.Context, deadline uint64, call *Call) error {
	call.deadline = deadline
	n := records(call.payload(), c.most)
	if n > 1 {
		if err := c.claim(ctx, call); err != nil {
			return err
		}
		defer func() { c.long <- struct{}{} }()
	}
	c.mu.Lock()
	for len(c.free) == 0 {
		c.queued++
		c.mu.Unlock()
		err := c.queue(ctx, call, c.freed)
		c.mu.Lock()
		c.queued--
		if err != nil {
			c.passOn()
			c.mu.Unlock()
			return err
		}
	}
	if err := c.admit(); err != nil {
		c.passOn()
		c.mu.Unlock()
		return err
	}
	c.begin(call, n)
	c.push(call)
	c.mu.Unlock()
	var locked bool
	var err error
	if c.spin > 0 {
		locked, err = c.look(call)
	}
	if !locked {
		err = c.wait(ctx, call)
		c.mu.Lock()
	}
	c.end(call)
	c.leave()
	c.mu.Unlock()
	return err
}

// passOn lets the next one that waits for a place look. The caller holds mu.
func (c *Client) passOn() {
	if c.queued > 0 && len(c.free) > 0 {
		select {
		case c.freed <- struct{}{}:
		default:
		}
	}
}

// admit counts a user of the memory. The caller holds mu.
func (c *Client) admit() error {
	switch {
	case c.dead != nil:
		return c.dead
	case c.retired:
		return ErrLeaving
	}
	c.users++
	return nil
}

// leave counts one out; the last one closes the door. The caller holds mu.
func (c *Client) leave() {
	c.users--
	if c.users > 0 {
		return
	}
	if c.dead != nil {
		_ = c.mem.close() // a mapping of ours: nothing can be wrong with it
	} else if c.retired {
		c.killLocked(ErrLeaving)
	}
}

// claim takes the right to send several records.
func (c *Client) claim(ctx context.Context, call *Call) error {
	select {
	case <-c.long:
		return nil
	default:
		return c.queue(ctx, call, c.long)
	}
}

// queue waits for a token.
func (c *Client) queue(ctx context.Context, call *Call, token <-chan struct{}) error {
	call.arm()
	defer call.timer.Stop()
	select {
	case <-token:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.gone:
		return c.Err()
	case <-call.timer.C:
		return ErrLate
	}
}

// arm sets the timer to the call's deadline.
func (call *Call) arm() { call.timer.Reset(max(time.Duration(call.deadline-now()), 0)) }

func (call *Call) payload() int { return len(call.Hashes)*hashSize + len(call.Holders)*holderSize }

// begin enters call among those under way. The caller holds mu.
func (c *Client) begin(call *Call, records int) {
	c.seq++
	call.slot = c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.unsent++
	call.id = c.seq*maxCalls + uint64(call.slot)
	call.err, call.Status, call.Version, call.Matches = nil, StatusOK, 0, call.Matches[:0]
	call.left, call.unsent = len(c.shards), len(c.shards)*records
	call.parts = call.parts[:0]
	for range c.shards {
		call.parts = append(call.parts, callPart{})
	}
	call.waits, call.promoted = false, false
	call.done.Store(false)
	select {
	case <-call.woken: // a token of an earlier life
	default:
	}
	c.calls[call.slot] = call
}

// end takes call out: nothing of it is written any more. The caller holds mu.
func (c *Client) end(call *Call) {
	for i := range c.shards {
		if c.dead == nil {
			c.shards[i].out.ahead()
		}
	}
	c.calls[call.slot] = nil
	c.free = append(c.free, call.slot)
	c.passOn()
	if call.unsent > 0 {
		c.unsent--
		call.unsent = 0
	}
	c.rest(call, false)
	if call.promoted {
		call.promoted = false
		c.promote()
	}
}

// push writes what there is room for of call's request, to each shard. The caller
// holds mu.
func (c *Client) push(call *Call) {
	if call.unsent == 0 || c.dead != nil {
		return
	}
	var h header
	h.put64(recID, call.id)
	h.put32(recHashes, uint32(len(call.Hashes)))
	h.put32(recHolders, uint32(len(call.Holders)))
	h.put32(recLimit, uint32(call.Limit))
	h.put64(recModel, call.Model)
	h.put64(recSeed, call.Seed)
	h.put64(recDeadline, call.deadline+c.offset)
	if call.Filtered {
		h.put32(recFlags, flagFiltered)
	}
	total := call.payload()
	of := records(total, c.most)
	for i := range c.shards {
		s, part := &c.shards[i], &call.parts[i]
		wrote := false
		for part.sent < of {
			from := part.sent * c.most
			n := min(c.most, total-from)
			need := taken(n)
			free, err := s.out.room(need)
			if err != nil {
				c.killLocked(broken(err))
				return
			}
			if free < need {
				break
			}
			h.piece(part.sent, of, n)
			a, b := call.slice(from, n)
			s.out.write(&h, a, b)
			part.sent++
			if call.unsent--; call.unsent == 0 {
				c.unsent--
			}
			wrote = true
		}
		if wrote {
			s.ring()
		}
	}
}

// slice returns n bytes of the payload from off on: a part of the hashes, and one of
// the holders.
func (call *Call) slice(off, n int) (a, b []byte) {
	hashes, holders := hashBytes(call.Hashes), holderBytes(call.Holders)
	if off < len(hashes) {
		a = hashes[off:min(off+n, len(hashes))]
	}
	if end := off + n - len(hashes); end > 0 {
		b = holders[max(off-len(hashes), 0):end]
	}
	return a, b
}

// ring wakes the shard's thread where it sleeps.
func (s *clientShard) ring() {
	if s.words.serverSleeps.Load() != 0 && s.words.serverSleeps.Swap(0) != 0 {
		s.words.serverBell.Add(1)
		wake(s.words.serverBell)
	}
}

// moved reports whether a shard has written something.
func (c *Client) moved() bool {
	for i := range c.shards {
		if c.shards[i].in.moved() {
			return true
		}
	}
	return false
}

// wait returns when call is done, or late, or cancelled. It sleeps in the kernel for
// all, if nobody does, or on its channel until somebody has its answer or it is its
// turn to sleep for all.
func (c *Client) wait(ctx context.Context, call *Call) error {
	for {
		c.mu.Lock()
		switch {
		case call.done.Load():
			err := call.err
			c.mu.Unlock()
			return err
		case ctx.Err() != nil:
			c.mu.Unlock()
			return ctx.Err()
		case now() >= call.deadline:
			c.mu.Unlock()
			return ErrLate
		case !c.leads:
			c.leads, call.promoted = true, false
			c.mu.Unlock()
			c.lead(ctx, call)
			c.mu.Lock()
			c.leads = false
			c.promote()
			c.mu.Unlock()
			continue
		}
		c.rest(call, true)
		c.mu.Unlock()
		call.arm()
		select {
		case <-call.woken:
		case <-ctx.Done():
		case <-call.timer.C:
		}
		call.timer.Stop()
		c.mu.Lock()
		c.rest(call, false)
		c.push(call)
		c.mu.Unlock()
	}
}

// rest notes whether call waits on its channel. The caller holds mu.
func (c *Client) rest(call *Call, waits bool) {
	if call.waits == waits {
		return
	}
	call.waits = waits
	if waits {
		c.waiting++
	} else {
		c.waiting--
	}
}

// look spins for the answer. Where it is there the lock is held, else not.
func (c *Client) look(call *Call) (locked bool, err error) {
	var end uint64
	for {
		for range 64 {
			if call.done.Load() {
				c.mu.Lock()
				return true, call.err
			}
			if c.moved() {
				c.mu.Lock()
				c.consume()
				if call.done.Load() {
					return true, call.err
				}
				c.push(call)
				c.mu.Unlock()
				continue
			}
			pause(1)
		}
		switch at := now(); {
		case end == 0:
			end = at + uint64(c.spin)
		case at >= end:
			return false, nil
		}
	}
}

// lead sleeps for all until call is done, or late, or cancelled, and takes out what
// comes for whomever.
func (c *Client) lead(ctx context.Context, call *Call) {
	most := napAlone
	if ctx.Done() != nil {
		most = cancelEvery
	}
	for {
		bell := c.bell.Load()
		c.sleeps.Store(1)
		c.mu.Lock()
		c.consume()
		c.push(call)
		c.mu.Unlock()
		at := now()
		if call.done.Load() || at >= call.deadline || ctx.Err() != nil {
			c.sleeps.Store(0)
			return
		}
		sleep(c.bell, bell, min(most, time.Duration(call.deadline-at)))
	}
}

// promote lets one that waits sleep for all. The caller holds mu.
func (c *Client) promote() {
	if c.leads || c.waiting == 0 {
		return
	}
	for _, call := range c.calls {
		if call != nil && call.waits && !call.done.Load() {
			c.rest(call, false)
			call.promoted = true
			call.wake()
			return
		}
	}
}

// wake leaves a token. The caller holds the client's lock.
func (call *Call) wake() {
	select {
	case call.woken <- struct{}{}:
	default:
	}
}

// finish ends call with err. The caller holds mu.
func (c *Client) finish(call *Call, err error) {
	if call.done.Load() {
		return
	}
	call.err = err
	call.done.Store(true)
	if call.waits {
		c.rest(call, false)
		call.wake()
	}
}
