// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"kindex/internal/kv"
	commonpb "kindex/proto/peer/common"
)

// pool is a subscriber that pools ranks, as the peer's gateway does: copies by
// engine hash, all gone at each clear and at each chunk of index 0.
type pool struct {
	copies  map[int64]int
	chunks  []*commonpb.KvSnapshotChunk
	clears  int
	batches int // that are no chunks
	last    map[int32]uint64
}

func newPool() *pool { return &pool{copies: map[int64]int{}, last: map[int32]uint64{}} }

func (p *pool) take(t *testing.T, raw []byte) {
	t.Helper()
	var b commonpb.KvEventBatch
	if err := proto.Unmarshal(raw, &b); err != nil {
		t.Fatal(err)
	}
	if c := b.GetSnapshot(); c != nil {
		if p.batches > 0 {
			t.Errorf("chunk %d comes after a batch", c.GetIndex())
		}
		if c.GetIndex() == 0 {
			clear(p.copies)
		}
		p.chunks = append(p.chunks, c)
	} else {
		p.batches++
		if seq, had := p.last[b.GetDpRank()]; had && b.GetSequenceNumber() != seq+1 {
			t.Errorf("rank %d: batch %d after %d", b.GetDpRank(), b.GetSequenceNumber(), seq)
		}
	}
	p.last[b.GetDpRank()] = b.GetSequenceNumber()
	for _, e := range b.GetEvents() {
		switch {
		case e.GetCleared() != nil:
			clear(p.copies)
			p.clears++
		case e.GetStored() != nil:
			for _, blk := range e.GetStored().GetBlocks() {
				p.copies[blk.GetBlockHash()]++
			}
		case e.GetRemoved() != nil:
			for _, h := range e.GetRemoved().GetBlockHashes() {
				if p.copies[h]--; p.copies[h] == 0 {
					delete(p.copies, h)
				}
			}
		}
	}
}

// drain takes what there is and returns why there will be no more, if so.
func (p *pool) drain(t *testing.T, s *Subscription) error {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		it, err := s.Next(ctx)
		cancel()
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return nil
		case err != nil:
			return err
		}
		switch it.Kind {
		case ItemChunk:
			p.take(t, append(append([]byte(nil), it.Chunk.Head...), it.Chunk.Body...))
		case ItemBatches:
			for _, b := range it.Batches {
				p.take(t, b.Body)
			}
		default:
		}
	}
}

// holds checks that exactly the blocks from each first to its last are held.
func (p *pool) holds(t *testing.T, what string, runs ...[2]int64) {
	t.Helper()
	n := 0
	for _, run := range runs {
		for h := run[0]; h <= run[1]; h++ {
			n++
			if p.copies[h] != 1 {
				t.Errorf("%s: block %d in %d copies, want 1", what, h, p.copies[h])
			}
		}
	}
	if len(p.copies) != n {
		t.Errorf("%s: %d blocks, want %d", what, len(p.copies), n)
	}
}

var pooled = SubscribeRequest{Form: FormPeer, Rules: RulesPeer, Pooled: true}

// feedRun publishes batches of one block each, called from base on by their number.
func feedRun(p *publisher, base, from, to uint64) {
	for q := from; q <= to; q++ {
		parent := base + q - 1
		if q == 0 {
			parent = 0
		}
		p.publish(q, payload(float64(q), storeOf(parent, base+q)))
	}
}

// A subscriber that pools ranks is told all ranks' snapshots as one, with one
// clear, before all else: rolled histories, whole ones, a rank without anything.
func TestPooledSnapshots(t *testing.T) {
	e, ps := openTest(t, 3, func(c *EngineConfig) { c.HistoryBatches = 10 })
	for _, p := range ps {
		p.connect()
	}
	feedRun(ps[0], 1_000, 0, 40) // rolled
	feedRun(ps[2], 5_000, 0, 4)  // whole
	pl := newPool()
	s := subscribe(t, e, pooled)
	if err := pl.drain(t, s); err != nil {
		t.Fatal(err)
	}
	pl.holds(t, "snapshots", [2]int64{1_000, 1_040}, [2]int64{5_000, 5_004})
	if pl.clears != 1 || pl.batches != 0 || len(pl.chunks) < 2 {
		t.Errorf("%d clears, %d chunks, %d batches, want 1, one or more for each of two ranks, 0", pl.clears, len(pl.chunks), pl.batches)
	}
	for i, c := range pl.chunks {
		if int(c.GetIndex()) != i || int(c.GetCount()) != len(pl.chunks) || c.GetBlocks() != 46 {
			t.Errorf("chunk %d says that it is %d of %d with %d blocks", i, c.GetIndex(), c.GetCount(), c.GetBlocks())
		}
	}
	feedRun(ps[0], 1_000, 41, 42)
	feedRun(ps[1], 3_000, 0, 1)
	feedRun(ps[2], 5_000, 5, 6)
	ps[0].publish(43, payload(43, removal(1_042)))
	if err := pl.drain(t, s); err != nil {
		t.Fatal(err)
	}
	pl.holds(t, "live", [2]int64{1_000, 1_041}, [2]int64{3_000, 3_001}, [2]int64{5_000, 5_006})
}

