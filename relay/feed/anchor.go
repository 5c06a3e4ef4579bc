// SPDX-License-Identifier: Apache-2.0

// Before: admit.go. After: repair.go, which asks what an answer proves.

package feed

import "fmt"

// anchor is what came live, and was admitted, since the connection was made. A
// publisher does not change under a connection that stands, so that an answer that
// knows other batches, or none, is not its own: a replay socket that keeps nothing,
// or another engine's.
type anchor struct {
	any      bool
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
