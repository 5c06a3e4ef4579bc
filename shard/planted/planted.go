// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"runtime"
	"sync"

	"kindex/internal/kv"
	"kindex/shard"
)

// Fault is one planted mistake.
type Fault int

// The faults.
const (
	// ForgetsRemoval loses one engine hash in 1,000 that is removed.
	ForgetsRemoval Fault = iota
	// JumpsHoles counts blocks below a hole as if the hole were held.
	JumpsHoles
	// IgnoresTier takes every tier for the device.
	IgnoresTier
	// KeepsMoved keeps an engine hash's old position when it is stored elsewhere.
	KeepsMoved
	// DropsCopyEarly ends a block of several copies with its first removal.
	DropsCopyEarly
	// WrongNamespace takes a child's contents as its own event hashed them,
	// whatever namespace its parent is in.
	WrongNamespace
	// LateDrop goes on naming a dropped holder for the next lateCalls calls.
	LateDrop
	// StaleAnswer gives one lookup in 50 the answer of the one before.
	StaleAnswer
	// MixesMoments takes the first half of a chain from one moment and the
	// second from a later one. With no writer about it is exact.
	MixesMoments
	// GroupLacksHolder leaves one holder out of one grouped answer in 10.
	GroupLacksHolder
	// BatchShifted gives each query of one batch in 5 the answer of the one before.
	BatchShifted
	// ShardMissing leaves all holders of one shard out of one answer in 20, in
	// whatever form. With one shard it is exact.
	ShardMissing
	NumFaults
)

var faultNames = [NumFaults]string{
	"forgets one removal in 1,000", "jumps holes", "ignores the tier", "keeps a moved hash's old position",
	"drops a copy early", "takes the wrong namespace", "drops a holder late", "answers from before",
	"mixes moments", "leaves a holder out of a group", "shifts a batch's answers", "leaves a shard out",
}

// String describes f.
func (f Fault) String() string { return faultNames[f] }

const lateCalls = 60

// lateDrop is a holder to be dropped after so many more calls.
type lateDrop struct {
	h     shard.Holder
	calls int
}

// copyKey names the copies of one engine hash in one place.
type copyKey struct {
	h     shard.Holder
	e     kv.EngineHash
	tier  kv.Tier
	group uint8
}

// blockKey names an engine hash of one holder.
type blockKey struct {
	h shard.Holder
	e kv.EngineHash
}

// Index is an index with a fault.
//
// Concurrency: as [shard.Index] says; it takes a lock of its own.
type Index struct {
	fault Fault

	mu      sync.RWMutex
	inner   shard.Index
	holders map[shard.Holder]bool
	removed int                        // engine hashes in removals so far
	stored  map[copyKey]int            // copies told, roughly
	at      map[blockKey]uint64        // where a hash was last stored: hash of the path
	aliases map[blockKey]kv.EngineHash // KeepsMoved: what it calls a moved hash
	late    []lateDrop                 // LateDrop: not yet dropped
	asked   int                        // lookups so far
	before  []kv.Match                 // StaleAnswer: the last answer
	answer  sync.Mutex                 // guards asked and before
}

var _ shard.Index = (*Index)(nil)

// New returns inner with fault f. It answers in groups and batches where that is
// where the fault lies.
func New(inner shard.Index, f Fault) shard.Index {
	x := &Index{
		fault: f, inner: inner, holders: make(map[shard.Holder]bool), stored: make(map[copyKey]int),
		at: make(map[blockKey]uint64), aliases: make(map[blockKey]kv.EngineHash),
	}
	if f == GroupLacksHolder || f == BatchShifted || f == ShardMissing {
		return &forms{Index: x}
	}
	return x
}

// AddHolder implements [shard.Index].
func (x *Index) AddHolder(m kv.ModelKey) (shard.Holder, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.settle(); err != nil {
		return 0, err
	}
	h, err := x.inner.AddHolder(m)
	if err == nil {
		x.holders[h] = true
	}
	return h, err
}

// settle makes up for drops that are late enough.
func (x *Index) settle() error {
	kept := x.late[:0]
	for _, l := range x.late {
		if l.calls--; l.calls > 0 {
			kept = append(kept, l)
		} else if err := x.inner.Drop(l.h); err != nil {
			return err
		}
	}
	x.late = kept
	return nil
}

// known refuses holders that are dropped, if late.
func (x *Index) known(h shard.Holder) error {
	if !x.holders[h] {
		return shard.ErrUnknownHolder
	}
	return nil
}

// Store implements [shard.Index].
func (x *Index) Store(h shard.Holder, st *shard.Store) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.settle(); err != nil {
		return err
	}
	if err := x.known(h); err != nil {
		return err
	}
	s := *st
	switch x.fault {
	case IgnoresTier:
		s.Tier = kv.TierDevice
	case WrongNamespace:
		if s.HasParent {
			s.Blocks = kv.Blocks{}
		}
	case DropsCopyEarly:
		for _, e := range s.Engines {
			x.stored[copyKey{h, e, s.Tier, s.Group}]++
		}
	case KeepsMoved:
		x.rename(h, &s)
	case ForgetsRemoval, JumpsHoles, LateDrop, StaleAnswer, MixesMoments, GroupLacksHolder, BatchShifted, ShardMissing, NumFaults:
	}
	return x.inner.Store(h, &s)
}

