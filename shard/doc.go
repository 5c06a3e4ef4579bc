// SPDX-License-Identifier: Apache-2.0

// Package shard is the index: which holder holds how much of a chain, exactly.
package shard

/*
Terminology

A position is one place in the tree of all chains: the path of content hashes
from a namespace's root. A holder is one (worker, rank). A membership is one
holder holding one position. Engines name blocks by hashes of their own; per
holder, a map from engine hash to position says what an event is about.

Layers

	Index      what callers see: holders, tiers, copies, orphans (index.go)
	Reference  that contract in plain maps, written for reading (reference.go)
	Shard      that contract above a core, for speed (shard.go, room.go)
	core       slots and positions only (core.go): chain or positional

A core knows nothing of tiers or copies: it keeps sets of memberships called
slots. Shard gives a holder one slot while it names one tier. The first event
of another tier gives it a slot for that tier and slots for the unions that
lookups ask about (device or host; any), each begun as a clone, so that a depth
by tier is one slot's depth and costs a lookup nothing.

The first copy of a block is the slot's membership itself; only second and later
copies of an engine hash are counted, in a side table that is nearly always
empty. A store whose parent the holder lacks waits in the holder's room, outside
the core, until the parent is stored.

Ordering

One writer at a time calls everything but lookups. A lookup takes no lock here:
slots are resolved to holders through a table that never changes (seatTable), of
which the writer publishes another one when a slot's meaning changes; a lookup
that finds another at its end than at its beginning begins again. What a core's
own lookup synchronises is the core's affair: the chain core takes no lock and
writes nothing.

A lookup's answer is a match for each holder (Lookup), or sets of the holders that
share a depth (Grouper); several lookups may walk in step (Batcher). What they work
in is pooled and used again, so that none of them allocates.

Not supported: several writers; memory limits other than the arena's.
*/
