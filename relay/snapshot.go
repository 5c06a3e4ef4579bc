// SPDX-License-Identifier: Apache-2.0

// Before: Rank (live content). After: reader.

package relay

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kindex/relay/live"
)

// maxSnapshots bounds a rank's snapshots in one form that are kept at once.
const maxSnapshots = 4

// cutDelay is how long a snapshot waits when too many cuts are open, doubling each
// time up to maxCutDelay.
const (
	cutDelay    = 10 * time.Millisecond
	maxCutDelay = 320 * time.Millisecond
)

// snapshot is the content of a rank at one position of its history, in one form.
// It is laid out by a goroutine of its own; then any number of readers are told
// its chunks, each of which is encoded when the first of them comes to it.
type snapshot struct {
	form Form
	refs int // readers; of snapshots.mu

	ready atomic.Bool // what follows does not change any more
	taken bool        // pos is known; of Rank.mu
	epoch uint64
	pos   uint64 // the index in the history that follows
	head  Chunk  // what all chunks have in common
	ts    float64

	mu      sync.Mutex // guards what follows
	cut     *live.Cut
	chunks  *live.Chunks
	bodies  [][]byte // encoded so far, where somebody else may want them
	dropped atomic.Bool
}

// snapshots are those of one rank. One that was cut a while ago serves newcomers,
// too: what it lacks they read in the history. So a thousand subscribers at once
// share one.
//
// Concurrency: any goroutine. Lock order: Rank.mu, then mu.
type snapshots struct {
	freed func() // called with mu held

	mu   sync.Mutex
	kept [numForms][]*snapshot // oldest first
	open atomic.Int32          // how many that are

	cuts, shared atomic.Uint64
}

// passed drops what r's history has passed by. A cut keeps all that changes from
// being used again, and a reader that is stuck would hold its own for ever. r is
// locked.
func (ss *snapshots) passed(r *Rank) {
	if ss.open.Load() == 0 {
		return
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for form := range ss.kept {
		ss.expire(r, Form(form))
	}
}

// expire drops those that fell out of the history: whoever is told one will have to
// begin anew. r is locked for reading, mu is held.
func (ss *snapshots) expire(r *Rank, form Form) {
	kept := ss.kept[form]
	n := 0
	for n < len(kept) && kept[n].ready.Load() && (kept[n].epoch != r.epoch || kept[n].pos < r.hist.tail) {
		kept[n].drop()
		n++
	}
	if n > 0 {
		ss.kept[form] = slices.Delete(kept, 0, n)
		ss.open.Add(int32(-n))
		ss.freed()
	}
}

// join returns a snapshot to be told, perhaps not ready yet. leave must be called
// for it. r is locked for reading.
func (ss *snapshots) join(r *Rank, form Form) *snapshot {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.expire(r, form)
	kept := ss.kept[form]
	if n := len(kept); n > 0 {
		s := kept[n-1]
		near := r.hist.reach() / maxSnapshots
		if !s.ready.Load() || r.hist.head-s.pos <= near || n >= maxSnapshots {
			s.refs++
			ss.shared.Add(1)
			return s
		}
	}
	s := &snapshot{form: form, refs: 1}
	ss.kept[form] = append(kept, s)
	ss.open.Add(1)
	ss.cuts.Add(1)
	r.engine.run(func() { r.cut(s) })
	return s
}

// alone reports whether s has one reader.
func (ss *snapshots) alone(s *snapshot) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return s.refs == 1
}

// leave ends a reader's use of s.
func (ss *snapshots) leave(s *snapshot) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s.refs--; s.refs > 0 || !s.ready.Load() {
		return
	}
	ss.remove(s)
}

// need returns the lowest index of the history that readers of snapshots will go on
// from. The rank is locked.
func (ss *snapshots) need() uint64 {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	need := uint64(math.MaxUint64)
	for _, kept := range ss.kept {
		for _, s := range kept {
			if s.taken {
				need = min(need, s.pos)
			}
		}
	}
	return need
}