// rename gives engine hashes that move a new name, so that the old one stays.
func (x *Index) rename(h shard.Holder, s *shard.Store) {
	path := uint64(s.Namespace)
	if s.HasParent {
		path = x.at[blockKey{h, s.Parent}]
		s.Parent = x.name(h, s.Parent)
	}
	engines := make([]kv.EngineHash, len(s.Engines))
	for i, e := range s.Engines {
		key := blockKey{h, e}
		if len(s.Contents) > 0 {
			path = path*0x9e37_79b9_7f4a_7c15 + uint64(s.Contents[i]) + 1
			if old, ok := x.at[key]; ok && old != path {
				x.aliases[key] = x.name(h, e)*31 + 0x5eed
			}
			x.at[key] = path
		}
		engines[i] = x.name(h, e)
	}
	s.Engines = engines
}

// name returns what x calls e now.
func (x *Index) name(h shard.Holder, e kv.EngineHash) kv.EngineHash {
	if a, ok := x.aliases[blockKey{h, e}]; ok {
		return a
	}
	return e
}

// Remove implements [shard.Index].
func (x *Index) Remove(h shard.Holder, rm *shard.Remove) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.settle(); err != nil {
		return err
	}
	if err := x.known(h); err != nil {
		return err
	}
	r := *rm
	r.Engines = nil
	for _, e := range rm.Engines {
		x.removed++
		switch x.fault {
		case ForgetsRemoval:
			if x.removed%1000 == 0 {
				continue
			}
		case DropsCopyEarly:
			key := copyKey{h, e, r.Tier, r.Group}
			for n := x.stored[key]; n > 1; n-- {
				r.Engines = append(r.Engines, e)
			}
			delete(x.stored, key)
		case KeepsMoved:
			e = x.name(h, e)
			delete(x.at, blockKey{h, e})
		case JumpsHoles, IgnoresTier, WrongNamespace, LateDrop, StaleAnswer, MixesMoments, GroupLacksHolder, BatchShifted, ShardMissing, NumFaults:
		}
		r.Engines = append(r.Engines, e)
	}
	if x.fault == IgnoresTier {
		r.Tier = kv.TierDevice
	}
	return x.inner.Remove(h, &r)
}

// Clear implements [shard.Index].
func (x *Index) Clear(h shard.Holder) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.settle(); err != nil {
		return err
	}
	if err := x.known(h); err != nil {
		return err
	}
	x.forget(h)
	return x.inner.Clear(h)
}

// forget drops what x itself knows of h.
func (x *Index) forget(h shard.Holder) {
	for k := range x.stored {
		if k.h == h {
			delete(x.stored, k)
		}
	}
	for k := range x.at {
		if k.h == h {
			delete(x.at, k)
		}
	}
}

// Drop implements [shard.Index].
func (x *Index) Drop(h shard.Holder) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.settle(); err != nil {
		return err
	}
	if err := x.known(h); err != nil {
		return err
	}
	delete(x.holders, h)
	if x.fault == LateDrop {
		x.late = append(x.late, lateDrop{h, lateCalls})
		return nil
	}
	x.forget(h)
	return x.inner.Drop(h)
}

// Lookup implements [shard.Index].
func (x *Index) Lookup(ns kv.Namespace, chain []kv.ContentHash, dst []kv.Match) []kv.Match {
	base := len(dst)
	x.mu.RLock()
	dst = x.inner.Lookup(ns, chain, dst)
	x.mu.RUnlock()
	if x.fault == JumpsHoles || x.fault == MixesMoments {
		if x.fault == MixesMoments {
			for range 100 {
				runtime.Gosched()
			}
		}
		x.mu.Lock() // it walks, which is a writer's call
		defer x.mu.Unlock()
		for i := base; i < len(dst); i++ {
			x.deepen(ns, chain, &dst[i])
		}
	}
	if x.fault == StaleAnswer {
		x.answer.Lock()
		defer x.answer.Unlock()
		if x.asked++; x.asked%50 == 0 {
			dst = append(dst[:base], x.before...)
		}
		x.before = append(x.before[:0], dst[base:]...)
	}
	return dst
}

// deepen gives m the depth that its holder has now when holes do not count
// (JumpsHoles) or when those of the first half do not (MixesMoments).
func (x *Index) deepen(ns kv.Namespace, chain []kv.ContentHash, m *kv.Match) {
	if !x.holders[shard.Holder(m.Holder)] {
		return // dropped meanwhile
	}
	depth := make(map[uint64]uint32) // of the nodes along the chain
	held := make([]bool, len(chain))
	err := x.inner.Walk(shard.Holder(m.Holder), func(n *shard.Node) bool {
		d := depth[n.Parent]
		if (n.Parent == 0 && n.Namespace == ns || d > 0) && int(d) < len(chain) && chain[d] == n.Content {
			depth[n.ID] = d + 1
			held[d] = len(n.Copies) > 0
		}
		return true
	})
	if err != nil {
		panic("planted: walk of a holder that is there: " + err.Error())
	}
	half := uint32(len(chain)+1) / 2
	switch {
	case x.fault == JumpsHoles:
		for i := range held {
			if held[i] {
				m.Any = max(m.Any, uint32(i)+1)
			}
		}
	case m.Any >= half:
		for m.Any = half; int(m.Any) < len(chain) && held[m.Any]; {
			m.Any++
		}
		m.Host, m.Device = min(m.Host, m.Any), min(m.Device, m.Any)
	}
}

// Walk implements [shard.Index].
func (x *Index) Walk(h shard.Holder, fn func(*shard.Node) bool) error {
	if err := x.known(h); err != nil {
		return err
	}
	return x.inner.Walk(h, fn)
}

// HolderStats implements [shard.Index].
func (x *Index) HolderStats(h shard.Holder) (shard.HolderStats, error) {
	if err := x.known(h); err != nil {
		return shard.HolderStats{}, err
	}
	return x.inner.HolderStats(h)
}

// Stats implements [shard.Index].
func (x *Index) Stats() shard.Stats { return x.inner.Stats() }
