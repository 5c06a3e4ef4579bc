// SPDX-License-Identifier: Apache-2.0

// Before: feed.go's inputs from the live socket. After: apply.go.

package feed

import (
	"math"
	"slices"
	"time"
)

// Live takes one message of the live socket. The feed may keep payload: it must
// not change any more.
func (f *Feed) Live(seq uint64, payload []byte, now time.Time) {
	if f.stageLive(seq, payload, now) {
		f.commitNow()
		f.finish(now)
	}
}

// stageLive is Live up to the point where the batch that continues the stream is
// to be applied: true; then commit and finish are due. False: Live has done all
// that it does.
func (f *Feed) stageLive(seq uint64, payload []byte, now time.Time) bool {
	if seq == math.MaxUint64 { // the mark of a replay's end, never a number
		f.BadMessage()
		return false
	}
	f.telling = time.Time{}
	if !f.waiting() && !f.repair.wantJoin {
		// Whatever was missed before this batch shows as a gap.
		f.heard(now)
	}
	switch {
	case f.has && seq <= f.last:
		f.past(seq, payload, now)
	case f.holds(seq):
		f.again(seq, payload, now)
	case seq == f.next() && !f.waiting():
		if f.stage(seq, payload, false) {
			return true
		}
		f.undecodable(seq, payload)
	case !f.sink.Decodable(payload):
		f.undecodable(seq, payload)
	default:
		f.ahead(seq, payload, now)
	}
	return false
}

// finish ends what stageLive or stageReplay began, once the batch is applied.
func (f *Feed) finish(now time.Time) {
	f.admitted(now)
	switch {
	case f.staged.Replayed:
		f.repair.progress = true
		f.counts.recovered++
	case f.staged.Seq == 0:
		f.repair.wantJoin = false // a life in full view: nothing came before
		f.faults.set &^= faultUnverified
		if f.limits.QuietDelay > 0 {
			f.heard(now)
		}
	case !f.canReplay():
		f.faults.set &^= faultUnverified // the number follows: nothing was missed
	}
	f.drain(now)
}

// BadMessage counts one message that could not be taken apart: wrong number of
// frames, or a sequence that is not 8 bytes.
func (f *Feed) BadMessage() { f.counts.malformed++ }

// waiting reports whether even the next number must wait: until it is known that
// the publisher is still the same, or while the content is being replaced.
func (f *Feed) waiting() bool { return f.repair.unverified || f.repair.resyncing }

// past takes a live batch whose number was passed already: the same bytes are a
// duplicate, others a restart. Where the bytes passed are unknown the publisher is
// asked first.
func (f *Feed) past(seq uint64, payload []byte, now time.Time) {
	known := f.history.get(seq)
	switch {
	case known == digest(payload):
		f.counts.duplicates++
	case !f.sink.Decodable(payload):
		f.counts.malformed++
	case known == 0 && f.suspicious(seq):
		f.suspect(seq, payload, now)
	case known != 0 && seq > 1 && !f.anchored(seq):
		f.restartAnswered(now) // of what answers brought, or an older life
		f.Live(seq, payload, now)
	default:
		f.replacing(seq, known)
		f.restart()
		f.Live(seq, payload, now)
	}
}

// again takes a live batch whose number is held: two batches of one number are
// of two lives, and what was held is of the older one.
func (f *Feed) again(seq uint64, payload []byte, now time.Time) {
	switch {
	case digest(f.held[seq].payload) == digest(payload):
		f.counts.duplicates++
		f.confirmed(seq)
	case !f.sink.Decodable(payload):
		f.counts.malformed++
	default:
		f.restart()
		f.Live(seq, payload, now)
	}
}

// ahead takes a live batch that cannot be applied yet. Without a replay socket
// nothing is waited for.
func (f *Feed) ahead(seq uint64, payload []byte, now time.Time) {
	if seq > f.seen && (!f.resume.open || f.anchor.heard) {
		f.counts.gaps++ // what was said before a resumed stream was there is none
	}
	f.seen = max(f.seen, seq+1)
	if !f.canReplay() {
		f.lose(seq-1, "no replay socket")
		f.admit(seq, payload, false, now)
		return
	}
	f.hold(seq, payload, false)
	for len(f.held) > f.limits.HeldBatches || f.heldLen > f.limits.HeldBytes {
		const why = "more batches came meanwhile than may wait"
		if f.waiting() {
			f.repair.cancel()
			f.repair.unverified = false
			if len(f.suspects.batches) > 0 {
				f.believe(now)
				return
			}
			if f.resume.open {
				f.cold(why, now)
			} else {
				f.faults.Raise(faultUnverified, why)
			}
		}
		f.giveUpFirst(why, now)
	}
}

