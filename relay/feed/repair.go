// SPDX-License-Identifier: Apache-2.0

// Before: feed.go's inputs from the replay socket. After: apply.go.

package feed

import (
	"fmt"
	"math"
	"time"
)

// maxRetryDelay bounds the doubling of Limits.RetryDelay.
const maxRetryDelay = 5 * time.Second

// repair is what a feed knows of its replay socket, and what it wants of it.
//
// A request starts at the last admitted batch, not behind it, or a few before that:
// the answer then shows by those batches' bytes that the publisher is still the one
// whose batches were admitted.
//
// Messages of an answer may come twice, out of order, or not at all; the end
// marker, too. What came is taken by its number, what is missing is asked for
// again, and with Limits.AbsenceTries above 1 nothing is concluded from what only
// one answer lacks.
type repair struct {
	// What is wanted, beside filling the gap below what is held.
	wantJoin   bool      // the history before the first batch was not asked for yet
	unverified bool      // reconnected, or resumed: is the publisher still the same?
	catching   bool      // resumed, and what was said meanwhile has not all come yet
	confirmAt  time.Time // silent since connecting, or since heardAt: ask once more then; zero: no need
	heardAt    time.Time // when something came live last; zero: confirmAt is not about that
	more       bool      // the last answer had more than there was room for
	resyncAt   time.Time // try to get back what was given up then; zero: no use

	// The request under way; id 0: none.
	id        uint64
	issued    uint64 // requests so far
	start     uint64
	joining   bool   // nothing was admitted when it was made
	verifying bool   // the last admitted batch must be in the answer
	sure      uint64 // that batch's number
	resyncing bool   // the answer is to replace the content as a whole
	proved    bool   // it has brought a batch that was admitted, or has come live
	agreed    bool   // and one that came live through this connection
	garbled   bool   // something in it cannot be read
	foreign   bool   // it has contradicted what came live: no more of it is taken, unless it has more that did
	got       bool   // anything came
	least     uint64
	most      uint64   // of the numbers that came
	short     bool     // it began above what is missing, and that is not believed yet
	progress  bool     // something was admitted
	whole     [][]byte // while resyncing: the batches from 0; nil: did not come yet
	wholeLen  int      // and their bytes

	tries     int       // fruitless answers to what is missing now
	fails     int       // requests in a row without a whole answer
	strange   int       // answers that stayed unproven beyond what came live
	above     int       // answers that began above aboveAt while that was missing
	aboveAt   uint64    // the number
	aboveFrom uint64    // the least number that they had
	answered  bool      // while unverified: an answer came, and proved nothing
	fromZero  bool      // the next request asks for everything, to learn whether the publisher is another one
	askedAll  bool      // and such an answer lacked the last admitted batch, too
	absent    int       // answers in a row without the last admitted batch
	quiet     int       // answers in a row, since something came live, with nothing new in them
	partial   int       // answers in a row that cannot replace the content
	top       uint64    // the greatest number that any answer of this epoch brought
	notBefore time.Time // of the next request
	deaf      bool      // the last repair ended without an answer, and nothing has come since
	hopeless  bool      // no replay can begin at 0 in this epoch
	flips     int       // restarts since connecting that answers took part in
	strayed   bool      // what is held was held against the answers in this epoch
}

// restart forgets what belongs to one life of the publisher.
func (r *repair) restart(canReplay bool) {
	*r = repair{issued: r.issued, deaf: r.deaf, flips: r.flips, wantJoin: canReplay}
}

// freshTries begins every count of tries anew.
func (r *repair) freshTries() { r.tries, r.fails, r.strange = 0, 0, 0 }

// cancel forgets the request under way: what still comes of it is ignored.
func (r *repair) cancel() {
	r.id, r.resyncing, r.whole, r.wholeLen = 0, false, nil, 0
}

// repairing reports whether the stream is not exact and something is done about it.
func (f *Feed) repairing() bool {
	r := &f.repair
	return r.wantJoin || r.unverified || r.catching || r.more || r.resyncing || len(f.held) > 0 || f.bad.open && f.canReplay()
}

