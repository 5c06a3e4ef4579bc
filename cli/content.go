// SPDX-License-Identifier: Apache-2.0

// Before: a dump, an engine's events, a relay's operations. After: a comparison.

package cli

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/relay/normal"
	"kindex/shard"
)

// maxReplicaBlocks bounds the blocks of one stream that is kept here: about 800 bytes
// each. Chosen, not measured.
const maxReplicaBlocks = 8 << 20

// replica is what one stream holds, by the reference index, which is written for
// being right.
//
// Concurrency: one goroutine at a time.
type replica struct {
	idx   shard.Index
	h     shard.Holder
	model kv.ModelKey
}

func newReplica(tenant, model, group string) (*replica, error) {
	idx, err := shard.New("reference", shard.Options{})
	if err != nil {
		return nil, err
	}
	r := &replica{idx: idx, model: kv.MakeModelKey(tenant, model, group)}
	r.h, err = idx.AddHolder(r.model)
	return r, err
}

// blocks is how many blocks r holds.
func (r *replica) blocks() uint64 {
	l, ok := r.idx.(interface {
		Load() (memberships, holders uint64)
	})
	if !ok {
		panic("BUG: cli: the reference does not know its load")
	}
	n, _ := l.Load()
	return n
}

// stats are the holder's, which is always known.
//
// Cost: a look at each block.
func (r *replica) stats() shard.HolderStats {
	st, _ := r.idx.HolderStats(r.h)
	return st
}

// digest is the one that hosts tell.
func (r *replica) digest() uint64 {
	d, _ := shard.Digest(r.idx, r.h) // its holder is known
	return d
}

// apply does what a batch does to the content, and returns why that cannot be known
// whole; "": it can.
func (r *replica) apply(ops []normal.Op) (fault string) {
	for i := range ops {
		op := &ops[i]
		var err error
		switch op.Kind {
		case normal.Store:
			st := shard.Store{
				Tier: op.Tier, Group: op.Group, Stated: op.Stated, Parent: op.Parent, HasParent: op.HasParent,
				Engines: op.Engines, Contents: op.Contents, Blocks: op.Blocks,
			}
			if len(op.Contents) > 0 {
				st.Namespace = r.model.Namespace(op.Seed)
			}
			err = r.idx.Store(r.h, &st)
		case normal.Remove:
			err = r.idx.Remove(r.h, &shard.Remove{Tier: op.Tier, Group: op.Group, Engines: op.Engines})
		case normal.Clear:
			err = r.idx.Clear(r.h)
		case normal.Mismatch:
			fault = fmt.Sprintf("blocks of %d tokens were left out", op.Size)
		}
		if err != nil {
			fault = err.Error()
		}
	}
	if r.blocks() > maxReplicaBlocks {
		fault = fmt.Sprintf("over %d blocks: too many to be held against the index here", maxReplicaBlocks)
		r.clear()
	}
	return fault
}

// clear empties r.
func (r *replica) clear() { _ = r.idx.Clear(r.h) } // its holder is known

// streamContent is a stream of a dump.
type streamContent struct {
	streamHead
	*replica
	told map[kv.EngineHash]struct{}
}

// replayer replays a dump into empty indexes, one a stream. It implements dumpSink.
type replayer struct{ streams []*streamContent }

func (p *replayer) head(h *streamHead) error {
	r, err := newReplica(h.Tenant, h.Model, h.Group)
	if err != nil {
		return err
	}
	p.streams = append(p.streams, &streamContent{*h, r, map[kv.EngineHash]struct{}{}})
	return nil
}

func (p *replayer) last() *streamContent { return p.streams[len(p.streams)-1] }

func (p *replayer) stored(s *storedRun) error {
	r := p.last()
	st := shard.Store{Tier: s.tier, Group: s.group, Namespace: r.model.Namespace(s.seed), Engines: s.engines, Contents: s.contents}
	if s.parent != nil {
		st.Parent, st.HasParent = kv.EngineHash(*s.parent), true
		if _, ok := r.told[st.Parent]; !ok {
			return fmt.Errorf("stored: parent_hash %d was not told before", *s.parent)
		}
	}
	if err := r.idx.Store(r.h, &st); err != nil {
		return err
	}
	for _, e := range s.engines {
		r.told[e] = struct{}{}
	}
	if r.blocks() > maxReplicaBlocks {
		return fmt.Errorf("a stream must have at most %d blocks to be read here", maxReplicaBlocks)
	}
	return nil
}