// undecodable takes a payload that is no batch, at a number that was not passed.
// It is never applied and never moves the cursor by itself: the number is missing
// until it is repaired or a later batch shows that it is gone.
func (f *Feed) undecodable(seq uint64, payload []byte) {
	f.counts.malformed++
	if seq == f.seen { // in its place, so it is the publisher's own number
		f.counts.gaps++
		f.seen = seq + 1
	}
	if f.bad.open && f.bad.seq <= seq {
		return
	}
	f.bad = badBatch{open: true, seq: seq, sum: digest(payload)}
	if !f.canReplay() {
		f.faults.Raise(faultUnverified, "batch %d is undecodable and there is no replay socket", seq)
	}
}

func (f *Feed) holds(seq uint64) bool {
	_, ok := f.held[seq]
	return ok
}

func (f *Feed) hold(seq uint64, payload []byte, replayed bool) {
	if !f.holds(seq) {
		f.held[seq] = heldBatch{payload, replayed}
		f.anchor.heard = f.anchor.heard || !replayed
		f.heldLen += len(payload)
	}
}

func (f *Feed) unhold(seq uint64) heldBatch {
	b := f.held[seq]
	delete(f.held, seq)
	f.heldLen -= len(b.payload)
	return b
}

// admitHeld applies what is held under seq, which continues the stream. It was
// decoded when it was held, so it is a batch.
func (f *Feed) admitHeld(seq uint64, now time.Time) {
	b := f.unhold(seq)
	if f.admit(seq, b.payload, b.replayed, now) && b.replayed {
		f.counts.recovered++
	}
}

// drain applies what is held and follows.
func (f *Feed) drain(now time.Time) {
	for !f.waiting() && f.holds(f.next()) {
		f.admitHeld(f.next(), now)
	}
}

// lose passes over every number up to and including to.
func (f *Feed) lose(to uint64, why string) {
	from := f.next()
	f.counts.lost += to - from + 1
	if f.faults.Has(faultForeign) { // which says why
		f.faults.set |= faultLost
	} else {
		f.faults.Raise(faultLost, "batches %d to %d lost: %s", from, to, why)
	}
	f.sink.Lost(from, to, why)
	f.history.skip(to + 1)
	f.has, f.last = true, to
	f.seen = max(f.seen, to+1)
	f.closeBad()
}

// closeBad forgets an undecodable batch whose number was passed.
func (f *Feed) closeBad() {
	if f.bad.open && f.has && f.bad.seq <= f.last {
		f.bad = badBatch{}
	}
}

// giveUpFirst passes over the first run of missing batches and applies what is
// held behind it.
func (f *Feed) giveUpFirst(why string, now time.Time) {
	first := uint64(math.MaxUint64)
	for seq := range f.held {
		first = min(first, seq)
	}
	if first != math.MaxUint64 {
		if first != f.next() {
			f.lose(first-1, why)
		}
		f.drain(now)
	}
}

// giveUp passes over all that is missing below what is held and at most limit. What
// is held beyond is let go: it is a straggler of an older life.
func (f *Feed) giveUp(why string, limit uint64, now time.Time) {
	seqs := make([]uint64, 0, len(f.held))
	for seq := range f.held {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	for _, seq := range seqs {
		if seq > limit && seq != f.next() {
			f.unhold(seq)
			f.counts.duplicates++
			continue
		}
		if seq != f.next() {
			f.lose(seq-1, why)
		}
		f.admitHeld(seq, now)
	}
	// An undecodable number that not even the replay knows was never one.
	f.bad = badBatch{}
}

// restart begins a new epoch: everything of the old life goes at once, and the
// new life is a join.
func (f *Feed) restart() {
	f.resume.refuse("the publisher has begun another life")
	f.epoch++
	f.counts.restarts++
	f.forget(ForgetRestart)
	f.repair.restart(f.canReplay())
	f.faults.Heal()
}

// restartAnswered is restart where an answer says that there was one, or brought what
// turns out to be wrong. One such is as good as any other; each further one through
// the same connection puts off what is asked next, so that answers that contradict
// each other, or what comes live, are not run after.
func (f *Feed) restartAnswered(now time.Time) {
	f.restart()
	r := &f.repair
	r.notBefore = now
	if r.flips > 0 {
		r.notBefore = now.Add(min(f.limits.RetryDelay<<min(r.flips, 16), maxRetryDelay))
	}
	r.flips++
}

// forget empties the content and takes the cursor back to before the first batch.
func (f *Feed) forget(why Forget) {
	if why == ForgetRestart || f.has {
		f.sink.Forget(why, &f.faults)
	}
	f.suspects = suspects{}
	f.anchor = f.anchor.next()
	f.has, f.last, f.seen = false, 0, 0
	f.history.reset()
	f.release()
}

// release lets go of what waits.
func (f *Feed) release() {
	clear(f.held)
	f.heldLen = 0
	f.bad = badBatch{}
}