// A cursor of rank 0 is good where no other rank has anything, and no good else.
func TestPooledCursor(t *testing.T) {
	e, ps := openTest(t, 2, nil)
	ps[0].connect()
	ps[1].connect()
	feedRun(ps[0], 1_000, 0, 9)
	at := pooled
	at.Cursors = []Cursor{{Sequence: 4}}
	pl := newPool()
	if err := pl.drain(t, subscribe(t, e, at)); err != nil {
		t.Fatal(err)
	}
	pl.holds(t, "after the cursor", [2]int64{1_005, 1_009})
	feedRun(ps[1], 3_000, 0, 0)
	if _, err := e.Subscribe(at); endReason(t, err) != EndOutOfRange {
		t.Errorf("another rank has something: %v, want out of range", err)
	}
	at.Pooled = false
	if _, err := e.Subscribe(at); err != nil {
		t.Errorf("a subscriber that keeps ranks apart: %v", err)
	}
}

// A clear of one rank ends the subscription, since it cost the others' content; the
// next one has it all. Alone a clear ends nothing.
func TestPooledClear(t *testing.T) {
	e, ps := openTest(t, 2, nil)
	ps[0].connect()
	ps[1].connect()
	feedRun(ps[0], 1_000, 0, 3)
	pl := newPool()
	s := subscribe(t, e, pooled)
	if err := pl.drain(t, s); err != nil {
		t.Fatal(err)
	}
	ps[0].publish(4, payload(4, clearAll(), storeOf(0, 1_500)))
	if err := pl.drain(t, s); err != nil {
		t.Fatalf("the only rank that was told of is cleared: %v", err)
	}
	pl.holds(t, "one rank, cleared", [2]int64{1_500, 1_500})
	feedRun(ps[1], 3_000, 0, 2)
	if err := pl.drain(t, s); err != nil {
		t.Fatal(err)
	}
	ps[0].publish(5, payload(5, clearAll(), storeOf(0, 1_600)))
	ps[0].publish(6, payload(6, storeOf(1_600, 1_601)))
	if err := pl.drain(t, s); endReason(t, err) != EndDataLoss {
		t.Fatalf("one of two ranks is cleared: %v, want data loss", err)
	}
	if pl.last[0] != 5 {
		t.Errorf("told up to %d, want 5, the clear itself", pl.last[0])
	}
	pl = newPool()
	if err := pl.drain(t, subscribe(t, e, pooled)); err != nil {
		t.Fatal(err)
	}
	pl.holds(t, "anew", [2]int64{1_600, 1_601}, [2]int64{3_000, 3_002})
}

// What comes while the snapshots are told comes after them; a restart ends it.
func TestPooledMeanwhile(t *testing.T) {
	e, ps := openTest(t, 2, nil)
	ps[0].connect()
	ps[1].connect()
	feedRun(ps[0], 1_000, 0, 3)
	feedRun(ps[1], 3_000, 0, 3)
	s := subscribe(t, e, pooled)
	pl := newPool()
	it, err := s.Next(t.Context())
	if err != nil || it.Kind != ItemChunk {
		t.Fatalf("first item: %+v, %v, want a chunk", it, err)
	}
	pl.take(t, append(append([]byte(nil), it.Chunk.Head...), it.Chunk.Body...))
	feedRun(ps[0], 1_000, 4, 5)
	feedRun(ps[1], 3_000, 4, 5)
	if err := pl.drain(t, s); err != nil {
		t.Fatal(err)
	}
	pl.holds(t, "meanwhile", [2]int64{1_000, 1_005}, [2]int64{3_000, 3_005})

	s = subscribe(t, e, pooled)
	if it, err = s.Next(t.Context()); err != nil || it.Kind != ItemChunk {
		t.Fatalf("first item: %+v, %v, want a chunk", it, err)
	}
	ps[1].kept = nil
	ps[1].publish(0, payload(100, clearAll()))
	ps[1].publish(1, payload(101, storeOf(0, 3_500)))
	if err := newPool().drain(t, s); endReason(t, err) != EndDataLoss {
		t.Errorf("a restart between two snapshots: %v, want data loss", err)
	}
}

// removal announces that one copy of each block is gone.
func removal(blocks ...uint64) kv.Event {
	ev := kv.Event{Kind: kv.KindRemoved, Medium: "GPU", HasGroup: true}
	for _, b := range blocks {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(b))
	}
	return ev
}
