// SPDX-License-Identifier: Apache-2.0

// Before: cache.go, which has new blocks. After: nothing.

package engine

import (
	lists "container/list"
	"slices"

	"kindex/internal/kv"
)

// hostTier is the second tier of a rank's cache: every block that is cached on the
// device is copied there after its pass, and stays when the device loses it. The
// block that was not asked for the longest makes room, of a chain its tail first.
//
// Concurrency: one goroutine at a time.
type hostTier struct {
	most    int // blocks
	blocks  map[digest]*lists.Element
	order   *lists.List // of digest, the next to go in front
	waiting []toCopy
}

// toCopy is a run of blocks that was told on the device and is not yet on the host.
type toCopy struct {
	names []digest
	event kv.Event // as it was told on the device
}

func newHostTier(most int) *hostTier {
	return &hostTier{most: most, blocks: make(map[digest]*lists.Element), order: lists.New()}
}

func (h *hostTier) has(d digest) bool { return h.blocks[d] != nil }

// held returns how many of the leading blocks are there.
func (h *hostTier) held(names []digest) int {
	for i := range names {
		if !h.has(names[i]) {
			return i
		}
	}
	return len(names)
}

// due notes blocks to be copied once their pass is over.
func (h *hostTier) due(names []digest, e kv.Event) {
	h.waiting = append(h.waiting, toCopy{slices.Clone(names), e})
}

// touch makes blocks those that were asked for last, the first of them last of all.
func (h *hostTier) touch(names []digest) {
	for _, d := range slices.Backward(names) {
		if e := h.blocks[d]; e != nil {
			h.order.MoveToBack(e)
		}
	}
}

// load makes a sequence's host hits as good as computed: the blocks that they go to
// are cached with the rest of the pass.
func (c *Cache) load(s *sequence, device, host int) {
	if c.host == nil {
		return
	}
	c.host.touch(s.names[device : device+host])
	s.computed = (device + host) * c.size
}

// offload copies what waits for it, and tells: of each run what makes room first, then
// what was stored.
func (c *Cache) offload() {
	if c.host == nil {
		return
	}
	for _, w := range c.host.waiting {
		c.copyRun(&w)
	}
	c.host.waiting = nil
}

// copyRun copies a run of blocks, as many from its first as there is room for.
func (c *Cache) copyRun(w *toCopy) {
	h := c.host
	w.names = w.names[:min(len(w.names), h.most)]
	h.touch(w.names)
	missing := 0
	for _, d := range w.names {
		if c.copies(d) {
			missing++
		}
	}
	var gone []kv.EngineHash
	var lost []digest
	for h.order.Len()+missing > h.most {
		d, hash := c.dropOldest()
		gone, lost = append(gone, hash), append(lost, d)
	}
	medium := c.hash.hostMedium()
	if len(gone) > 0 {
		e := kv.Event{Kind: kv.KindRemoved, Form: c.hash.form(), Medium: medium, Hashes: gone}
		c.hash.annotate(&e, false, space{})
		c.hash.spell(&e, lost, nil)
		c.events = append(c.events, e)
	}
	run := w.event
	run.Medium = medium
	from := len(c.events)
	for i, d := range slices.Backward(w.names) { // the first is to go last
		if c.copies(d) {
			h.blocks[d] = h.order.PushBack(d)
			c.events = append(c.events, c.hash.onHost(&run, i))
		}
	}
	slices.Reverse(c.events[from:])
	c.events = append(c.events[:from], joined(c.events[from:])...)
}

// copies reports whether a block is to be copied: it is not on the host, and still on
// the device.
func (c *Cache) copies(d digest) bool {
	_, there := c.pool.find(d)
	return there && !c.host.has(d)
}

// joined makes one event of neighbours of a chain, where they tell their tokens and
// the engine joins them.
func joined(events []kv.Event) []kv.Event {
	var out []kv.Event
	for _, e := range events {
		if n := len(out); n > 0 && !e.HasGroup && e.HasParent && out[n-1].Hashes[len(out[n-1].Hashes)-1] == e.Parent {
			last := &out[n-1]
			last.Hashes, last.Tokens = append(last.Hashes, e.Hashes...), append(last.Tokens, e.Tokens...)
			continue
		}
		out = append(out, e)
	}
	return out
}

// dropOldest makes room for one block.
func (c *Cache) dropOldest() (digest, kv.EngineHash) {
	front := c.host.order.Front()
	d, ok := c.host.order.Remove(front).(digest)
	if !ok {
		panic("the host's order has something that is no block")
	}
	delete(c.host.blocks, d)
	hash := c.told[d].engine
	c.forget(d)
	return d, hash
}
