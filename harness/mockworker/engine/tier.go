// SPDX-License-Identifier: Apache-2.0

// Before: cache.go, which has new blocks and loses old ones. After: tell.go.

package engine

import (
	lists "container/list"
	"slices"

	"kindex/internal/kv"
)

// site is where copies lie, as the wire says it.
type site struct {
	tier     string // as in [Block]
	medium   string
	locality kv.Locality
	owner    string
}

// device is where a block is computed.
var device = site{tier: TierDevice, medium: "GPU"}

// When a block is copied to the lower tiers.
const (
	// onStore: once the pass is over that it is stored in, as vLLM's connectors do.
	onStore = 0
	// onAsk and onSecondAsk: once its tree was asked for it, or had it put in, that
	// often: SGLang's write-through and its selective kind.
	onAsk, onSecondAsk = 1, 2
	// onLoss: as the device loses it: SGLang's write-back.
	onLoss = -1
)

// lowerTier is a tier of a rank's cache below the device. What was not asked for the
// longest makes room, of a chain its tail first.
//
// Blocks are there by chunks: a chain's are counted off from its first. Two chains
// that part within a chunk have two copies of what they share of it.
//
// Concurrency: one goroutine at a time.
type lowerTier struct {
	site
	most  int // blocks
	chunk int // blocks; 1 where there are several groups

	units  map[digest]*lists.Element // by the key of a chunk's last block
	order  *lists.List               // of *unit, the next to go in front
	copies map[digest]int            // by key
}

// unit is one chunk that is there.
type unit struct {
	names []digest // of its blocks
	group int
}

func (u *unit) key(main int) digest { return inGroup(u.names[len(u.names)-1], u.group, main) }

// toCopy is a run of chunks to be copied, in the order of their chain.
type toCopy struct {
	units []unit
	like  kv.Event // as the run was told on the device
}

func newLowerTier(at site, most, chunk int) *lowerTier {
	return &lowerTier{site: at, most: most / chunk, chunk: chunk, units: make(map[digest]*lists.Element), order: lists.New(), copies: make(map[digest]int)}
}

// empty forgets all.
func (t *lowerTier) empty() { *t = *newLowerTier(t.site, t.most*t.chunk, t.chunk) }

// below returns how many blocks after n that are on the device a sequence can load
// from lower tiers. What a window group has on the device before n it can use.
func (c *Cache) below(names []digest, n int) int {
	if len(c.lower) == 0 {
		return 0
	}
	chunk, most := c.lower[0].chunk, n
	for k := n/chunk + 1; k*chunk <= len(names) && (c.windowOnly || c.onLower(names[k*chunk-1], c.main())); k++ {
		most = k * chunk
	}
	for ; most > n; most-- {
		if c.windowsLower(names, n, most) {
			break
		}
	}
	return most - n
}

// onLower reports whether some lower tier has the chunk that ends in a block.
func (c *Cache) onLower(d digest, group int) bool {
	return slices.ContainsFunc(c.lower, func(t *lowerTier) bool { return t.units[inGroup(d, group, c.main())] != nil })
}

// windowsLower reports whether each window group has on a lower tier what a sequence
// needs of it that begins at past and has the blocks up to n on the device.
func (c *Cache) windowsLower(names []digest, n, past int) bool {
	for g := range c.windows {
		for _, d := range names[max(past-c.need(g), n):past] {
			if !c.onLower(d, g) {
				return false
			}
		}
	}
	return true
}

// load makes what a sequence has on lower tiers as good as computed: the blocks that
// it goes to are cached with the rest of the pass.
func (c *Cache) load(s *sequence, hits, lower int) {
	if lower == 0 {
		return
	}
	found := hits + lower
	s.computed = found * c.size
	for g := range s.windows {
		w := &s.windows[g]
		for len(w.blocks) < min(c.skipped(g, s.computed), found) {
			w.blocks = append(w.blocks, none)
		}
	}
	for _, t := range c.lower {
		for g := range c.main() + 1 {
			for k := found / t.chunk; k > hits/t.chunk; k-- {
				if e := t.units[inGroup(s.names[k*t.chunk-1], g, c.main())]; e != nil {
					t.order.MoveToBack(e)
				}
			}
		}
	}
}

// due notes what of s's blocks of a group is to be copied once the pass is over: the
// chunks that end among those of index. like is how they were told.
func (c *Cache) due(s *sequence, group int, index []int, like *kv.Event) {
	if len(c.lower) == 0 {
		return
	}
	run := toCopy{like: *like}
	chunk := c.lower[0].chunk
	for _, i := range index {
		if (i+1)%chunk == 0 {
			run.units = append(run.units, unit{slices.Clone(s.names[i+1-chunk : i+1]), group})
		}
	}
	if len(run.units) > 0 {
		c.waiting = append(c.waiting, run)
	}
}

// asked notes that SGLang's tree was asked for s's cached blocks, or had them put in.
func (c *Cache) asked(s *sequence) {
	if len(c.lower) == 0 || c.copyOn <= 0 {
		return
	}
	var run []int
	for i := range s.named + 1 {
		if i < s.named {
			r := c.told[s.names[i]]
			if r.asked++; r.asked >= c.copyOn && !c.onLower(s.names[i], c.main()) {
				run = append(run, i)
				continue
			}
		}
		if len(run) > 0 {
			e := c.storing(s, c.main(), run[0], run[len(run)-1]+1, run)
			c.due(s, c.main(), run, &e)
			run = nil
		}
	}
}

