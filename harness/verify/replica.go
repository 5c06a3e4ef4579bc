// SPDX-License-Identifier: Apache-2.0

// Before: timeline.go. After: credit.go and table.go.

package verify

import (
	"encoding/binary"
	"maps"
	"slices"

	"kindex/internal/kv"
)

// posID names a position: a namespace and the blocks down to it, by everything
// the engine tells blocks apart by. 0 is none.
type posID uint32

// A forest gives every position ever met one posID. It compares what blocks hold
// and not hashes of it, so that it can fail in none of the ways an index can.
type forest struct {
	ids    map[string]posID
	parent []posID
	depth  []int32
	key    []byte
}

func newForest() *forest {
	return &forest{ids: map[string]posID{}, parent: make([]posID, 1), depth: make([]int32, 1)}
}

// root returns the position above the first blocks of one namespace.
func (f *forest) root(lora, salt string) posID {
	f.key = append(f.key[:0], 'r')
	f.key = binary.LittleEndian.AppendUint32(f.key, uint32(len(lora)))
	f.key = append(append(f.key, lora...), salt...)
	return f.intern(0, -1)
}

// child returns the position below p that b leads to.
func (f *forest) child(p posID, b *block) posID {
	f.key = append(f.key[:0], 'b')
	f.key = binary.LittleEndian.AppendUint32(f.key, uint32(p))
	for _, part := range [...][]uint32{b.tokens, b.second, b.ahead} {
		f.key = binary.LittleEndian.AppendUint32(f.key, uint32(len(part)))
		for _, t := range part {
			f.key = binary.LittleEndian.AppendUint32(f.key, t)
		}
	}
	for _, k := range b.extra {
		f.key = append(f.key, byte(k.Kind))
		f.key = binary.LittleEndian.AppendUint32(f.key, uint32(len(k.ID)))
		f.key = append(f.key, k.ID...)
		f.key = binary.LittleEndian.AppendUint64(f.key, uint64(k.Offset))
	}
	return f.intern(p, f.depth[p])
}

func (f *forest) intern(parent posID, depth int32) posID {
	if id, ok := f.ids[string(f.key)]; ok {
		return id
	}
	id := posID(len(f.parent))
	f.ids[string(f.key)] = id
	f.parent = append(f.parent, parent)
	f.depth = append(f.depth, depth+1)
	return id
}

// block is what an engine tells one block from another by, beside what is above.
type block struct {
	tokens []uint32
	second []uint32 // bigram pages: the second token of each pair
	ahead  []uint32 // tokens after the block that its hash covers
	extra  []kv.ExtraKey
}

// groupKind is what is known of one cache group.
type groupKind struct {
	spec   kv.SpecKind
	window int // tokens; window kinds only
	block  int // tokens in a block; 0: not known
}

func (g groupKind) main() bool { return g.spec == kv.SpecUnstated || g.spec == kv.SpecFull }

// copyKey names the copies of one engine hash in one place.
type copyKey struct {
	tier  kv.Tier
	group int
	hash  kv.EngineHash
}

// replica is what one engine rank holds, by its own events: copies of engine
// hashes per tier and group, and where the main groups' hashes stand.
type replica struct {
	*forest
	groups map[int]groupKind
	copies map[copyKey]int
	// at and hashes outlive removals and clears: what a hash names never changes,
	// save where an engine stores it elsewhere.
	at     map[kv.EngineHash]posID
	hashes map[posID][]kv.EngineHash
}

func newReplica(f *forest, groups map[int]groupKind) *replica {
	return &replica{f, groups, map[copyKey]int{}, map[kv.EngineHash]posID{}, map[posID][]kv.EngineHash{}}
}

// apply applies one item. told is set for a store that only repeats what is
// held: it adds no copy.
func (r *replica) apply(it item, told bool) {
	if it.ev == nil || it.ev.Kind == kv.KindCleared {
		clear(r.copies)
		return
	}
	ev := it.ev
	if ev.Kind == kv.KindRemoved {
		for _, h := range ev.Hashes {
			k := copyKey{ev.Tier, ev.Group, h}
			if r.copies[k]--; r.copies[k] <= 0 {
				delete(r.copies, k)
			}
		}
		return
	}
	if chain := r.chain(ev); chain != nil {
		for i, h := range ev.Hashes {
			r.place(h, chain[i])
		}
	}
	if told {
		return
	}
	for _, h := range ev.Hashes {
		r.copies[copyKey{ev.Tier, ev.Group, h}]++
	}
}

// place notes that h names p.
func (r *replica) place(h kv.EngineHash, p posID) {
	old, ok := r.at[h]
	if ok && old == p {
		return
	}
	if ok {
		hs := r.hashes[old]
		r.hashes[old] = slices.DeleteFunc(hs, func(x kv.EngineHash) bool { return x == h })
	}
	r.at[h] = p
	r.hashes[p] = append(r.hashes[p], h)
}

