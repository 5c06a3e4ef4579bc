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

// A batch is admitted in three steps. stage decodes and normalises it into a flat
// list of operations: nothing of the index is touched, and a payload that is no
// batch ends here. commit applies the list within one turn of the shard. admitted
// moves the cursor. A [Burst] runs stage and admitted on a lane and commit in the
// shard's turn; everybody else calls admit, which does all three.

// opKind is what an op does.
type opKind uint8

const (
	opStore opKind = iota
	opRemove
	opClear
	opBlockSize // the event's block size is not the registered one
)

// op is one step of a staged batch. Its order among the others counts: what the
// index refuses, or the engine clears, changes where the stream stands.
type op struct {
	kind opKind
	at   int // of the normaliser's stores or removes; of opBlockSize, the size
}

// staged is the batch between stage and admitted.
type staged struct {
	seq       uint64
	sum       uint64 // of its payload
	timestamp float64
	replayed  bool
	ops       []op
}

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
	if !f.stage(seq, payload) {
		return false
	}
	f.commitNow()
	f.admitted(now)
	return true
}

// stage makes ready the batch that continues the stream. It returns false, with
// nothing done, when payload is no batch.
func (f *Feed) stage(seq uint64, payload []byte) bool {
	b := &f.batch
	if f.dec.Decode(payload, b) != nil {
		return false
	}
	f.staged = staged{seq: seq, sum: digest(payload), timestamp: b.Timestamp, ops: f.staged.ops[:0]}
	f.counts.batches++
	f.counts.events += uint64(len(b.Events))
	if b.HasRank && b.Rank != f.cfg.Rank {
		f.counts.rankMismatches++
	}
	f.norm.begin()
	for i := range b.Events {
		ev := &b.Events[i]
		switch ev.Kind {
		case kv.KindStored:
			f.stageStore(ev)
		case kv.KindRemoved:
			if d := f.norm.removed(ev); d != dropNone {
				f.dropped[d]++
			} else {
				f.then(opRemove, len(f.norm.removes)-1)
			}
		case kv.KindCleared:
			f.then(opClear, 0)
		}
	}
	return true
}

func (f *Feed) stageStore(ev *kv.Event) {
	stores, d := f.norm.stored(ev)
	if d != dropNone {
		f.dropped[d]++
		if d == dropBlockSize {
			f.then(opBlockSize, ev.BlockSize)
		}
		return
	}
	for i := range stores {
		f.then(opStore, len(f.norm.stores)-len(stores)+i)
	}
}

func (f *Feed) then(kind opKind, at int) { f.staged.ops = append(f.staged.ops, op{kind, at}) }

// commitNow is commit in the shard's turn, waited for.
func (f *Feed) commitNow() { f.inTurn(f.commit) }

func (f *Feed) inTurn(fn func()) {
	_, turn := f.idx.of(f.h)
	turn.Take()
	defer turn.Give()
	fn()
}

// commit applies the staged batch. The caller has the turn of the shard.
func (f *Feed) commit() {
	idx, _ := f.idx.of(f.h)
	for _, o := range f.staged.ops {
		switch o.kind {
		case opStore:
			if err := idx.Store(f.h, &f.norm.stores[o.at]); err != nil {
				f.refused(err)
			}
		case opRemove:
			if err := idx.Remove(f.h, &f.norm.removes[o.at]); err != nil {
				f.refused(err)
			}
		case opClear:
			f.clear(idx)
		case opBlockSize:
			f.fail(faultBlockSize, "the engine's block size is %d, registered was %d", o.at, f.cfg.BlockSize)
		}
	}
	f.refreshStats(idx)
}

// admitted moves the cursor behind the batch committed.
func (f *Feed) admitted(now time.Time) {
	f.has, f.last = true, f.staged.seq
	f.seen = max(f.seen, f.staged.seq+1)
	f.history.add(f.staged.seq, f.staged.sum)
	f.closeBad()
	f.lastBatch, f.engineTS = now, f.staged.timestamp
}

// clear empties the holder at the engine's word, after which its content is
// known, whatever was missed before.
func (f *Feed) clear(idx shard.Index) {
	if err := idx.Clear(f.h); err != nil {
		f.refused(err)
		return
	}
	f.refreshStats(idx)
	f.faults, f.reason = 0, ""
}

// refused notes that the index did not take an event, which it now lacks.
func (f *Feed) refused(err error) {
	if errors.Is(err, shard.ErrArenaFull) {
		f.dropped[dropArenaFull]++
	}
	f.fail(faultIndex, "the index refused an event: %v", err)
}

// refreshStats reads the holder's counters and notices dropped orphans. The
// caller has the turn of the shard.
func (f *Feed) refreshStats(idx shard.Index) {
	st, err := idx.HolderStats(f.h)
	if err != nil {
		return
	}
	if st.OrphansDropped > f.stats.OrphansDropped {
		f.fail(faultOrphans, "%d blocks whose parent did not come were dropped", st.OrphansDropped)
	}
	f.stats = st
}
