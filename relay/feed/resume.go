// SPDX-License-Identifier: Apache-2.0

// Before: whoever kept a content, and its cursor, from an earlier run. After:
// repair.go, which asks the publisher's replay socket for proof.

package feed

import "time"

// resume is what a feed knows of the content that it began with.
//
// The content is the publisher's own only where an answer of the replay socket
// brings batch LastSeq with the bytes that were admitted. Then the stream goes on
// behind it, and is not active before that answer has ended. Whatever else is
// answered, or nothing, ends with an empty content and another epoch, and the
// stream begins as a new one does. That holds for a replay that has rolled past
// LastSeq, too. A reconnected stream keeps its content then, degraded: it was away
// for a moment. A resumed one may have been away for hours, the removals said
// meanwhile are gone, and nothing shows that the publisher is not another one: what
// is kept might be held by nobody, and counting too much is worse than too little.
type resume struct {
	open   bool   // nobody knows yet whose content it is
	proved uint64 // 1: it is the publisher's
	why    string // it is not, or cannot be proved to be
}

// refuse notes why the content that the feed began with goes.
func (r *resume) refuse(why string) {
	if r.open {
		r.open, r.why = false, why
	}
}

// take begins with a content that stands at p.
func (f *Feed) take(p *Position) {
	f.epoch = max(p.Epoch, 1)
	if !p.HasSeq {
		return
	}
	f.resume.open = true
	f.has, f.last, f.seen = true, p.LastSeq, p.LastSeq+1
	f.history.add(p.LastSeq, p.LastSum)
	f.faults = p.RestoreFaults()
	f.repair.wantJoin, f.repair.unverified = false, true
}

// unprovable returns why nobody can be asked whose content the feed began with; ""
// where somebody can, or where that is known.
func (f *Feed) unprovable() string {
	switch {
	case !f.resume.open:
	case !f.canReplay():
		return "there is no replay socket to prove whose content it is"
	case f.history.get(f.last) == 0:
		return "nobody saw the last batch of the content, which would prove whose it is"
	}
	return ""
}

// resumed notes that the content is the publisher's own.
func (f *Feed) resumed() {
	if f.resume.open {
		f.resume.open, f.resume.proved = false, 1
		f.repair.catching = true
	}
}

// cold gives up the content that the feed began with, of which it is not known
// that the publisher is another one. What came live meanwhile waits for what was
// said before it.
func (f *Feed) cold(why string, now time.Time) {
	f.resume.refuse(why)
	held, suspects := f.held, f.suspects.batches
	f.held = map[uint64]heldBatch{}
	f.epoch++
	f.forget(ForgetRestart)
	r := &f.repair
	confirmAt, heardAt := r.confirmAt, r.heardAt
	r.restart(f.canReplay())
	r.confirmAt, r.heardAt, r.notBefore = confirmAt, heardAt, now
	f.faults.Heal()
	for seq, b := range held {
		if !b.replayed {
			f.hold(seq, b.payload, false)
			f.seen = max(f.seen, seq+1)
		}
	}
	for _, s := range suspects {
		f.Live(s.seq, s.payload, now)
	}
}
