// SPDX-License-Identifier: Apache-2.0

// Before: admit.go and repair.go. After: a Sink.

package feed

import "time"

// A batch is admitted in three steps. stage has the sink make it ready: a payload
// that is no batch ends here. commit has it applied. admitted moves the cursor. A
// [Burst] runs stage and admitted on a lane and commit in the shard's turn;
// everybody else calls admit, which does all three.

// admit applies the batch that continues the stream and moves the cursor. It
// returns false, with nothing done, when payload is no batch.
func (f *Feed) admit(seq uint64, payload []byte, replayed bool, now time.Time) bool {
	if !f.stage(seq, payload, replayed) {
		return false
	}
	f.commitNow()
	f.admitted(now)
	return true
}

// stage makes ready the batch that continues the stream. It returns false, with
// nothing done, when payload is no batch.
func (f *Feed) stage(seq uint64, payload []byte, replayed bool) bool {
	f.staged = Batch{Seq: seq, Payload: payload, Sum: digest(payload), Replayed: replayed}
	if !f.sink.Stage(&f.staged) {
		f.staged.Payload = nil
		return false
	}
	f.counts.batches++
	return true
}

// commitNow is commit in the sink's turn, waited for.
func (f *Feed) commitNow() { f.inTurn(f.apply) }

func (f *Feed) inTurn(fn func()) {
	if t, ok := f.sink.(Turner); ok {
		t.InTurn(fn)
		return
	}
	fn()
}

// commit applies the staged batch. The caller has the sink's turn.
func (f *Feed) commit() { f.sink.Commit(&f.faults) }

// admitted moves the cursor behind the batch committed.
func (f *Feed) admitted(now time.Time) {
	f.staged.Payload = nil
	f.has, f.last = true, f.staged.Seq
	f.seen = max(f.seen, f.staged.Seq+1)
	f.history.add(f.staged.Seq, f.staged.Sum)
	if !f.staged.Replayed {
		f.anchor.admitted(f.staged.Seq)
	}
	f.closeBad()
	f.lastBatch = now
}