func (p *replayer) removed(engines []kv.EngineHash) error {
	r := p.last()
	for _, e := range engines {
		if _, ok := r.told[e]; !ok {
			return fmt.Errorf("removed: block_hash %d was not told before", uint64(e))
		}
	}
	return r.idx.Remove(r.h, &shard.Remove{Engines: engines})
}

// find returns the stream of that name, or nil.
func (p *replayer) find(n streamName) *streamContent {
	i := slices.IndexFunc(p.streams, func(s *streamContent) bool { return s.key() == n })
	if i < 0 {
		return nil
	}
	return p.streams[i]
}

// blockCopy is one copy of a block: what two contents agree about or not.
type blockCopy struct {
	Depth   int    `json:"block"` // of its chain, from 0
	Content uint64 `json:"tokens_hash"`
	Engine  uint64 `json:"block_hash"`
	Tier    string `json:"tier"`
}

type copyKey struct {
	path, engine uint64
	tier         kv.Tier
}

// eachCopy calls fn for each copy that r holds; holes have none. The number of equal
// copies and their cache group do not count, as in a digest.
func (r *replica) eachCopy(fn func(copyKey, blockCopy)) {
	type above struct {
		path  uint64
		depth int
	}
	nodes := map[uint64]above{}
	var b [16]byte
	_ = r.idx.Walk(r.h, func(n *shard.Node) bool { // its holder is known
		up := above{uint64(n.Namespace), -1}
		if n.Parent != 0 {
			up = nodes[n.Parent]
		}
		binary.LittleEndian.PutUint64(b[0:], up.path)
		binary.LittleEndian.PutUint64(b[8:], uint64(n.Content))
		at := above{xxh3.Hash(b[:]), up.depth + 1}
		nodes[n.ID] = at
		for _, c := range n.Copies {
			fn(copyKey{at.path, uint64(c.Engine), c.Tier}, blockCopy{at.depth, uint64(n.Content), uint64(c.Engine), lookup.Tiers[c.Tier]})
		}
		return true
	})
}

// difference is what two contents do not have in common.
type difference struct {
	blocks         uint64 // that the first holds
	onlyA, onlyB   uint64 // copies
	shownA, shownB []blockCopy
}

func (d *difference) none() bool { return d.onlyA == 0 && d.onlyB == 0 }

// compare returns how a and b differ, show copies of each kind at most: the least
// deep.
func compare(a, b *replica, show int) *difference {
	d := &difference{blocks: a.blocks()}
	only := map[copyKey]blockCopy{}
	a.eachCopy(func(k copyKey, c blockCopy) { only[k] = c })
	both := map[copyKey]bool{}
	var more []blockCopy
	b.eachCopy(func(k copyKey, c blockCopy) {
		if _, ok := only[k]; ok {
			both[k] = true
		} else if !both[k] {
			both[k] = true // in another group again
			more = append(more, c)
		}
	})
	rest := []blockCopy{}
	for k, c := range only {
		if !both[k] {
			rest = append(rest, c)
		}
	}
	d.onlyA, d.onlyB = uint64(len(rest)), uint64(len(more))
	d.shownA, d.shownB = least(rest, show), least(more, show)
	return d
}

// least returns the n of list that come first.
func least(list []blockCopy, n int) []blockCopy {
	slices.SortFunc(list, func(a, b blockCopy) int {
		if a.Depth != b.Depth {
			return a.Depth - b.Depth
		}
		if a.Content != b.Content {
			if a.Content < b.Content {
				return -1
			}
			return 1
		}
		if a.Engine < b.Engine {
			return -1
		}
		return 1
	})
	return append([]blockCopy{}, list[:min(n, len(list))]...)
}
