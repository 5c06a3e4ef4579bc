// SPDX-License-Identifier: Apache-2.0

// Before: feed.go's inputs from the replay socket. After: apply.go.

package feed

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// maxRetryDelay bounds the doubling of Limits.RetryDelay.
const maxRetryDelay = 5 * time.Second

// repair is what a feed knows of its replay socket, and what it wants of it.
//
// A request starts at the last admitted batch, not behind it: the answer then
// shows by that batch's bytes that the publisher is still the one whose batches
// were admitted.
type repair struct {
	// What is wanted, beside filling the gap below what is held.
	wantJoin   bool      // the history before the first batch was not asked for yet
	unverified bool      // reconnected: is the publisher still the same?
	confirmAt  time.Time // silent since connecting: ask once more then; zero: no need
	resyncAt   time.Time // try to get back what was given up then; zero: no use

	// The request under way; id 0: none.
	id        uint64
	issued    uint64 // requests so far
	start     uint64
	joining   bool // nothing was admitted when it was made
	verifying bool // start is the last admitted batch and must be in the answer
	resyncing bool // the answer is to replace the content as a whole
	got       bool // anything came
	prev      uint64
	progress  bool     // something was admitted
	whole     [][]byte // while resyncing: the batches from 0
	wholeLen  int      // and their bytes

	tries     int       // fruitless requests for what is missing now
	notBefore time.Time // of the next request
	deaf      bool      // the last repair ended without an answer
	hopeless  bool      // no replay can begin at 0 in this epoch
}

// restart forgets what belongs to one life of the publisher.
func (r *repair) restart(canReplay bool) {
	*r = repair{issued: r.issued, deaf: r.deaf, wantJoin: canReplay}
}

// cancel forgets the request under way: what still comes of it is ignored.
func (r *repair) cancel() {
	r.id, r.resyncing, r.whole, r.wholeLen = 0, false, nil, 0
}

// repairing reports whether the stream is not exact and something is done about it.
func (f *Feed) repairing() bool {
	return f.repair.wantJoin || f.repair.unverified || f.repair.resyncing || len(f.held) > 0 || f.bad.open && f.canReplay()
}

