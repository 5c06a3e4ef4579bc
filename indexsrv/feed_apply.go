// SPDX-License-Identifier: Apache-2.0

// Before: feed_admit.go and feed_repair.go. After: Writer (the index).

package indexsrv

import (
	"errors"
	"time"

	"kindex/internal/kv"
	"kindex/relay/wire"
	"kindex/shard"
)

// decodable reports whether payload is a batch, without counting what it holds.
func (f *Feed) decodable(payload []byte) bool {
	if f.probe == nil {
		f.probe = new(wire.Decoder)
	}
	return f.probe.Decode(payload, &f.batch) == nil
}

// admit applies the batch that continues the stream and moves the cursor. It
// returns false, with nothing done, when payload is no batch.
func (f *Feed) admit(seq uint64, payload []byte, now time.Time) bool {
	if f.dec.Decode(payload, &f.batch) != nil {
		return false
	}
	f.apply(&f.batch)
	f.has, f.last = true, seq
	f.seen = max(f.seen, seq+1)
	f.history.add(seq, digest(payload))
	f.closeBad()
	f.lastBatch, f.engineTS = now, f.batch.Timestamp
	return true
}

func (f *Feed) apply(b *kv.Batch) {
	f.counts.batches++
	f.counts.events += uint64(len(b.Events))
	if b.HasRank && b.Rank != f.cfg.Rank {
		f.counts.rankMismatches++
	}
	for i := range b.Events {
		ev := &b.Events[i]
		switch ev.Kind {
		case kv.KindStored:
			f.store(ev)
		case kv.KindRemoved:
			if d := f.norm.removed(ev, &f.rm); d != dropNone {
				f.dropped[d]++
			} else if err := f.idx.Remove(f.h, &f.rm); err != nil {
				f.refused(err)
			}
		case kv.KindCleared:
			f.cleared()
		}
	}
	f.refreshStats()
}

func (f *Feed) store(ev *kv.Event) {
	stores, d := f.norm.stored(ev)
	if d != dropNone {
		f.dropped[d]++
		if d == dropBlockSize {
			f.fail(faultBlockSize, "the engine's block size is %d, registered was %d", ev.BlockSize, f.cfg.BlockSize)
		}
		return
	}
	for i := range stores {
		if err := f.idx.Store(f.h, &stores[i]); err != nil {
			f.refused(err)
		}
	}
}

// cleared empties the holder at the engine's word, after which its content is
// known, whatever was missed before.
func (f *Feed) cleared() {
	if err := f.idx.Clear(f.h); err != nil {
		f.refused(err)
		return
	}
	f.refreshStats()
	f.faults, f.reason = 0, ""
}

// refused notes that the index did not take an event, which it now lacks.
func (f *Feed) refused(err error) {
	if errors.Is(err, shard.ErrArenaFull) {
		f.dropped[dropArenaFull]++
	}
	f.fail(faultIndex, "the index refused an event: %v", err)
}

// refreshStats reads the holder's counters and notices dropped orphans.
func (f *Feed) refreshStats() {
	st, err := f.idx.HolderStats(f.h)
	if err != nil {
		return
	}
	if st.OrphansDropped > f.stats.OrphansDropped {
		f.fail(faultOrphans, "%d blocks whose parent did not come were dropped", st.OrphansDropped)
	}
	f.stats = st
}
