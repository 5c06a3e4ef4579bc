// SPDX-License-Identifier: Apache-2.0

// Package overlay is what a gateway knows of caches and no index can know yet.
//
// An index learns from events, and events come when an engine has computed. Two things
// it misses: what a request that was placed a moment ago is about to leave on its
// holder, and what an engine kept in its cache while its publisher began anew, which
// nobody announces again. The overlay keeps both beside the index, merges them into
// each answer, and never writes to the index.
//
// # Terminology
//
//	chain      a prompt's whole blocks as prefix hashes: the k-th stands for the first
//	           k blocks, their order and their namespace
//	predicted  entry made as a request is placed: its whole prompt, for a short life
//	confirmed  entry made of an answer that reported more cached tokens than the index
//	           knew: its first so many blocks, until an answer or the index says otherwise
//	anchor     a length at which an entry can be found: four to each power of two
//	root       a chain's first block
//
// # How a chain is found
//
// An entry has its holder and its chain. It stands in a list at the prefix hash of each
// of its anchors, the newest first, so that a prompt's anchors lead to all entries that
// begin as it does, whatever follows. Equal prefix hashes are equal prefixes, so the
// common length of two chains is found by halving. The table is split by hash into
// shards with a lock each, held for one list at a time.
//
// # Bursts
//
// Two requests that are decided at the same moment cannot see one another. Therefore a
// decision is claimed: under the lock of the root's list the claim looks for entries
// younger than the lookup that the decision was made of. Where one shares more with it
// than the holder that was named has, and the decision did not know, the claim fails and
// the caller decides anew. Whoever came first in the root's list never yields, so that
// somebody always goes on, and nobody waits.
//
// # Accuracy
//
// Each answer that reports its cached tokens is held against what was available on the
// best holder, what was expected of the one that was chosen, and what the index alone
// had said of it. A worker that delivers much less than its events say, over a window
// of answers, has [fleet.FaultyCache]; one that delivers much more hides what it holds,
// which is told and not held against it.
//
// # Limits
//
// Entries and bytes are bounded under any life; the oldest goes first. A predicted
// entry whose blocks the engine evicts within its life overcounts for the rest of it.
//
// # Concurrency
//
// Any goroutine; a [View] belongs to one.
package overlay
