// SPDX-License-Identifier: Apache-2.0

// Before: admit.go. After: repair.go, whose answers decide.

package feed

import "time"

// maxSuspects bounds the suspects: so many batches under passed numbers are no
// stragglers. Chosen, not measured.
const maxSuspects = 256

// suspects are live batches whose numbers were passed without anybody having
// seen their bytes, because they were given up as lost or are older than the
// history. Each is either a straggler or the first that is heard of another life.
// The publisher is asked whether it is still the one whose batches were admitted;
// until it is known the stream waits.
type suspects struct {
	batches []suspect
	bytes   int
}

type suspect struct {
	seq     uint64
	payload []byte
}

// suspicious reports whether a decodable live batch under a passed number, whose
// bytes are unknown, may be a straggler and the publisher can be asked. The
// counter's first two numbers are a restart on every wire.
func (f *Feed) suspicious(seq uint64) bool {
	return seq > 1 && f.canReplay() && f.connected && !f.repair.deaf && len(f.suspects.batches) < maxSuspects
}

// suspect keeps a batch until it is known whose it is.
func (f *Feed) suspect(seq uint64, payload []byte, now time.Time) {
	for _, s := range f.suspects.batches {
		if s.seq == seq && digest(s.payload) == digest(payload) {
			f.counts.duplicates++
			return
		}
	}
	if len(f.suspects.batches) == 0 {
		// Only what is asked from now on can tell.
		f.dropBeyond()
		f.repair.cancel()
		f.repair.unverified, f.repair.absent, f.repair.answered = true, 0, false
		f.repair.freshTries()
		f.repair.notBefore = now
	}
	f.suspects.batches = append(f.suspects.batches, suspect{seq, payload})
	f.suspects.bytes += len(payload)
	if f.suspects.bytes > f.limits.HeldBytes {
		f.believe(now)
	}
}

// clearSuspects takes the suspects for stragglers: the publisher is the same.
func (f *Feed) clearSuspects() {
	f.counts.duplicates += uint64(len(f.suspects.batches))
	f.suspects = suspects{}
}

// believe takes the suspects, if there are any, for what they say: nobody answers
// who could tell that they are old.
func (f *Feed) believe(now time.Time) {
	s := f.suspects.batches
	if len(s) == 0 {
		return
	}
	f.suspects = suspects{}
	f.restart()
	for _, b := range s {
		f.Live(b.seq, b.payload, now)
	}
}