// Connected tells that messages published from now on will arrive.
func (f *Feed) Connected(now time.Time) {
	again := f.ever
	f.anchor = anchor{shared: f.connected}
	f.unbound = false
	f.connected, f.ever, f.failed, f.since, f.why = true, true, false, time.Time{}, ""
	r := &f.repair
	r.flips = 0
	if why := f.unprovable(); why != "" {
		f.cold(why, now)
	}
	if f.canReplay() {
		r.confirmAt, r.heardAt = now.Add(f.limits.ConfirmDelay), time.Time{}
		r.notBefore = now
	} else {
		// Nothing acknowledges a subscription, and what is published before it
		// arrives is missed. With a replay socket that shows; without one the
		// stream is not called active before it must have arrived.
		f.telling = now.Add(f.limits.SubscribeTime)
	}
	switch {
	case !again && !f.resume.open:
	case f.has && f.canReplay():
		// Batches may have been missed, and the publisher may be another one
		// whose numbers have already passed the old ones. What is held came
		// before, perhaps of the older one; the replay has it, too.
		f.release()
		r.unverified, r.absent, r.answered, r.fromZero, r.askedAll = true, 0, false, false, false
		r.freshTries()
	case f.has:
		f.faults.Raise(faultUnverified, "the connection was lost for a while and there is no replay socket to ask what was missed")
	case f.canReplay():
		f.forget(ForgetResync)
		r.restart(true)
		r.notBefore, r.confirmAt = now, now.Add(f.limits.ConfirmDelay)
	}
}

// Disconnected tells that messages may be missed from now on, and why. It may
// be called again with a better reason. Nothing is asked until Connected: who
// would answer may be another publisher than the one whose batches are held.
func (f *Feed) Disconnected(why string, now time.Time) {
	f.repair.cancel()
	f.drain(now)
	if f.connected || f.since.IsZero() {
		f.since = now
	}
	if f.unbound {
		f.unbound, f.failed, f.since = false, false, now
	}
	f.connected, f.why = false, why
	f.anchor = anchor{}
}

// Unbound tells that the live endpoint, which is ours to bind, cannot be bound, and
// why: the stream has failed, until Connected or Disconnected.
func (f *Feed) Unbound(why string, now time.Time) {
	f.Disconnected(why, now)
	f.unbound, f.failed = true, true
}

// ReplayBatch takes one batch of the answer to request id, as [Feed.Live] does.
// Answers to any but the newest request are ignored.
func (f *Feed) ReplayBatch(id, seq uint64, payload []byte, now time.Time) {
	if f.stageReplay(id, seq, payload, now) {
		f.commitNow()
		f.finish(now)
	}
}

// stageReplay is to ReplayBatch what stageLive is to Live.
func (f *Feed) stageReplay(id, seq uint64, payload []byte, now time.Time) bool {
	r := &f.repair
	if id == 0 || id != r.id {
		return false
	}
	if r.foreign {
		if f.cameLive(seq, payload) {
			f.restartAnswered(now)
		}
		return false
	}
	if !r.resyncing && seq > f.next() && !f.sink.Decodable(payload) {
		f.counts.malformed++
		r.garbled = true // it says nothing, not even where the answer begins
		return false
	}
	first := !r.got
	if !first && seq <= r.most {
		if f.answered(seq, payload) {
			f.counts.duplicates++
			return false
		}
		if !f.missing(seq) {
			f.ReplayFailed(id, fmt.Errorf("batch %d after %d, and another one than before", seq, r.most), now)
			return false
		}
	}
	if first {
		r.least = seq
	}
	r.got, r.deaf = true, false
	if seq >= r.sure {
		r.absent, r.askedAll = 0, false
	}
	r.least, r.most, r.top = min(r.least, seq), max(r.most, seq), max(r.top, seq)
	if r.short && seq <= r.aboveAt {
		r.short, r.above = false, 0 // it only came out of order
	}
	switch {
	case r.resyncing:
		f.collect(seq, payload, first, now)
	case f.has && seq <= f.last:
		f.repeated(seq, payload, now)
	case f.holds(seq) && !f.agrees(seq, payload, now):
	case r.unverified:
		f.keep(seq, payload, now) // until it is known whose life this is
	default:
		if first {
			f.begins(seq)
		}
		if f.beyond(seq) {
			f.keep(seq, payload, now)
			return false
		}
		return f.fill(seq, payload, now)
	}
	return false
}

