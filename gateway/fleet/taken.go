// SPDX-License-Identifier: Apache-2.0

// Before: leases that are taken, and readings of an engine's load. After: decisions,
// which add what a reading cannot know yet.

package fleet

import "sync/atomic"

// A reading tells of the requests that the engine had when it was read. What was sent
// to the engine since is not in it, and at many requests a second that is most of what
// decides between two workers. So a holder remembers for a while how many leases had
// been taken when; a reading is given the number that belongs to its own time, not to
// that of its receipt.

const (
	takeFine   = 24 // a tick is 2^24 ns, 17 ms
	takeCoarse = 28 // or 268 ms
	takeTicks  = 64 // that are remembered of each: 1.07 s and 17 s
)

// history is what had been taken when: leases, and the tokens that they were to prefill.
type history struct{ taken, prefill takes }

// takes are, for each tick in which a lease was taken, a sum of all leases before: its
// low 32 bits, under those of the tick and one more.
//
// Concurrency: any goroutine.
type takes struct{ fine, coarse [takeTicks]atomic.Uint64 }

// note remembers the sum before the lease that was taken at the time at. Of a tick's
// second lease and later ones it costs two loads.
func (t *takes) note(at int64, before uint64) {
	noteTick(&t.fine, uint64(at)>>takeFine+1, before)
	noteTick(&t.coarse, uint64(at)>>takeCoarse+1, before)
}

func noteTick(slots *[takeTicks]atomic.Uint64, tick, before uint64) {
	slot := &slots[tick%takeTicks]
	now := tick<<32 | before&(1<<32-1)
	for {
		old := slot.Load()
		// The first of a tick counts; those of a later tick stay.
		if old>>32 > tick || old>>32 == tick && int32(uint32(old)-uint32(now)) <= 0 || slot.CompareAndSwap(old, now) {
			return
		}
	}
}

// sumAt returns the sum before the oldest slot that is not before tick, where it is all
// now; ok is false where that is too long ago to be remembered exactly.
func sumAt(slots *[takeTicks]atomic.Uint64, tick, now, all uint64) (n uint64, ok bool) {
	oldest := uint64(0)
	for i := range slots {
		if s := slots[i].Load(); s>>32 >= tick && (oldest == 0 || s < oldest) {
			oldest = s
		}
	}
	if oldest == 0 {
		return all, true // nothing since
	}
	back := (all - oldest) & (1<<32 - 1)
	return all - min(back, all), tick+takeTicks > now
}

// at returns the sum at the time at, where it is all now.
func (t *takes) at(at int64, all uint64) uint64 {
	when, now := uint64(max(at, 0)), uint64(Now())
	if n, ok := sumAt(&t.fine, when>>takeFine+1, now>>takeFine+1, all); ok {
		return n
	}
	n, _ := sumAt(&t.coarse, when>>takeCoarse+1, now>>takeCoarse+1, all)
	return n
}

// StampAt notes in r what leases had been taken on h at the time at, by [Now]. Those of
// the same tick count as later, for a lease is taken some time before the engine counts
// its request: ticks are 17 ms for a second, 268 ms for 17 s. Of an older time it is
// what had been taken 17 s ago.
func (h *Holder) StampAt(r *Reading, at int64) {
	// The sums before the slots: what comes meanwhile is later.
	prefill, taken := uint64(h.prefill.Load()), h.taken.Load()
	r.TakenPrefill = int64(h.history.prefill.at(at, prefill))
	r.Taken = h.history.taken.at(at, taken)
}

// Held returns how many blocks h's cache holds by the index; known is false while the
// index does not say.
func (h *Holder) Held() (blocks int64, known bool) {
	n := h.held.Load()
	return max(n-1, 0), n > 0
}

// SetHeld is the index's, about once a second; negative: not known.
func (h *Holder) SetHeld(blocks int64) { h.held.Store(max(blocks+1, 0)) }
