// SPDX-License-Identifier: Apache-2.0

// Before: Rank's history and snapshots. After: Subscription.

package relay

import (
	"fmt"
	"sync/atomic"
	"time"

	"kindex/relay/load"
)

// One item holds at most so many batches, and so many encoded bytes unless one
// batch alone is larger.
const (
	runBatches = 256
	runBytes   = 256 << 10
)

// phase is how far a reader is.
type phase uint8

const (
	phaseDecide   phase = iota // its cursor is not judged yet
	phaseSnapshot              // it waits for a snapshot
	phaseChunks                // it is being told one
	phaseFollow                // it reads the history
)

// reader is a subscription's position in one rank.
//
// Concurrency: as the subscription's Next; pos and following may be read by any.
type reader struct {
	rank  *Rank
	pacer *load.Pacer // nil: no load is known

	phase  phase
	claims bool   // phaseDecide: the subscriber has a cursor
	cursor Cursor // that
	epoch  uint64 // of what the subscriber was told
	snap   *snapshot
	chunk  int    // the next of snap
	told   uint64 // the version of the standing told
	early  bool   // it is exact, which was not told: what it rests on comes first
	last   uint64 // the number of the last batch told
	any    bool   // last means something
	begun  bool   // a batch or a chunk was told
	toldAt time.Time

	pos       atomic.Uint64 // the index in the history that is read next
	following atomic.Bool   // pos means something
}

func (r *reader) item(kind ItemKind) Item {
	return Item{Kind: kind, Rank: r.rank.number, Epoch: r.epoch, LastSequence: r.last, Told: r.any}
}

func (r *reader) follow(pos uint64) {
	r.phase = phaseFollow
	r.pos.Store(pos)
	r.following.Store(true)
}

// begin makes r begin anew: with the whole history, a snapshot, or what comes.
// The rank is locked.
func (r *reader) begin() {
	rank := r.rank
	r.release()
	r.epoch, r.last, r.any = rank.epoch, 0, false
	r.following.Store(false)
	switch {
	case rank.hist.whole():
		r.follow(rank.hist.from)
	case rank.has:
		r.phase = phaseSnapshot
	default:
		r.follow(rank.hist.head)
	}
}

// beginPeer begins under the peer's rules. resumed: the stream as a whole goes on
// after a cursor, so that of a rank without one the subscriber may hold anything. A
// snapshot then replaces that, unless the subscriber pools ranks.
func (r *reader) beginPeer(resumed, pooled bool) error {
	rank := r.rank
	rank.mu.RLock()
	defer rank.mu.RUnlock()
	r.begin()
	if !r.claims {
		if resumed && rank.has {
			if pooled {
				return endf(EndOutOfRange, "a cursor of rank 0 says nothing of rank %d, which has batches: subscribe from 0", rank.number)
			}
			r.phase = phaseSnapshot
			r.following.Store(false)
		}
		return nil
	}
	seq := r.cursor.Sequence
	h := &rank.hist
	switch {
	case !rank.has || seq > rank.last:
		return endf(EndOutOfRange, "batch %d is beyond the newest (%s): subscribe from 0", seq, rank.newest())
	case h.len() == 0 || seq+1 < h.at(h.from).from || h.from == h.first && h.at(h.from).hole && seq < h.at(h.from).to:
		return endf(EndOutOfRange, "batch %d is below what is kept (%s): subscribe from 0", seq, rank.oldest())
	}
	r.last, r.any = seq, true
	r.follow(h.after(seq))
	return nil
}

// verdict is what comes of a cursor.
type verdict uint8

const (
	good verdict = iota
	bad
	unknown // not before more of the engine's past was read
)