// offload copies what waits for it, and tells: of each run what makes room first, then
// what was stored.
func (c *Cache) offload() {
	for _, w := range c.waiting {
		for _, t := range c.lower {
			c.copyTo(t, w.units, &w.like, c.onDevice)
		}
	}
	c.waiting = nil
}

// onDevice reports whether all blocks of a chunk are.
func (c *Cache) onDevice(u *unit) bool {
	return !slices.ContainsFunc(u.names, func(d digest) bool {
		_, ok := c.pool.find(inGroup(d, u.group, c.main()))
		return !ok
	})
}

// copyTo copies a run of chunks to a tier, as many from its first as there is room
// for. Those that are not copied are there already, or not to be had.
func (c *Cache) copyTo(t *lowerTier, units []unit, like *kv.Event, had func(*unit) bool) {
	units = units[:min(len(units), t.most)]
	var fresh []*unit
	for i := range slices.Backward(units) { // those asked for last go last, a chain's first last of all
		u := &units[i]
		if e := t.units[u.key(c.main())]; e != nil {
			t.order.MoveToBack(e)
		} else if had(u) {
			fresh = append(fresh, u)
		}
	}
	c.makeRoom(t, len(fresh))
	for _, u := range fresh {
		t.units[u.key(c.main())] = t.order.PushBack(u)
		for _, d := range u.names {
			t.copies[inGroup(d, u.group, c.main())]++
		}
	}
	for _, u := range slices.Backward(fresh) {
		c.emit(c.copied(t, u, like))
	}
}

// makeRoom has the oldest chunks of a tier go until n more fit, and tells: of
// neighbours of one group in one event.
func (c *Cache) makeRoom(t *lowerTier, n int) {
	var gone []digest
	group := 0
	flush := func() {
		if len(gone) == 0 {
			return
		}
		c.lose(&t.site, group, gone...)
		for _, d := range gone {
			c.forget(d)
		}
		gone = nil
	}
	for t.order.Len()+n > t.most {
		u, ok := t.order.Remove(t.order.Front()).(*unit)
		if !ok {
			panic("a tier's order has something that is no chunk")
		}
		delete(t.units, u.key(c.main()))
		if u.group != group {
			flush()
			group = u.group
		}
		for _, d := range u.names {
			key := inGroup(d, u.group, c.main())
			if t.copies[key]--; t.copies[key] == 0 {
				delete(t.copies, key)
			}
		}
		gone = append(gone, u.names...)
	}
	flush()
}

// copied tells of a chunk on a lower tier. vLLM's connector tells its hash alone unless
// it describes itself, and never what keys it.
func (c *Cache) copied(t *lowerTier, u *unit, like *kv.Event) *kv.Event {
	e := *like
	e.Medium, e.Locality, e.Ownership = t.medium, t.locality, t.owner
	e.Hashes, e.Tokens, e.Second, e.Lookahead, e.Extra, e.HasExtra = nil, nil, nil, nil, nil, false
	e.Parent, e.HasParent, e.ParentDigest, e.Digests = 0, false, nil, nil
	first := c.told[u.names[0]]
	for _, d := range u.names {
		r := c.told[d]
		e.Hashes, e.Tokens, e.Second = append(e.Hashes, r.engine), append(e.Tokens, r.tokens...), append(e.Second, r.second...)
		if r.ahead != nil {
			e.Lookahead = append(e.Lookahead, r.ahead)
		}
	}
	var parent *digest
	if first.parent != nil {
		e.Parent, e.HasParent, parent = *first.parent, true, first.above
	}
	c.spell(&e, u.names, parent)
	if !c.hash.sglang() && !c.hash.described {
		return &kv.Event{
			Kind: e.Kind, Form: e.Form, Hashes: e.Hashes, Digests: e.Digests, Medium: e.Medium, Locality: e.Locality, Ownership: e.Ownership,
			HasGroup: true, Group: e.Group,
		}
	}
	return &e
}

// evicted is a name that a physical block lost.
type evicted struct {
	name  digest
	group int
}

// lost tells of blocks that the device lost, in the order in which it did. Where
// lower tiers get them only now they are copied first, those of a chain together.
func (c *Cache) lost(gone []evicted) {
	if c.copyOn != onLoss {
		for _, g := range gone {
			c.lose(&device, g.group, g.name)
			c.forget(g.name)
		}
		return
	}
	for _, g := range gone {
		c.leaving[g.name] = true
	}
	for len(gone) > 0 {
		n := 1
		for n < len(gone) {
			if up := c.told[gone[n-1].name].above; up == nil || *up != gone[n].name {
				break
			}
			n++
		}
		var units []unit
		for _, g := range slices.Backward(gone[:n]) {
			units = append(units, unit{[]digest{g.name}, g.group})
		}
		r := c.told[gone[0].name]
		like := kv.Event{Kind: kv.KindStored, Form: c.hash.form(), BlockSize: c.size, Salt: r.salt, HasSalt: r.salt != "", LoRAName: r.lora}
		for _, t := range c.lower {
			c.copyTo(t, units, &like, func(*unit) bool { return true })
		}
		for _, g := range gone[:n] {
			c.lose(&device, g.group, g.name)
		}
		for _, g := range gone[:n] {
			delete(c.leaving, g.name)
			c.forget(g.name)
		}
		gone = gone[n:]
	}
}