// answered reports whether the answer under way has brought just this batch: a
// message delivered twice says nothing about whose life it is of.
func (f *Feed) answered(seq uint64, payload []byte) bool {
	if f.repair.resyncing {
		return f.collected(seq, payload)
	}
	sum := digest(payload)
	return f.history.get(seq) == sum ||
		f.holds(seq) && digest(f.held[seq].payload) == sum ||
		f.bad.open && f.bad.seq == seq && f.bad.sum == sum
}

// missing reports whether batch seq is one that the answer is asked for and has
// not brought.
func (f *Feed) missing(seq uint64) bool {
	if r := &f.repair; r.resyncing {
		return seq >= uint64(len(r.whole)) || r.whole[seq] == nil
	}
	return (!f.has || seq > f.last) && !f.holds(seq)
}

// begins takes the number that an answer begins with. One above what is missing
// means that the publisher has no older ones, unless they only come later; what the
// answer brings is held until its end.
func (f *Feed) begins(seq uint64) {
	r := &f.repair
	if seq <= f.next() {
		return
	}
	if r.above == 0 || r.aboveAt != f.next() {
		r.above, r.aboveAt, r.aboveFrom = 0, f.next(), seq
	}
	r.above++
	r.short = true // and its least number counts at its end
}

// concludeShort believes that the publisher does not have what is missing below
// what is held, once enough answers in a row began above it.
func (f *Feed) concludeShort(now time.Time) {
	r := &f.repair
	if !r.short || r.above < f.limits.AbsenceTries {
		return
	}
	from := min(r.aboveFrom, r.least)
	for held := range f.held {
		from = min(from, held)
	}
	if r.short, r.above = false, 0; from <= f.next() || f.beyond(from) {
		return
	}
	r.hopeless, r.progress = true, true
	f.lose(from-1, fmt.Sprintf("the replay begins at %d", from))
	f.drain(now)
}

// unproven takes a whole answer that does not show whose life it is of. The first
// times it is asked for again (false); then it is taken as it is, and the stream
// stays marked.
func (f *Feed) unproven(now time.Time) bool {
	r := &f.repair
	why := fmt.Sprintf("the replay begins at %d, behind the last admitted batch", r.least)
	if r.least <= f.last {
		// It was lost, or it is undecodable now, which proves nothing.
		why = fmt.Sprintf("the replay's batch %d cannot be compared", f.last)
	}
	tries := f.limits.AbsenceTries
	if f.limits.ReplayTries > 1 {
		tries = max(tries, 2)
	}
	r.answered = true
	if r.tries++; r.tries < tries {
		r.notBefore = now.Add(f.delay(r.tries))
		f.faults.reason = fmt.Sprintf("replay from %s: %s", f.cfg.ReplayEndpoint, why)
		return false
	}
	if f.resume.open {
		f.cold(why, now)
		return false
	}
	r.unverified, r.hopeless = false, false
	r.freshTries()
	f.faults.Raise(faultUnverified, "%s", why)
	f.clearSuspects()
	f.drain(now)
	return true
}

// agrees checks a replayed batch against a held one of the same number: other
// bytes mean that what is held, or what was admitted, is of an older life.
func (f *Feed) agrees(seq uint64, payload []byte, now time.Time) bool {
	b, r := f.held[seq], &f.repair
	if digest(b.payload) == digest(payload) {
		if !b.replayed {
			r.agreed = true
			f.proven()
		}
		return true
	}
	if !f.sink.Decodable(payload) {
		return true
	}
	if f.anchor.any && !b.replayed && len(f.suspects.batches) == 0 {
		f.contradicted(seq, payload, now)
		return false
	}
	f.restartAnswered(now)
	return false
}

