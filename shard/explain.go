// SPDX-License-Identifier: Apache-2.0

// Hop before: whoever asks why one holder's answer ends where it does.
// Hop after: the core, along one chain; the holder's waiting room.

package shard

import (
	"runtime"

	"kindex/internal/kv"
)

// Held says how a holder has one block of a chain: a bit a tier, and one for a block
// that waits.
type Held uint8

// The bits of a Held. Those of the tiers are 1<<tier.
const (
	HeldDevice  Held = 1 << kv.TierDevice
	HeldHost    Held = 1 << kv.TierHost
	HeldDisk    Held = 1 << kv.TierDisk
	HeldWaiting Held = 1 << kv.LocalTiers // a store of it waits for its parent

	// HeldAny are the bits of a block that the holder holds.
	HeldAny = HeldDevice | HeldHost | HeldDisk
)

// Coverage is how one holder has each block of a chain, holes not jumped and not
// hidden: what an answer's depth leaves out.
type Coverage struct {
	Blocks []Held // one a block of the chain

	ns    kv.Namespace
	chain []kv.ContentHash
	room  []*orphan // the holder's, of a Shard
	ref   []Orphan  // the same of a Reference
}

// Cover returns how h has the blocks of chain in namespace ns; which of them wait
// [Coverage.FindWaiting] finds.
//
// Errors: ErrUnknownHolder.
// Concurrency: a writer's call of h's shard. It keeps chain, which stays the
// caller's.
// Cost: for the chain index a probe and a few loads a run, and a bit test a block
// and tier; for the other kinds a walk of all that h holds.
func Cover(idx Index, h Holder, ns kv.Namespace, chain []kv.ContentHash) (*Coverage, error) {
	c := &Coverage{Blocks: make([]Held, len(chain)), ns: ns, chain: chain}
	switch x := idx.(type) {
	case *Sharded:
		return Cover(x.of(h), h, ns, chain)
	case *Shard:
		hd := x.holders[h]
		if hd == nil {
			return nil, ErrUnknownHolder
		}
		c.room = hd.room.order
		if x.chain != nil {
			for i := range hd.raws {
				x.chain.mark(hd.raws[i].slot, 1<<hd.raws[i].tier, ns, chain, c.Blocks)
			}
			return c, nil
		}
	case *Reference:
		if _, err := x.HolderStats(h); err != nil {
			return nil, err
		}
		c.ref = x.orphans(h)
	}
	return c, c.walk(idx, h)
}

// walk is Cover for any index.
func (c *Coverage) walk(idx Index, h Holder) error {
	at := map[uint64]int{} // blocks of the chain so far, by ID of the last
	return idx.Walk(h, func(n *Node) bool {
		i := 0
		if n.Parent != 0 {
			var on bool
			if i, on = at[n.Parent]; !on {
				return true
			}
		} else if n.Namespace != c.ns {
			return true
		}
		if i == len(c.chain) || n.Content != c.chain[i] {
			return true
		}
		at[n.ID] = i + 1
		for _, cp := range n.Copies {
			c.Blocks[i] |= 1 << cp.Tier
		}
		return true
	})
}

// mark sets bit in held for each block of chain that s holds.
func (c *chainCore) mark(s slot, bit Held, ns kv.Namespace, chain []kv.ContentHash, held []Held) {
	c.locate(uint64(ns), place{}, contentWords(chain))
	for _, g := range c.segs {
		h := c.holding(g.line, s)
		for off := g.lo; off < g.hi; off++ {
			if c.holds(h, off) {
				held[g.first+off-g.lo] |= bit
			}
		}
	}
	runtime.KeepAlive(c)
}

// maxPlaces is at how many places of a chain one waiting store is looked for: a
// prompt may repeat a block any number of times. Chosen, not measured.
const maxPlaces = 16

// FindWaiting marks the blocks of which a store waits. Nobody can tell where a store
// belongs whose parent is not known; one counts whose blocks are the chain's, one
// after the other, from the first on.
//
// Concurrency: without the writer's place, while nothing of the holder is stored,
// removed or cleared. Once.
func (c *Coverage) FindWaiting() {
	if len(c.room) == 0 && len(c.ref) == 0 {
		return
	}
	places := make(map[kv.ContentHash][]int, len(c.chain))
	for i, h := range c.chain {
		if p := places[h]; len(p) < maxPlaces {
			places[h] = append(p, i)
		}
	}
	for _, o := range c.room {
		if !o.gone {
			c.waits(places, &o.store, o.out)
		}
	}
	for i := range c.ref {
		c.waits(places, &c.ref[i].Store, c.ref[i].Out)
	}
	c.room, c.ref = nil, nil
}

// waits marks the blocks of a store; out are those that were removed since.
func (c *Coverage) waits(places map[kv.ContentHash][]int, st *Store, out []bool) {
	if st.placeholder() || st.Namespace != c.ns {
		return
	}
	for _, first := range places[st.Contents[0]] {
		for i, h := range st.Contents {
			if first+i == len(c.chain) || c.chain[first+i] != h {
				break
			}
			if out == nil || !out[i] {
				c.Blocks[first+i] |= HeldWaiting
			}
		}
	}
}
