// SPDX-License-Identifier: Apache-2.0

// Before: own.go or peer.go, which decode a contract. After: a drill's judge.

package subscribe

import (
	"fmt"
	"sync"
	"time"

	"kindex/harness/publish"
)

// Truth is where right contents come from: a publisher.
type Truth interface {
	Life() int
	Record(rank, life int, seq uint64) (publish.Record, bool)
}

// Counts are what a subscriber met so far.
type Counts struct {
	Subscribed int // streams that were opened, the first included
	Batches    int // applied
	Snapshots  int // whole ones
	Chunks     int
	Blocks     int // copies that snapshots brought
	Gaps       int // numbers that were jumped without a word
	Stale      int // batches at or below the cursor
	Resets     int // contents that were declared void: DATA_LOSS of the peer's, resets of ours
	OutOfRange int // cursors that were refused; the peer's contract only
	Holes      int // batches that nobody has; our contract only
	Wrong      int // states that are not the truth
	Checked    int // states held against the truth
}

// Standing is one rank as a subscriber has it.
type Standing struct {
	Has   bool // seq says something
	Seq   uint64
	Life  int       // of the publisher, as its truth showed
	Exact bool      // the last state was the truth of Seq
	At    time.Time // when it was reached
}

// rank is what a subscriber holds of one rank.
type rank struct {
	content publish.Content
	stand   Standing
	partial bool // a snapshot is under way
	chunk   uint32
}

// state is what both contracts' subscribers have in common.
//
// Concurrency: any goroutine.
type state struct {
	truth Truth

	mu     sync.Mutex
	ranks  map[int]*rank
	counts Counts
	said   []string // the first faults
}

const maxSaid = 8

func newState(t Truth) state { return state{truth: t, ranks: map[int]*rank{}} }

// Counts returns what was met so far.
func (s *state) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Rank returns how far one rank is.
func (s *state) Rank(r int) Standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of(r).stand
}

// Faults returns the first faults in words.
func (s *state) Faults() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.said...)
}

func (s *state) of(r int) *rank {
	k := s.ranks[r]
	if k == nil {
		k = &rank{}
		s.ranks[r] = k
	}
	return k
}

func (s *state) sayf(format string, args ...any) {
	if len(s.said) < maxSaid {
		s.said = append(s.said, fmt.Sprintf(format, args...))
	}
}

// batch applies the batch of number seq, which must follow the last.
func (s *state) batch(r int, seq uint64, events []publish.Event) {
	k := s.of(r)
	switch {
	case k.partial:
		s.counts.Gaps++
		s.sayf("rank %d: batch %d within a snapshot", r, seq)
	case k.stand.Has && seq <= k.stand.Seq:
		s.counts.Stale++
		return
	case k.stand.Has && seq != k.stand.Seq+1, !k.stand.Has && seq != 0:
		s.counts.Gaps++
		s.sayf("rank %d: batch %d after %s", r, seq, k.stand)
	}
	for i := range events {
		k.content.Apply(&events[i])
	}
	s.counts.Batches++
	s.reached(r, k, seq)
}

// chunk applies a piece of a snapshot that stands at the number through, if there was
// any batch yet.
func (s *state) chunk(r int, index, count uint32, blocks, through uint64, stands bool, events []publish.Event) {
	k := s.of(r)
	if index == 0 {
		k.content.Clear()
		k.partial, k.chunk, k.stand.Exact = true, 0, false
		s.counts.Blocks += int(blocks)
	}
	if !k.partial || index != k.chunk {
		s.counts.Gaps++
		s.sayf("rank %d: chunk %d of %d where %d was due", r, index, count, k.chunk)
	}
	k.chunk++
	for i := range events {
		k.content.Apply(&events[i])
	}
	s.counts.Chunks++
	if index+1 < count {
		return
	}
	k.partial = false
	s.counts.Snapshots++
	if stands {
		s.reached(r, k, through)
	}
}

// reached notes that k stands at seq, and whether it holds what it should.
func (s *state) reached(r int, k *rank, seq uint64) {
	k.stand.Has, k.stand.Seq, k.stand.At = true, seq, time.Now()
	k.stand.Exact = false
	s.counts.Checked++
	// A subscriber learns of lives by what it holds: of those from the last on, the
	// newest whose truth this is.
	for life := s.truth.Life(); life >= k.stand.Life; life-- {
		if rec, ok := s.truth.Record(r, life, seq); ok && rec.Truth == k.content.Sum() {
			k.stand.Life, k.stand.Exact = life, true
			return
		}
	}
	s.counts.Wrong++
	s.sayf("rank %d: the %d copies held at batch %d are not the truth", r, k.content.Copies(), seq)
}

// void empties a rank, which knows nothing from now on.
func (s *state) void(r int) {
	k := s.of(r)
	k.content.Clear()
	k.partial = false
	k.stand = Standing{Life: k.stand.Life}
}

// voidAll empties all.
func (s *state) voidAll() {
	for r := range s.ranks {
		s.void(r)
	}
}

// String says where the rank stands.
func (s Standing) String() string {
	if !s.Has {
		return "nothing"
	}
	return fmt.Sprintf("batch %d", s.Seq)
}
