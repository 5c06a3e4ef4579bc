// SPDX-License-Identifier: Apache-2.0

// Package live is the live content of one rank: which blocks its engine holds now,
// where, and below which parents; what each batch really changes; and snapshots of
// the whole, cut while the stream goes on.
package live

/*
Terminology

A record is one block: an engine hash and the position that it names. It is held
while it has a copy. A block that lost its last copy while others lie below it
stays as a ghost: not held, under no engine hash, but needed to say where the
others are. An orphan is a store whose parent is not there: it waits, invisible.
An effect is what an event changed, complete in itself.

Layout

	slab of records   48 bytes each, by number; a parent is a number
	slab of nodes     copies beyond a block's first, 12 bytes per (tier, group)
	blobs             tokens and extra keys as the peer's wire has them, in cells
	attrs             what the blocks of an event share, kept once, counted
	held, ghost       tables from engine hash or position to record, 9 to 14 bytes each
	room              orphans, on the heap: there are few

A live block of 16 tokens takes some 107 bytes so, and the garbage collector sees
chunks without pointers. A position is known by its hash alone
(internal/livedigest): whether a store moves a block or adds a copy is one
comparison.

Operations

A store walks down from its parent: each block is another copy of what is held
there, or a ghost's return, or a new record; an engine hash that was elsewhere
leaves there first. With hashes to release, orphans follow in their order. A
removal takes one copy; the last one makes the record a ghost or frees it, and
with it the ghosts above that have nothing else below.

The own form of an effect says a placeholder as what it is. The peer's wire has
none: there the block is told again with its tokens. Where its parent is a ghost,
the ghosts are told under engine hashes that nobody uses and taken away again; so
are the taken-out blocks in the middle of an orphan, in both forms.

A snapshot tells all records parents first, ghosts under such hashes, then further
copies, then takes the ghosts away. Orphans are no part of it: whoever follows is
told of them when they take effect, and would otherwise count them twice.

Ordering

	what             lock           how a cut reads it meanwhile
	records, nodes   the rank's     its own list of chunks; a chunk is copied before its first change
	blobs            the rank's     a cell freed after the cut is used again when the cut is closed
	attrs            the rank's     its own list; one that is kept never changes
	numbers of cuts  atomics        written under cuts.mu by whoever opens or closes one

So the lock is held for microseconds however much is live, and what a cut costs is
paid by the changes that come while it is open: 48 KiB copied per chunk of 1,024
records that is touched. BenchmarkCut has the alternative.

Limits

Blocks, bytes, orphans, copies and cuts are bounded by Options and by constants
beside what they bound; what is refused is counted.

Not supported: giving memory back before a clear; telling a removal which of
several copies with other attributes it means (the newest other one goes).
*/
