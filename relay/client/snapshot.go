// SPDX-License-Identifier: Apache-2.0

// Before: own.go, peer.go (chunks). After: Handler, by way of rank.go.

package client

import (
	"fmt"
	"time"
)

// snapshot is one that is being received.
type snapshot struct {
	Snapshot
	next, count uint32 // chunks
	digest      digest
}

// chunk is one part of a snapshot, of either contract.
type chunk struct {
	index, count  uint32
	epoch         uint64
	blocks        uint64
	unknownBefore uint64
	any           bool   // there was a batch
	through       uint64 // the last batch taken in, as far as this chunk
	check         uint64
	digest        uint64
	digested      bool // the last chunk carries one
	ops           []Op
}

// chunk hands one chunk on. An error says what is wrong with it; the snapshot is
// void then.
func (r *rank) chunk(c *chunk, now time.Time) error {
	switch {
	case c.count == 0 || c.index >= c.count:
		return fmt.Errorf("chunk %d of %d: there is none", c.index, c.count)
	case c.index == 0:
		if c.blocks > uint64(r.mostBlocks) {
			return fmt.Errorf("a snapshot of %d blocks: at most %d are taken", c.blocks, r.mostBlocks)
		}
		r.beginSnapshot(c)
	case r.snap == nil:
		return fmt.Errorf("chunk %d of %d without those before it", c.index, c.count)
	case c.index != r.snap.next || c.count != r.snap.count || c.epoch != r.snap.Epoch:
		return fmt.Errorf("chunk %d of %d of epoch %d where chunk %d of %d of epoch %d was due",
			c.index, c.count, c.epoch, r.snap.next, r.snap.count, r.snap.Epoch)
	}
	r.heard = now
	s := r.snap
	if c.digested {
		if err := s.digest.apply(c.ops); err != nil {
			return err
		}
	}
	s.next++
	s.Through = c.through
	r.noteOps(c.ops)
	r.h.Chunk(c.ops)
	if s.next < s.count {
		r.tell()
		return nil
	}
	if got := s.digest.book.Sum(); c.digested && got != c.digest {
		return fmt.Errorf("the snapshot's digest is %016x, of what came it is %016x", c.digest, got)
	}
	r.endSnapshot(c, now)
	return nil
}

// beginSnapshot takes back all that was told, for s to take its place.
func (r *rank) beginSnapshot(c *chunk) {
	r.clearState()
	r.beganCold("the server told the rank's whole content anew")
	r.epoch = c.epoch
	r.holds = true
	r.snap = &snapshot{
		Snapshot: Snapshot{Epoch: c.epoch, Through: c.through, Blocks: c.blocks, UnknownBefore: c.unknownBefore},
		count:    c.count,
		digest:   digest{most: r.mostBlocks},
	}
	r.was = false // as after a reset
	r.h.Begin(&r.snap.Snapshot)
	r.tell()
}

func (r *rank) endSnapshot(c *chunk, now time.Time) {
	s := r.snap
	r.snap = nil
	if c.any {
		r.moved(c.epoch, c.through, c.check)
	}
	if s.UnknownBefore > 0 {
		r.missing = fmt.Sprintf("%d batches before the snapshot are unknown", s.UnknownBefore)
	}
	r.content = true
	r.st.snapshots++
	r.st.snapshotBlocks += s.Blocks
	r.st.lastBatch = now
	r.h.End(&s.Snapshot)
}