// Connected tells that messages published from now on will arrive.
func (f *Feed) Connected(now time.Time) {
	again := f.ever
	f.connected, f.ever, f.failed, f.since, f.why = true, true, false, time.Time{}, ""
	r := &f.repair
	if f.canReplay() {
		r.confirmAt = now.Add(f.limits.ConfirmDelay)
		r.notBefore = now
	} else {
		// Nothing acknowledges a subscription, and what is published before it
		// arrives is missed. With a replay socket that shows; without one the
		// stream is not called active before it must have arrived.
		f.telling = now.Add(f.limits.SubscribeTime)
	}
	switch {
	case !again:
	case f.has && f.canReplay():
		// Batches may have been missed, and the publisher may be another one
		// whose numbers have already passed the old ones. What is held came
		// before, perhaps of the older one; the replay has it, too.
		f.release()
		r.unverified, r.tries = true, 0
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
	f.connected, f.why = false, why
}

// Next must be called after every input, and at the time it returned. It returns
// the replay request to make now, if any (a request supersedes the one before),
// and when to call it again; a zero time means not before the next input.
func (f *Feed) Next(now time.Time) (req ReplayRequest, ask bool, wake time.Time) {
	if !f.connected && !f.failed {
		if f.since.IsZero() {
			f.since = now
		}
		failAt := f.since.Add(f.limits.ConnectPeriod)
		if f.failed = !now.Before(failAt); !f.failed {
			wake = failAt
		}
	}
	if !f.telling.IsZero() {
		if now.Before(f.telling) {
			wake = earlier(wake, f.telling)
		} else {
			f.telling = time.Time{}
		}
	}
	r := &f.repair
	if !f.canReplay() || r.id != 0 {
		return ReplayRequest{}, false, wake
	}
	due, kind := f.wanted()
	if kind == wantNothing {
		return ReplayRequest{}, false, wake
	}
	if now.Before(due) {
		return ReplayRequest{}, false, earlier(wake, due)
	}
	f.begin(kind)
	return ReplayRequest{ID: r.id, Start: r.start}, true, wake
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// want is why a replay is asked for.
type want uint8

const (
	wantNothing want = iota
	wantMissing      // what is missing at the cursor: a join, a gap, a check
	wantConfirm      // whether a silent publisher has said anything since
	wantResync       // everything from 0
)

// wanted returns what to ask for, and from when.
func (f *Feed) wanted() (due time.Time, w want) {
	r := &f.repair
	held := len(f.held) > 0 || f.bad.open
	switch {
	case !f.connected:
		return time.Time{}, wantNothing
	case held, r.wantJoin, r.unverified:
		return r.notBefore, wantMissing
	case !r.resyncAt.IsZero() && (r.confirmAt.IsZero() || r.resyncAt.Before(r.confirmAt)):
		return r.resyncAt, wantResync
	case !r.confirmAt.IsZero():
		return r.confirmAt, wantConfirm
	}
	return time.Time{}, wantNothing
}

// begin opens the next request.
func (f *Feed) begin(kind want) {
	r := &f.repair
	r.issued++
	r.id, r.start = r.issued, 0
	r.got, r.progress, r.prev = false, false, 0
	r.resyncing = kind == wantResync && f.has
	r.joining = !f.has
	r.verifying = f.has && (r.unverified || kind == wantConfirm)
	if f.has && !r.resyncing {
		r.start = f.last
	}
	switch kind {
	case wantConfirm:
		r.confirmAt = time.Time{}
	case wantResync:
		r.resyncAt = time.Time{}
	case wantMissing, wantNothing:
	}
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
	first := !r.got
	if !first && seq <= r.prev {
		if f.answered(seq, payload) {
			f.counts.duplicates++
			return false
		}
		// An answer counts up; one that does not is of two lives.
		f.ReplayFailed(id, fmt.Errorf("batch %d after %d", seq, r.prev), now)
		return false
	}
	r.got, r.prev = true, seq
	switch {
	case r.resyncing:
		f.collect(seq, payload, now)
	case f.has && seq <= f.last:
		f.repeated(seq, payload, now)
	default:
		if r.unverified && !f.unproven(id, fmt.Sprintf("the replay begins at %d, behind the last admitted batch", seq), now) {
			return false
		}
		if seq < f.next() || f.holds(seq) && !f.agrees(seq, payload) {
			return false
		}
		if first && seq > f.next() {
			r.hopeless = true
			f.lose(seq-1, fmt.Sprintf("the replay begins at %d", seq))
			r.progress = true
		}
		return f.fill(seq, payload, now)
	}
	return false
}

// answered reports whether the answer under way has brought just this batch: a
// message delivered twice says nothing about whose life it is of.
func (f *Feed) answered(seq uint64, payload []byte) bool {
	if r := &f.repair; r.resyncing {
		return seq < uint64(len(r.whole)) && bytes.Equal(r.whole[seq], payload)
	}
	sum := digest(payload)
	return f.history.get(seq) == sum ||
		f.holds(seq) && digest(f.held[seq].payload) == sum ||
		f.bad.open && f.bad.seq == seq && f.bad.sum == sum
}

// unproven takes an answer that cannot show whose life it is of. The first time
// it is asked for again (false); then it is taken as it is, and the stream stays
// marked.
func (f *Feed) unproven(id uint64, why string, now time.Time) bool {
	r := &f.repair
	if r.tries == 0 && f.limits.ReplayTries > 1 {
		f.ReplayFailed(id, errors.New(why), now)
		return false
	}
	r.unverified, r.hopeless = false, false
	f.faults.Raise(faultUnverified, "%s", why)
	f.drain(now)
	return true
}

// agrees checks a replayed batch against a held one of the same number: other
// bytes mean that what is held, or what was admitted, is of an older life.
func (f *Feed) agrees(seq uint64, payload []byte) bool {
	if digest(f.held[seq].payload) == digest(payload) || !f.sink.Decodable(payload) {
		return true
	}
	f.restart()
	return false
}

// repeated takes a replayed batch whose number was admitted already.
func (f *Feed) repeated(seq uint64, payload []byte, now time.Time) {
	known := f.history.get(seq)
	switch {
	case known == digest(payload):
		if seq == f.last && f.repair.unverified {
			f.repair.unverified = false
			f.drain(now)
		}
	case known != 0 && f.sink.Decodable(payload):
		f.restart()
	case seq == f.last && f.repair.unverified:
		// The last number was lost, or it is undecodable now, which proves
		// nothing.
		f.unproven(f.repair.id, fmt.Sprintf("the replay's batch %d cannot be compared", seq), now)
	}
}

// fill takes a replayed batch that was missing, or lies behind a hole. It returns
// true where the batch is staged.
func (f *Feed) fill(seq uint64, payload []byte, now time.Time) bool {
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
	if f.sink.Decodable(payload) && len(f.held) < f.limits.HeldBatches && f.heldLen+len(payload) <= f.limits.HeldBytes {
		f.hold(seq, payload, true)
	}
	return false
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
	r.id, r.deaf = 0, false
	if r.resyncing {
		f.resync(now)
		return
	}
	if r.verifying && !r.got && f.has {
		// The publisher does not know the last admitted batch: it is another
		// one, younger than that.
		f.restart()
		r.notBefore = now
		return
	}
	r.wantJoin, r.unverified = false, false
	if r.joining {
		f.faults.set &^= faultUnverified
	}
	f.drain(now)
	if len(f.held) == 0 && !f.bad.open {
		f.settled(now)
		return
	}
	if r.progress {
		r.tries, r.notBefore = 0, now
		return
	}
	if r.tries++; r.tries < f.limits.ReplayTries {
		r.notBefore = now.Add(f.delay())
		return
	}
	f.giveUp("the replay does not have them", now)
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
	r.cancel()
	if wasResync {
		r.resyncAt = now.Add(f.limits.ResyncDelay)
		f.drain(now)
		return
	}
	if r.progress || !f.repairing() {
		r.tries, r.notBefore = 0, now.Add(f.limits.RetryDelay)
		return
	}
	limit := f.limits.ReplayTries
	if r.deaf {
		limit = 1
	}
	if r.tries++; r.tries < limit {
		r.notBefore = now.Add(f.delay())
		return
	}
	if r.wantJoin || r.unverified || f.bad.open {
		f.faults.Raise(faultUnverified, "what was missed cannot be learned: replay from %s: %v", f.cfg.ReplayEndpoint, err)
	}
	r.deaf, r.wantJoin, r.unverified = true, false, false
	f.giveUp("the replay does not answer", now)
	f.settled(now)
}

// delay is the pause before the next try.
func (f *Feed) delay() time.Duration {
	d := f.limits.RetryDelay << min(max(f.repair.tries-1, 0), 16)
	return min(d, maxRetryDelay)
}

// settled closes a repair: nothing more is missing that can be had now. What was
// given up may still be had later, by a replay from 0.
func (f *Feed) settled(now time.Time) {
	r := &f.repair
	r.tries, r.notBefore = 0, now
	r.resyncAt = time.Time{}
	if f.faults.set&(faultLost|faultUnverified) != 0 && !r.hopeless {
		r.resyncAt = now.Add(f.limits.ResyncDelay)
	}
	if f.faults.set == 0 {
		f.faults.reason = ""
	}
}

// collect keeps one batch of a replay that is to replace the content.
func (f *Feed) collect(seq uint64, payload []byte, now time.Time) {
	r := &f.repair
	if known := f.history.get(seq); known != 0 && known != digest(payload) && f.sink.Decodable(payload) {
		f.restart()
		return
	}
	switch {
	case seq != uint64(len(r.whole)):
		if len(r.whole) == 0 {
			r.hopeless = true // what the engine keeps begins later
		}
	case len(r.whole) >= f.limits.HeldBatches, r.wholeLen+len(payload) > f.limits.HeldBytes:
		r.hopeless = true
	default:
		r.whole = append(r.whole, payload)
		r.wholeLen += len(payload)
		return
	}
	r.cancel()
	f.drain(now)
	f.settled(now)
}

// resync replaces the content by the collected history, if that is whole and of
// this life.
func (f *Feed) resync(now time.Time) {
	r := &f.repair
	whole := r.whole
	r.cancel()
	n := uint64(len(whole))
	if n <= f.last {
		// It does not know the last admitted batch: another, younger life.
		f.restart()
		r.notBefore = now
		return
	}
	for seq := range n {
		if f.history.get(seq) == 0 {
			f.counts.recovered++
		}
	}
	held, heldLen := f.held, f.heldLen
	f.held = map[uint64]heldBatch{}
	f.forget(ForgetResync)
	f.held, f.heldLen = held, heldLen
	f.faults.Heal()
	for seq, payload := range whole {
		f.unhold(uint64(seq))
		if !f.admit(uint64(seq), payload, true, now) {
			r.hopeless = true
			f.lose(uint64(seq), "the engine itself keeps it undecodable")
			f.history.note(uint64(seq), digest(payload))
		}
	}
	f.drain(now)
	f.settled(now)
}