// chain returns the position of each block that ev stores, or nil where its
// events do not say: window groups that list a subset, placeholders, a parent
// never told, copies announced without the keys of their blocks.
func (r *replica) chain(ev *kv.Event) []posID {
	n := len(ev.Hashes)
	if n == 0 || ev.BlockSize <= 0 || len(ev.Tokens) != n*ev.BlockSize || !r.groups[ev.Group].main() {
		return nil
	}
	if ev.Tier != kv.TierDevice {
		if _, told := r.at[ev.Hashes[0]]; told {
			return nil // joined by hash: lower tiers may leave keys out
		}
	}
	var p posID
	lora, salt, extra := eventKeys(ev)
	if ev.HasParent {
		var ok bool
		if p, ok = r.at[ev.Parent]; !ok {
			return nil
		}
	} else {
		p = r.root(lora, salt)
	}
	out := make([]posID, n)
	for i := range out {
		b := block{tokens: ev.Tokens[i*ev.BlockSize : (i+1)*ev.BlockSize]}
		if ev.Second != nil {
			b.second = ev.Second[i*ev.BlockSize : (i+1)*ev.BlockSize]
		}
		if i < len(ev.Lookahead) {
			b.ahead = ev.Lookahead[i]
		}
		if i < len(extra) {
			b.extra = extra[i]
		}
		p = r.child(p, &b)
		out[i] = p
	}
	return out
}

// eventKeys takes an event's namespace and blocks' own keys apart. On vLLM's
// wire LoRA name, items, salt and digests stand in one untagged list; a salt is
// the last bare string of a chain's first block.
func eventKeys(ev *kv.Event) (lora, salt string, extra [][]kv.ExtraKey) {
	lora, salt = ev.LoRAName, ev.Salt
	if !ev.HasExtra {
		return lora, salt, nil
	}
	extra = make([][]kv.ExtraKey, len(ev.Extra))
	for i, keys := range ev.Extra {
		named := false
		for _, k := range keys {
			switch {
			case k.Kind == kv.ExtraString && k.ID == lora && lora != "" && !named:
				named = true
			case k.Kind == kv.ExtraString && i == 0 && !ev.HasParent:
				salt = k.ID
			default:
				extra[i] = append(extra[i], k)
			}
		}
	}
	return lora, salt, extra
}

// holds reports whether one of hs has a copy in group, on the device or, with
// anyTier, in any local tier.
func (r *replica) holds(hs []kv.EngineHash, group int, anyTier bool) bool {
	for _, h := range hs {
		if r.copies[copyKey{kv.TierDevice, group, h}] > 0 {
			return true
		}
		if anyTier && (r.copies[copyKey{kv.TierHost, group, h}] > 0 || r.copies[copyKey{kv.TierDisk, group, h}] > 0) {
			return true
		}
	}
	return false
}

// hit returns the engine's own answer: the greatest k up to limit such that
// every full-attention group holds the first k blocks and every window group the
// last ceil((window-1)/block) of them. hashesOf gives the engine hashes of block
// i, nil when there are none.
func (r *replica) hit(limit int, anyTier bool, hashesOf func(i int) []kv.EngineHash) int {
	full := true
	known := make([][]kv.EngineHash, 0, limit)
	for i := 0; i < limit && full; i++ {
		hs := hashesOf(i)
		for g, kind := range r.groups {
			if kind.main() && !r.holds(hs, g, anyTier) {
				full = false
			}
		}
		if full {
			known = append(known, hs)
		}
	}
	for k := len(known); k > 0; k-- {
		if r.windows(known[:k], anyTier) {
			return k
		}
	}
	return 0
}

// windows reports whether every window group holds the end of prefix.
func (r *replica) windows(prefix [][]kv.EngineHash, anyTier bool) bool {
	for g, kind := range r.groups {
		if kind.spec != kv.SpecWindow || kind.block <= 0 {
			continue
		}
		need := min(len(prefix), (kind.window-1+kind.block-1)/kind.block)
		for _, hs := range prefix[len(prefix)-need:] {
			if !r.holds(hs, g, anyTier) {
				return false
			}
		}
	}
	return true
}

// learnGroups finds the cache groups of a recording: the header's, and what the
// events themselves say.
func learnGroups(tl *timeline, header map[int]groupKind) map[int]groupKind {
	out := maps.Clone(header)
	for i := range tl.items {
		ev := tl.items[i].ev
		if ev == nil || ev.Kind != kv.KindStored || ev.Tier != kv.TierDevice {
			continue
		}
		g, ok := out[ev.Group]
		if ok && g.spec != kv.SpecUnstated && g.block > 0 {
			continue
		}
		if ev.Spec != kv.SpecUnstated {
			g.spec = ev.Spec
		}
		if ev.HasWindow {
			g.window = ev.Window
			if g.spec == kv.SpecUnstated {
				g.spec = kv.SpecWindow
			}
		}
		if ev.BlockSize > 0 {
			g.block = ev.BlockSize
		}
		out[ev.Group] = g
	}
	return out
}