// repeated takes a replayed batch whose number was admitted already.
func (f *Feed) repeated(seq uint64, payload []byte, now time.Time) {
	known := f.history.get(seq)
	switch {
	case known == digest(payload):
		f.proven()
		f.repair.agreed = f.repair.agreed || f.anchored(seq)
		if f.repair.unverified {
			f.repair.unverified = false
			f.resumed()
			f.clearSuspects()
			f.drain(now)
		}
	case known != 0 && f.sink.Decodable(payload):
		if f.anchored(seq) {
			f.contradicted(seq, payload, now)
			return
		}
		f.restartAnswered(now)
	}
}

// fill takes a replayed batch that was missing, or lies behind a hole. It returns
// true where the batch is staged.
func (f *Feed) fill(seq uint64, payload []byte, now time.Time) bool {
	if f.has && seq <= f.last {
		return false // it was held, and went on just now
	}
	if seq == f.next() {
		f.unhold(seq)
		if f.stage(seq, payload, true) {
			return true
		}
		f.badAgain(seq, payload, now)
		return false
	}
	// A hole in the answer, which will be asked for again. What lies behind it
	// waits like what came live.
	f.keep(seq, payload, now)
	return false
}

// keep holds a replayed batch, if there is room: half of it is for what comes live.
func (f *Feed) keep(seq uint64, payload []byte, now time.Time) {
	switch {
	case f.holds(seq) || !f.sink.Decodable(payload):
	case len(f.held) < f.limits.HeldBatches/2 && f.heldLen+len(payload) <= f.limits.HeldBytes/2:
		f.hold(seq, payload, true)
	default:
		if !f.repair.unverified && !f.beyond(seq) {
			f.concludeShort(now)
		}
		if seq == f.next() && f.admit(seq, payload, true, now) {
			f.counts.recovered++
			return
		}
		f.repair.more = true
	}
}

// badAgain takes an undecodable payload of the replay at the number that is
// missing: the same bytes a second time mean that there are no others.
func (f *Feed) badAgain(seq uint64, payload []byte, now time.Time) {
	f.counts.malformed++
	if f.bad.open && f.bad.seq == seq && f.bad.sum == digest(payload) {
		f.repair.hopeless = true
		f.lose(seq, "the engine itself keeps it undecodable")
		f.history.note(seq, digest(payload))
		f.repair.progress = true
		f.drain(now)
		return
	}
	f.bad = badBatch{open: true, seq: seq, sum: digest(payload)}
}

// ReplayEnd tells that the answer to request id is complete.
func (f *Feed) ReplayEnd(id uint64, now time.Time) {
	r := &f.repair
	if id == 0 || id != r.id {
		return
	}
	r.id, r.deaf, r.fails = 0, false, 0
	if r.resyncing {
		f.resync(now)
		return
	}
	if r.verifying && f.has && (!r.got || r.most < r.sure) {
		f.unknown(now)
		return
	}
	if r.unverified && r.got && !f.unproven(now) {
		return
	}
	if r.short {
		r.aboveFrom = min(r.aboveFrom, r.least)
	}
	if f.letBeyondGo(now) {
		return
	}
	f.concludeShort(now)
	r.wantJoin, r.unverified, r.catching = r.short && len(f.held) == 0, false, false
	if r.joining && !r.short {
		f.faults.set &^= faultUnverified
	}
	f.drain(now)
	switch {
	case len(f.held) == 0 && !f.bad.open && !r.short && !r.more:
		f.settled(now)
	case r.progress:
		r.notBefore = now
		r.freshTries()
	case r.short:
		r.notBefore = now
	default:
		f.fruitless(now)
	}
}

// unknown takes an answer that does not even bring the last admitted batch, which
// whoever published it would have: it is another publisher, younger than that. One
// that brings those before it speaks for the same publisher, and then the last one
// was a straggler of an older life: so much less likely that more answers must say so.
// Where that batch came live through the connection that still stands, the publisher
// is the same, whatever its replay lacks that has nothing else of what came live.
func (f *Feed) unknown(now time.Time) {
	r := &f.repair
	tries := f.limits.AbsenceTries
	if r.got {
		tries += 2
	}
	if f.anchored(r.sure) && !r.agreed {
		f.lacking(r.sure)
		f.settled(now)
		return
	}
	r.askedAll = r.askedAll || r.start == 0
	if r.garbled {
		// What cannot be read may have been just that batch.
		if !r.unverified || f.unproven(now) {
			f.settled(now)
		}
		return
	}
	if r.absent++; r.absent >= tries && !r.askedAll && len(f.suspects.batches) == 0 {
		// Its numbers alone may be too few for what was asked.
		r.fromZero, r.absent = true, tries-1
	}
	if r.absent < tries {
		r.notBefore = now.Add(f.limits.RetryDelay)
		if !r.unverified {
			r.confirmAt, r.heardAt = r.notBefore, time.Time{}
		}
		return
	}
	f.restartAnswered(now)
}

