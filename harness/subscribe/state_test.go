// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"testing"

	"kindex/harness/publish"
	"kindex/internal/kv"
)

// known is a truth of lives and their batches.
type known [][]uint64

func (k known) Life() int { return len(k) - 1 }

func (k known) Record(_, life int, seq uint64) (publish.Record, bool) {
	if life >= len(k) || seq >= uint64(len(k[life])) {
		return publish.Record{}, false
	}
	return publish.Record{Truth: k[life][seq]}, true
}

func root(e kv.EngineHash) []publish.Event {
	return []publish.Event{{Kind: kv.KindStored, Seed: 1, Engines: []kv.EngineHash{e}, Contents: []kv.ContentHash{kv.ContentHash(e)}}}
}

// sums are those of one root after the other.
func sums(names ...kv.EngineHash) []uint64 {
	var c publish.Content
	var out []uint64
	for _, e := range names {
		c.Apply(&root(e)[0])
		out = append(out, c.Sum())
	}
	return out
}

func TestState(t *testing.T) {
	truth := known{sums(1, 2, 3, 4), sums(5, 6)}
	s := newState(truth)
	s.batch(0, 0, root(1))
	s.batch(0, 1, root(2))
	s.batch(0, 1, root(2)) // known already
	want := Counts{Batches: 2, Stale: 1, Checked: 2}
	if got := s.Counts(); got != want || !s.Rank(0).Exact || s.Rank(0).Seq != 1 || s.Rank(0).Life != 0 {
		t.Errorf("in order: %+v, want %+v, at %+v", got, want, s.Rank(0))
	}

	s.batch(0, 3, root(4)) // 2 is missing
	want.Batches, want.Gaps, want.Wrong, want.Checked = 3, 1, 1, 3
	if got := s.Counts(); got != want || s.Rank(0).Exact || len(s.Faults()) != 2 {
		t.Errorf("behind a gap: %+v, want %+v: %q", got, want, s.Faults())
	}

	s.chunk(0, 0, 2, 4, 3, true, append(root(1), root(2)...))
	if s.Rank(0).Exact {
		t.Error("exact within a snapshot")
	}
	s.chunk(0, 1, 2, 4, 3, true, append(root(3), root(4)...))
	want.Chunks, want.Snapshots, want.Blocks, want.Checked = 2, 1, 4, 4
	if got := s.Counts(); got != want || !s.Rank(0).Exact || s.Rank(0).Seq != 3 {
		t.Errorf("behind a snapshot: %+v, want %+v", got, want)
	}

	s.voidAll()
	s.batch(0, 0, root(5))
	want.Batches, want.Checked = 4, 5
	if got := s.Counts(); got != want || !s.Rank(0).Exact || s.Rank(0).Life != 1 {
		t.Errorf("in the next life: %+v, want %+v, at %+v", got, want, s.Rank(0))
	}

	s.void(0)
	s.batch(0, 0, root(1)) // of a life that is over
	if got := s.Counts(); got.Wrong != 2 {
		t.Errorf("an old life's batch: %+v", got)
	}
	s.chunk(0, 1, 3, 1, 1, true, nil) // without the first
	s.batch(0, 7, root(9))
	if got := s.Counts(); got.Gaps != 3 {
		t.Errorf("a chunk without the first, and a batch far off: %+v: %q", got, s.Faults())
	}
}
