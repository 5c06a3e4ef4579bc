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
}

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

// contradicted notes that an answer has other bytes than came live.
func (f *Feed) contradicted(seq uint64) {
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

// letBeyondGo lets go of what an answer that ends unproven has brought beyond what
// came live: it may be another engine's, and if it is not it will come live, or be
// shown by what does. It reports whether the publisher is to be asked once more first.
func (f *Feed) letBeyondGo(now time.Time) bool {
	r := &f.repair
	gone := false
	for seq, b := range f.held {
		if b.replayed && f.beyond(seq) {
			f.unhold(seq)
			gone = true
		}
	}
	if !gone {
		return false
	}
	if r.tries++; r.tries < max(f.limits.ReplayTries, f.limits.AbsenceTries) {
		r.notBefore = now.Add(f.delay())
		if r.confirmAt.IsZero() {
			r.confirmAt, r.heardAt = r.notBefore, time.Time{}
		}
		return true
	}
	f.faults.Raise(faultForeign, "the replay at %s begins at %d while live from %s is at %d: it may be another engine's", f.cfg.ReplayEndpoint, r.least, f.cfg.Endpoint, f.seen-1)
	return false
}