// fruitless takes a whole answer that brought nothing of what is missing.
func (f *Feed) fruitless(now time.Time) {
	r := &f.repair
	if r.tries++; r.tries < max(f.limits.ReplayTries, f.limits.AbsenceTries) {
		r.notBefore = now.Add(f.delay(r.tries))
		return
	}
	limit := uint64(math.MaxUint64)
	if r.got && f.epoch > 1 && !r.strayed {
		r.strayed = true
		limit = r.top
	}
	f.giveUp("the replay does not have them", limit, now)
	if r.more {
		r.more = false
		f.faults.Raise(faultUnverified, "batches behind %d find no room to wait", f.last)
	}
	f.settled(now)
}

// ReplayFailed tells that the answer to request id stopped before its end, or
// never began.
func (f *Feed) ReplayFailed(id uint64, err error, now time.Time) {
	r := &f.repair
	if id == 0 || id != r.id {
		return
	}
	f.faults.reason = fmt.Sprintf("replay from %s: %v", f.cfg.ReplayEndpoint, err)
	wasResync := r.resyncing
	if r.short {
		r.aboveFrom = min(r.aboveFrom, r.least)
	}
	f.dropBeyond() // it ends unproven
	r.cancel()
	if wasResync {
		r.resyncAt = now.Add(f.limits.ResyncDelay)
		f.drain(now)
		return
	}
	if r.progress || !f.repairing() {
		r.notBefore = now.Add(f.limits.RetryDelay)
		r.freshTries()
		f.askAgain(now)
		return
	}
	limit := f.limits.ReplayTries
	if r.deaf {
		limit = 1
	}
	if r.fails++; r.fails < limit {
		r.notBefore = now.Add(f.delay(r.fails))
		return
	}
	if f.concludeShort(now); r.progress {
		// It did answer: what lies behind its beginning can still be had.
		r.notBefore = now.Add(f.limits.RetryDelay)
		r.freshTries()
		return
	}
	if f.resume.open && (len(f.suspects.batches) == 0 || r.answered) {
		f.cold(fmt.Sprintf("replay from %s: %v", f.cfg.ReplayEndpoint, err), now)
	}
	if r.wantJoin || r.unverified || r.catching || f.bad.open {
		f.faults.Raise(faultUnverified, "what was missed cannot be learned: replay from %s: %v", f.cfg.ReplayEndpoint, err)
	}
	r.deaf, r.wantJoin, r.unverified, r.catching, r.more = !r.got, false, false, false, false
	if len(f.suspects.batches) > 0 && !r.answered {
		f.believe(now)
		return
	}
	f.clearSuspects()
	f.giveUp("the replay does not answer", math.MaxUint64, now)
	f.settled(now)
}

// delay is the pause after so many tries.
func (f *Feed) delay(tries int) time.Duration {
	d := f.limits.RetryDelay << min(max(tries-1, 0), 16)
	return min(d, maxRetryDelay)
}

// settled closes a repair: nothing more is missing that can be had now. What was
// given up may still be had later, by a replay from 0.
func (f *Feed) settled(now time.Time) {
	r := &f.repair
	r.notBefore = now
	r.freshTries()
	r.resyncAt = time.Time{}
	f.askAgain(now)
	if f.faults.set&(faultLost|faultUnverified|faultForeign) != 0 && !r.hopeless {
		r.resyncAt = now.Add(f.limits.ResyncDelay)
	}
	if f.faults.set == 0 {
		f.faults.reason = ""
	}
}
