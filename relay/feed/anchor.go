// SPDX-License-Identifier: Apache-2.0

// Before: admit.go. After: repair.go, which asks what an answer proves.

package feed

import (
	"fmt"
	"time"
)

// anchor is what came live, and was admitted, since the connection was made. A
// publisher does not change under a connection that stands, so that an answer that
// knows other batches, or none, is not its own: a replay socket that keeps nothing,
// or another engine's.
type anchor struct {
	heard    bool   // something came live
	any      bool   // and was admitted
	shared   bool   // publishers came to us while others were there: they may mix
	from, to uint64 // numbers, inclusive

	// What came live, and was admitted, before another batch of its number came live:
	// one of the two is a straggler of an older life, and an answer that has the first
	// is the publisher's own all the same. sum 0: nothing.
	replaced struct{ seq, sum uint64 }
}

// next is the anchor after a restart through the same connection.
func (a *anchor) next() anchor { return anchor{shared: a.shared, replaced: a.replaced} }

// admitted notes a live batch, whose number is above all noted before.
func (a *anchor) admitted(seq uint64) {
	if a.shared {
		return
	}
	if !a.any {
		a.any, a.from = true, seq
	}
	a.to = seq
}

// anchored reports whether what was admitted under seq is the publisher's own,
// whatever an answer says. Where suspects wait that is what is asked.
func (f *Feed) anchored(seq uint64) bool {
	a := &f.anchor
	return a.any && a.from <= seq && seq <= max(a.to, f.last) && len(f.suspects.batches) == 0
}

// replacing notes that a live batch takes the place of another one that came live, whose
// digest is sum.
func (f *Feed) replacing(seq, sum uint64) {
	if f.anchored(seq) {
		f.anchor.replaced.seq, f.anchor.replaced.sum = seq, sum
	}
}

// cameLive reports whether an answer's batch has come live through this connection.
func (f *Feed) cameLive(seq uint64, payload []byte) bool {
	if b, ok := f.held[seq]; ok {
		return !b.replayed && digest(b.payload) == digest(payload)
	}
	return f.anchored(seq) && f.history.get(seq) == digest(payload)
}

// contradicted takes an answer's batch that has other bytes than came live. Where these
// came live before those, or others of the answer did, it is the publisher's own, and
// the later ones are of an older life.
func (f *Feed) contradicted(seq uint64, payload []byte, now time.Time) {
	if is := f.anchor.replaced; f.repair.agreed || is.sum == digest(payload) && is.seq == seq {
		f.restartAnswered(now)
		return
	}
	f.repair.foreign = true
	f.faults.Raise(faultForeign, "the replay at %s has another batch %d than came live from %s: it may be another engine's", f.cfg.ReplayEndpoint, seq, f.cfg.Endpoint)
}

// lacking notes that an answer does not have a batch that came live.
func (f *Feed) lacking(seq uint64) {
	what := "has nothing"
	if f.repair.got {
		what = "has only older batches"
	}
	f.faults.reason = fmt.Sprintf("the replay at %s %s though batch %d came live", f.cfg.ReplayEndpoint, what, seq)
}

// beyond reports whether a replayed batch is further than live has come, in an
// answer that has not shown yet that it is the same publisher's.
func (f *Feed) beyond(seq uint64) bool {
	return (f.anchor.any || f.anchor.heard) && !f.repair.proved && f.repair.least > f.seen && seq >= f.seen && len(f.suspects.batches) == 0
}

// proven notes that the answer under way is the publisher's own.
func (f *Feed) proven() {
	f.repair.proved = true
	f.faults.set &^= faultForeign
}

// confirmed notes that a batch that waits has come live now. Where an answer had
// brought it, it is the publisher's own, and live has come so far.
func (f *Feed) confirmed(seq uint64) {
	f.anchor.heard = true
	if seq > f.seen {
		f.counts.gaps++
	}
	f.seen = max(f.seen, seq+1)
	b := f.held[seq]
	if !b.replayed {
		return
	}
	if r := &f.repair; r.id != 0 && r.got && r.least <= seq && seq <= r.most {
		f.proven()
	}
}

// dropBeyond lets go of what an answer that stays unproven has brought beyond what
// came live: it may be another engine's, and if it is not it will come live, or be
// asked for again. It reports whether there was any.
func (f *Feed) dropBeyond() bool {
	gone := false
	for seq, b := range f.held {
		if b.replayed && f.beyond(seq) {
			f.unhold(seq)
			gone = true
		}
	}
	return gone
}

// letBeyondGo is dropBeyond at an answer's end. It reports whether the publisher is
// to be asked once more first.
func (f *Feed) letBeyondGo(now time.Time) bool {
	if !f.dropBeyond() {
		return false
	}
	r := &f.repair
	if r.strange++; r.strange < max(f.limits.ReplayTries, f.limits.AbsenceTries) {
		r.notBefore = now.Add(f.delay(r.strange))
		if r.confirmAt.IsZero() {
			r.confirmAt, r.heardAt = r.notBefore, time.Time{}
		}
		return true
	}
	f.faults.Raise(faultForeign, "the replay at %s begins at %d while live from %s is at %d: it may be another engine's", f.cfg.ReplayEndpoint, r.least, f.cfg.Endpoint, f.seen-1)
	return false
}
