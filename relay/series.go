// SPDX-License-Identifier: Apache-2.0

// Before: Subscription, whose ranks need snapshots. After: the peer's server.

package relay

import (
	"bytes"
	"time"
)

// To a subscriber that pools ranks, the peer's gateway, a chunk of index 0 and a
// clear in any chunk or batch are the end of all that it held of the engine,
// whatever the rank: of several ranks' snapshots only the last one's content would
// stay, and a history's clear at its beginning would take the other ranks' content
// away.
// Source: the released gateway 1.13.0, whose index was compared with what it was
// sent.

// series is the snapshots of all of an engine's ranks told as one: the chunks are
// numbered through the ranks, only the first begins with a clear, and nothing else
// is told before the last.
type series struct {
	readers []*reader // those whose snapshots are still to be told, in order
	begun   bool      // the chunks are counted
	index   uint32    // of the next chunk
	count   uint32
	blocks  uint64
	unknown uint64
}

// beginSeries has a subscription of several ranks, to a subscriber that pools them,
// begin with snapshots of all ranks that have anything. A rank that goes on from a
// cursor is alone in having anything.
func (s *Subscription) beginSeries() {
	var all []*reader
	for _, r := range s.readers {
		if !r.claims && r.fresh() {
			all = append(all, r)
		}
	}
	if len(all) > 0 {
		s.series = &series{readers: all}
	}
}

// fresh has r begin with a snapshot if its rank has anything.
func (r *reader) fresh() bool {
	r.rank.mu.RLock()
	defer r.rank.mu.RUnlock()
	if !r.rank.has {
		return false
	}
	r.phase = phaseSnapshot
	r.following.Store(false)
	return true
}

// toldOthers returns whether a batch or a chunk of another rank than r's was told.
func (s *Subscription) toldOthers(r *reader) bool {
	for _, other := range s.readers {
		if other != r && other.begun {
			return true
		}
	}
	return false
}

// spoil ends the subscription after the clear of r's rank was told, so that the
// subscriber begins anew with what the other ranks hold.
func (s *Subscription) spoil(r *reader) {
	s.spoilt = endf(EndDataLoss, "rank %d was cleared, which takes the other ranks' content away where ranks are pooled: subscribe from 0", r.rank.number)
}

// lookSeries is look while a series is told.
func (s *Subscription) lookSeries(now time.Time) (told bool, err error) {
	sr := s.series
	ready := true
	for _, r := range sr.readers {
		there, err := r.standsBy(s.form)
		if err != nil {
			return false, err
		}
		ready = ready && there
	}
	if !ready {
		return false, nil
	}
	if !sr.begun {
		sr.begun = true
		for _, r := range sr.readers {
			sr.count += r.snap.head.Count
			sr.blocks += r.snap.head.Blocks
			sr.unknown += r.snap.head.UnknownBefore
		}
	}
	r := sr.readers[0]
	ts := r.snap.ts
	if !s.tellChunk(r) {
		return false, r.overtaken()
	}
	sr.renumber(&s.item.Chunk, r.rank.number, ts)
	if r.phase == phaseFollow {
		sr.readers = sr.readers[1:]
	}
	if len(sr.readers) == 0 {
		s.series = nil
	}
	s.withLoad(r, true, now)
	return true, nil
}

// standsBy returns whether r's snapshot is ready, and what ends the subscription
// meanwhile.
func (r *reader) standsBy(form Form) (bool, error) {
	rank := r.rank
	rank.mu.RLock()
	defer rank.mu.RUnlock()
	switch {
	case rank.epoch != r.epoch:
		return false, endf(EndDataLoss, "%s: subscribe from 0", rank.why)
	case r.phase == phaseSnapshot:
		return r.await(form), nil
	case r.pos.Load() < rank.hist.tail:
		rank.fell.Add(1)
		return false, r.overtaken()
	}
	return true, nil
}

// overtaken is the end of a subscription whose snapshot the history left behind.
func (r *reader) overtaken() error {
	return endf(EndOutOfRange, "rank %d: what follows the snapshot is no longer kept: subscribe from 0", r.rank.number)
}

// renumber gives a chunk its place in the series.
func (sr *series) renumber(c *Chunk, rank int, timestamp float64) {
	events := c.Body[len(appendPeerChunk(nil, c, timestamp, rank)):]
	if sr.index > 0 && c.Index == 0 {
		events = bytes.TrimPrefix(events, peerCleared)
	}
	c.Index, c.Count, c.Blocks, c.UnknownBefore = sr.index, sr.count, sr.blocks, sr.unknown
	c.Head, c.Body = appendPeerChunk(nil, c, timestamp, rank), events
	sr.index++
}

// peerCleared is the event that a snapshot of the peer's form begins with: field
// events of KvEventBatch, in it field cleared of KvCacheEvent, empty.
var peerCleared = []byte{3<<3 | 2, 2, 4<<3 | 2, 0}