// judge decides on the cursor under this package's own rules. The rank is locked.
func (r *reader) judge() verdict {
	rank, c := r.rank, &r.cursor
	h := &rank.hist
	i, found := h.find(c.Sequence)
	if c.Epoch == rank.epoch {
		switch {
		case found && h.at(i).hole && h.at(i).to != c.Sequence, found && !h.at(i).hole && c.Check != 0 && c.Check != h.at(i).check:
			return bad
		case found, h.len() > 0 && c.Sequence < h.at(h.from).from && c.Sequence+1 == h.at(h.from).from:
			return good
		}
		return bad
	}
	switch {
	case c.Check == 0:
		return bad
	case found && rank.unknown == 0 && !h.at(i).hole && h.at(i).check == c.Check:
		// The record up to there is complete, so the subscriber's content is its.
		return good
	case !rank.standing.Primed && (!rank.has || c.Sequence > rank.last):
		return unknown
	}
	return bad
}

// badCursor says why the cursor is no good. The rank is locked.
func (r *reader) badCursor() string {
	rank, seq := r.rank, r.cursor.Sequence
	h := &rank.hist
	switch {
	case r.cursor.Epoch == rank.epoch && h.len() > 0 && seq < h.at(h.from).from:
		return fmt.Sprintf("the cursor, batch %d, is below the history (%s)", seq, rank.oldest())
	case r.cursor.Epoch == rank.epoch && (!rank.has || seq > rank.last):
		return fmt.Sprintf("the cursor, batch %d, is beyond the newest (%s)", seq, rank.newest())
	}
	return "the cursor is not of this record: of another life, or with another check"
}

// step fills s.item with the next thing of r, and returns whether there is any.
func (s *Subscription) step(r *reader) (bool, error) {
	for {
		told, chunk, err := s.stepLocked(r)
		// A chunk is encoded while the stream goes on. Where its snapshot was dropped
		// meanwhile, what r has to be told is another thing.
		if !chunk || s.tellChunk(r) {
			return told, err
		}
	}
}

// stepLocked is step but for a chunk, of which it only says that it is the next.
func (s *Subscription) stepLocked(r *reader) (told, chunk bool, err error) {
	rank := r.rank
	rank.mu.RLock()
	defer rank.mu.RUnlock()
	if err := rank.refuseShort(); err != nil {
		return false, false, err
	}
	if r.phase == phaseDecide {
		switch r.decide() {
		case unknown:
			return s.standing(r), false, nil
		case bad:
			why := r.badCursor()
			r.begin()
			return s.reset(r, why), false, nil
		case good:
		}
	}
	switch {
	case rank.epoch != r.epoch:
		if s.rules == RulesPeer {
			return false, false, endf(EndDataLoss, "%s: subscribe from 0", rank.why)
		}
		r.begin()
		r.told = 0 // what was told was of the other epoch
		return s.reset(r, rank.why), false, nil
	case s.standing(r):
		return true, false, nil
	case r.phase == phaseSnapshot && !r.await(s.form):
		return false, false, nil
	case r.pos.Load() < rank.hist.tail:
		rank.fell.Add(1)
		if s.rules == RulesPeer {
			return false, false, endf(EndOutOfRange, "batch %d is no longer kept (%s): subscribe from 0", r.last+1, rank.oldest())
		}
		r.begin()
		return s.reset(r, "the subscriber fell behind the history"), false, nil
	case r.phase == phaseChunks:
		return true, true, nil
	}
	return s.tellHistory(r), false, nil
}

// tellChunk makes the item of the next chunk. It returns false where its snapshot
// was dropped.
func (s *Subscription) tellChunk(r *reader) bool {
	c, ok := r.snap.chunk(r.rank.number, r.chunk, !r.rank.snapshots.alone(r.snap))
	if !ok {
		return false
	}
	r.begun = true
	r.last, r.any = c.Through, true
	if s.form == FormPeer {
		r.last = c.Sequence
	}
	s.item = r.item(ItemChunk)
	s.item.Chunk = c
	if r.chunk++; r.chunk == int(c.Count) {
		r.last = c.Through
		r.release()
		r.follow(r.pos.Load())
	}
	return true
}

