// SPDX-License-Identifier: Apache-2.0

// Hop before: callers with many lookups at once or with very many holders.
// Hop after: Shard and Sharded, which implement what is declared here.

package shard

import (
	"math/bits"

	"kindex/internal/kv"
)

// Query is one lookup of a batch.
type Query struct {
	Namespace kv.Namespace
	Chain     []kv.ContentHash
	// Matches is what [Index.Lookup] would append to it.
	Matches []kv.Match
}

// Batcher is an [Index] that answers several lookups at once for less.
type Batcher interface {
	// LookupBatch does for each query what Lookup does. It takes them up to 32 at a
	// time, in step, so that one waits for memory while the others work.
	//
	// Concurrency, cost: as [Index.Lookup]; each query is exact for itself.
	LookupBatch(queries []Query)
}

// Grouper is an [Index] that can answer by sets of holders.
type Grouper interface {
	// LookupGroups adds to a what [Index.Lookup] would list. The answers of several
	// indexes that share a space of holder numbers can be added to one Answer: no
	// holder is in two.
	//
	// Concurrency, cost: as [Index.Lookup], but for a bit instead of a match for
	// each of the holders that share a depth.
	LookupGroups(ns kv.Namespace, chain []kv.ContentHash, a *Answer)
}

// Answer is a lookup's answer with the holders that share a depth as one set, and
// the others one by one. The zero value is empty; an Answer is used again after
// Reset, without new memory once it has grown.
//
// Concurrency: one goroutine at a time.
type Answer struct {
	Groups []Group
	// Singles are the holders in no group.
	Singles []kv.Match

	words []uint64 // of the groups' seats
}

// Reset empties a. Groups taken from it before mean nothing any more.
func (a *Answer) Reset() {
	clear(a.Groups)
	a.Groups, a.Singles, a.words = a.Groups[:0], a.Singles[:0], a.words[:0]
}

// Append appends a match for each holder in a, in no order.
func (a *Answer) Append(dst []kv.Match) []kv.Match {
	dst = append(dst, a.Singles...)
	for i := range a.Groups {
		dst = a.Groups[i].Append(dst)
	}
	return dst
}

// Len returns the number of holders in a.
func (a *Answer) Len() int {
	n := len(a.Singles)
	for i := range a.Groups {
		n += a.Groups[i].Len()
	}
	return n
}

// Group is holders of one index that hold equally much, in all local tiers. It
// stays as it is until the Answer it is in is reset, whoever comes and goes in the
// index meanwhile.
type Group struct {
	Depth uint32 // blocks held in the device tier, and so in any
	// Seats is the set of holders by seat: bit i%64 of word i/64. A holder has one
	// seat in its index, which another gets only long after.
	Seats []uint64

	table *seatTable
}

// Holder returns who sits at seat, or 0 for nobody.
func (g *Group) Holder(seat int) Holder {
	return Holder(g.table.pages[seat/seatPageSlots].holders[seat%seatPageSlots])
}

// Has reports whether seat is in the group.
func (g *Group) Has(seat int) bool {
	return seat >= 0 && seat/64 < len(g.Seats) && g.Seats[seat/64]>>(seat%64)&1 != 0
}

// Len returns the number of holders in g.
func (g *Group) Len() int { return countBits(g.Seats) }

// Append appends a match for each holder in g.
func (g *Group) Append(dst []kv.Match) []kv.Match {
	for i, w := range g.Seats {
		for ; w != 0; w &= w - 1 {
			dst = append(dst, kv.Match{
				Holder: uint32(g.Holder(i*64 + bits.TrailingZeros64(w))),
				Device: g.Depth, Host: g.Depth, Any: g.Depth,
			})
		}
	}
	return dst
}
