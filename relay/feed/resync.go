// SPDX-License-Identifier: Apache-2.0

// Before: repair.go, where an answer is to replace the content. After: apply.go.

package feed

import (
	"bytes"
	"time"
)

// collect keeps one batch of a replay that is to replace the content; first says
// that it is the answer's first.
func (f *Feed) collect(seq uint64, payload []byte, first bool, now time.Time) {
	r := &f.repair
	r.agreed = r.agreed || f.cameLive(seq, payload)
	if known := f.history.get(seq); known != 0 && known != digest(payload) && f.sink.Decodable(payload) {
		if f.anchored(seq) {
			f.contradicted(seq, payload, now)
			return
		}
		f.restartAnswered(now)
		return
	}
	switch {
	case first && seq > 0:
		// What the engine keeps begins later.
		r.partial++
		r.hopeless = r.partial >= f.limits.AbsenceTries
	case seq >= uint64(f.limits.HeldBatches), r.wholeLen+len(payload) > f.limits.HeldBytes:
		r.hopeless = true
	default:
		for uint64(len(r.whole)) <= seq {
			r.whole = append(r.whole, nil)
		}
		if r.whole[seq] = payload; payload == nil {
			r.whole[seq] = []byte{}
		}
		r.wholeLen += len(payload)
		return
	}
	f.noResync(now)
}

// collected reports whether batch seq was collected with just these bytes.
func (f *Feed) collected(seq uint64, payload []byte) bool {
	r := &f.repair
	return seq < uint64(len(r.whole)) && r.whole[seq] != nil && bytes.Equal(r.whole[seq], payload)
}

// noResync ends a replay that cannot replace the content; what waited goes on.
func (f *Feed) noResync(now time.Time) {
	f.repair.cancel()
	f.drain(now)
	f.settled(now)
}

// resync replaces the content by the collected history, if that is whole and of
// this life.
func (f *Feed) resync(now time.Time) {
	r := &f.repair
	whole := r.whole
	n := uint64(len(whole))
	if r.foreign {
		r.partial = 0
		f.noResync(now)
		return
	}
	if n <= f.last {
		if r.partial++; r.partial < f.limits.AbsenceTries {
			f.noResync(now)
			return
		}
		// It does not know the last admitted batch: another, younger life, unless
		// that came live through the connection that still stands.
		if f.anchored(f.last) && !r.agreed {
			f.lacking(f.last)
			f.noResync(now)
			return
		}
		r.cancel()
		f.restartAnswered(now)
		return
	}
	for _, payload := range whole {
		if payload == nil {
			f.noResync(now)
			return
		}
	}
	r.cancel()
	r.partial = 0
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