// remove drops s. mu is held.
func (ss *snapshots) remove(s *snapshot) {
	kept := ss.kept[s.form]
	for i := range kept {
		if kept[i] == s {
			ss.kept[s.form] = append(kept[:i:i], kept[i+1:]...)
			ss.open.Add(-1)
			break
		}
	}
	s.drop()
	ss.freed()
}

// drop lets go of the content: what was encoded of it stays with whoever has it.
func (s *snapshot) drop() {
	s.dropped.Store(true)
	s.tidy()
}

// tidy closes the cut of a dropped snapshot unless a chunk is being encoded,
// after which tidy comes again.
func (s *snapshot) tidy() {
	if !s.dropped.Load() || !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if s.cut != nil {
		s.cut.Close()
	}
	s.cut, s.chunks, s.bodies = nil, nil, nil
}

// cut makes s ready.
func (r *Rank) cut(s *snapshot) {
	// Laying out takes memory for as long as it takes.
	layouts := r.engine.layouts
	layouts <- struct{}{}
	defer func() { <-layouts }()

	cut := r.take(s)
	for delay := cutDelay; cut == nil; delay = min(2*delay, maxCutDelay) {
		<-layouts // others may have room
		wanted := r.waitForCuts(s, delay)
		layouts <- struct{}{}
		if !wanted {
			return
		}
		cut = r.take(s)
	}
	s.mu.Lock()
	s.cut = cut
	if s.form == FormPeer {
		s.chunks = cut.Peer(s.head.Through)
	} else {
		s.chunks = cut.Own()
		s.head.Digest = cut.Digest()
	}
	s.head.Blocks, s.head.Count = cut.Blocks(), uint32(s.chunks.Len())
	s.bodies = make([][]byte, s.head.Count)
	s.mu.Unlock()

	ss := &r.snapshots
	ss.mu.Lock()
	s.ready.Store(true)
	if s.refs == 0 || s.dropped.Load() {
		ss.remove(s)
	}
	ss.mu.Unlock()
	r.engine.waker.wake()
}

// take cuts the content and notes where. It returns nil where too many cuts are
// open: those of dropped snapshots close as soon as nobody encodes a chunk of them.
func (r *Rank) take(s *snapshot) *live.Cut {
	r.mu.Lock()
	defer r.mu.Unlock()
	cut, err := r.live.Cut()
	if err != nil {
		return nil
	}
	s.taken, s.epoch, s.pos, s.ts = true, r.epoch, r.hist.head, r.timestamp
	s.head = Chunk{UnknownBefore: r.unknown, Through: r.last, Check: r.check}
	return cut
}

// waitForCuts waits for other cuts to close. It returns whether s is still wanted,
// and drops it if not.
func (r *Rank) waitForCuts(s *snapshot, delay time.Duration) bool {
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-r.engine.done:
		return false
	case <-t.C:
	}
	ss := &r.snapshots
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s.refs > 0 {
		return true
	}
	ss.remove(s)
	return false
}

// chunk returns chunk i, or false where s was dropped meanwhile. shared says that
// others may ask for it, too. s is ready.
func (s *snapshot) chunk(rank, i int, shared bool) (Chunk, bool) {
	defer s.tidy()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped.Load() || s.chunks == nil {
		return Chunk{}, false
	}
	c := s.head
	c.Index = uint32(i)
	if s.form == FormPeer {
		c.Sequence = c.Through - uint64(c.Count-1-c.Index)
	}
	if s.form == FormPeer || c.Index != c.Count-1 {
		c.Digest = 0
	}
	if c.Body = s.bodies[i]; c.Body == nil {
		c.Body = s.encode(&c, rank)
		if shared {
			s.bodies[i] = c.Body
		}
	}
	return c, true
}

func (s *snapshot) encode(c *Chunk, rank int) []byte {
	if s.form == FormPeer {
		return s.chunks.Append(appendPeerChunk(nil, c, s.ts, rank), int(c.Index))
	}
	return s.chunks.Append(appendOwnChunk(nil, c), int(c.Index))
}