// decide judges the cursor of r and goes on after it, or begins where r has none.
// The rank is locked.
func (r *reader) decide() verdict {
	if !r.claims {
		r.begin()
		return good
	}
	v := r.judge()
	if v == good {
		r.epoch, r.last, r.any = r.rank.epoch, r.cursor.Sequence, true
		r.follow(r.rank.hist.after(r.last))
	}
	return v
}

// reset makes the item that voids the subscriber's content. The rank is locked.
func (s *Subscription) reset(r *reader, why string) bool {
	s.item = r.item(ItemReset)
	s.item.Why = why
	s.item.Any, s.item.Newest = r.rank.has, r.rank.last
	return true
}

// standing makes the item that tells the standing, if it is another one than was
// told.
func (s *Subscription) standing(r *reader) bool {
	if s.rules == RulesPeer || r.told == r.rank.version && (!r.early || !r.reached()) {
		return false
	}
	s.tellStanding(r)
	return true
}

// tellStanding makes the item of the standing. What makes it exact may still be on
// its way to the subscriber, whose content is not exact before it has come.
func (s *Subscription) tellStanding(r *reader) {
	r.told = r.rank.version
	s.item = r.item(ItemStanding)
	s.item.Epoch, s.item.Standing = r.rank.epoch, r.rank.standing
	if r.early = s.item.Standing.Exact && !r.reached(); r.early {
		s.item.Standing.Exact, s.item.Standing.Why = false, "what makes it exact is on its way"
	}
}

// reached reports whether r was told what an exact standing rests on. The rank is
// locked.
func (r *reader) reached() bool {
	rests := r.rank.rests
	return rests <= r.rank.hist.first || r.phase == phaseFollow && r.pos.Load() >= rests
}

// await returns whether the snapshot that r needs is there, and takes it. The rank
// is locked for reading.
func (r *reader) await(form Form) bool {
	if r.snap != nil && r.snap.dropped.Load() {
		r.release()
	}
	if r.snap == nil {
		r.snap = r.rank.snapshots.join(r.rank, form)
	}
	if !r.snap.ready.Load() {
		return false
	}
	r.phase, r.chunk = phaseChunks, 0
	r.pos.Store(r.snap.pos)
	r.following.Store(true)
	return true
}

// release lets go of r's snapshot.
func (r *reader) release() {
	if r.snap != nil {
		r.rank.snapshots.leave(r.snap)
		r.snap = nil
	}
}

// tellHistory makes the item of the next batches or of the next hole. It returns
// whether there is any.
func (s *Subscription) tellHistory(r *reader) bool {
	h := &r.rank.hist
	pos := r.pos.Load()
	for s.rules == RulesPeer && pos < h.head && h.at(pos).hole {
		r.last, r.any = h.at(pos).to, true
		pos++
	}
	if pos == h.head {
		r.pos.Store(pos)
		return false
	}
	if e := h.at(pos); e.hole {
		r.last, r.any = e.to, true
		r.pos.Store(pos + 1)
		s.item = r.item(ItemHole)
		s.item.Hole = Hole{e.from, e.to, e.why}
		return true
	}
	s.batches = s.batches[:0]
	for size := 0; pos < h.head && len(s.batches) < runBatches; pos++ {
		e := h.at(pos)
		size += len(e.bodies[s.form])
		if e.hole || len(s.batches) > 0 && size > runBytes {
			break
		}
		s.batches = append(s.batches, Batch{
			Sequence:  e.to,
			Check:     e.check,
			Timestamp: e.timestamp,
			Received:  time.Unix(0, e.received),
			Body:      e.bodies[s.form],
		})
		r.last = e.to
		if s.pooled && e.clears && s.toldOthers(r) {
			s.spoil(r)
			pos++
			break
		}
	}
	r.any, r.begun = true, true
	r.pos.Store(pos)
	s.item = r.item(ItemBatches)
	s.item.Batches = s.batches
	return true
}
