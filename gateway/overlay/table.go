// SPDX-License-Identifier: Apache-2.0

// Before: predict.go and confirm.go, which make entries. After: overlay.go, which
// merges what is found.

package overlay

import (
	"sync"
	"sync/atomic"

	"kindex/gateway/fleet"
)

const (
	shards    = 64
	found     = 8       // holders, or entries of one holder, that a search is after
	walk      = 32      // entries of one list that a search looks at; chosen, not measured
	longest   = 1 << 16 // blocks of a chain that an entry keeps
	entrySize = 96      // bytes of an entry without its chain
	nodeSize  = 48      // and of each of its places in lists
)

// entry is one chain on one holder.
type entry struct {
	holder *fleet.Holder
	chain  []uint64
	nodes  []node  // one for each anchor
	size   int64   // bytes
	seq    uint64  // order within the root's list
	record *record // of its worker, where it was confirmed
	epoch  uint32  // of that record, then

	length atomic.Int32 // blocks it stands for; 0: over
	until  atomic.Int64 // by fleet.Now
	linked atomic.Bool  // stands in all its lists, and may be taken out
	gone   atomic.Bool  // was taken out, or is being so; chain and nodes are whoever's who did

	queued int64 // its end when it was queued; guarded by the queue's lock
}

// node is an entry's place in the list of one anchor. Guarded by that list's shard.
type node struct {
	e          *entry
	prev, next *node
	in         bool // still; see table.dense
}

// alive returns how many blocks e stands for at the time now; 0: none any more.
func (e *entry) alive(now int64) int {
	if e.until.Load() <= now {
		return 0
	}
	return int(e.length.Load())
}

// stale reports whether e was confirmed of a cache that is no more.
func (e *entry) stale() bool { return e.record != nil && e.record.epoch.Load() != e.epoch }

// shard is a part of the lists, and of the entries in the order of their ends.
type shard struct {
	mu    sync.Mutex
	lists map[uint64]*node // the newest, by prefix hash; guarded by mu

	queue sync.Mutex
	fifo  []*entry // from head on, the oldest first, some of them gone; guarded by queue
	head  int      // guarded by queue
}

// table finds entries by what their chains begin with.
//
// Concurrency: any goroutine.
type table struct {
	maxEntries, maxBytes int64
	// dense: a new entry takes the places of older ones of its holder that tell nothing
	// more there, so that who else has a prefix is not hidden behind a burst.
	dense bool

	seq            atomic.Uint64 // entries made
	entries, bytes atomic.Int64
	evicted        atomic.Uint64 // before their end, for room
	shards         [shards]shard
}

func newTable(maxEntries, maxBytes int64, dense bool) *table {
	t := &table{maxEntries: maxEntries, maxBytes: maxBytes, dense: dense}
	for i := range t.shards {
		t.shards[i].lists = make(map[uint64]*node)
	}
	return t
}

func (t *table) shard(hash uint64) *shard { return &t.shards[hash>>32%shards] }

// newEntry returns an entry that nobody finds yet. chain is copied.
func newEntry(h *fleet.Holder, chain []uint64, until int64) *entry {
	chain = chain[:min(len(chain), longest)]
	e := &entry{holder: h, chain: append(make([]uint64, 0, len(chain)), chain...), nodes: make([]node, anchors(len(chain)))}
	e.size = entrySize + int64(len(e.chain))*8 + int64(len(e.nodes))*nodeSize
	e.length.Store(int32(len(chain)))
	e.until.Store(until)
	return e
}

// root puts e into its root's list, unless first, called with the lock held on what is
// there, says no.
func (t *table) root(e *entry, first func(*node) bool) bool {
	s := t.shard(e.chain[0])
	s.mu.Lock()
	defer s.mu.Unlock()
	if first != nil && !first(s.lists[e.chain[0]]) {
		return false
	}
	e.seq = t.seq.Add(1)
	s.push(e, 0, t.dense)
	return true
}

// rest puts e, which is in its root's list, everywhere else, and makes room.
func (t *table) rest(e *entry, now int64) {
	for i := 1; i < len(e.nodes); i++ {
		s := t.shard(e.chain[anchor(i)-1])
		s.mu.Lock()
		s.push(e, i, t.dense)
		s.mu.Unlock()
	}
	t.entries.Add(1)
	t.bytes.Add(e.size)
	e.linked.Store(true)
	home := int(e.chain[len(e.chain)-1] >> 32 % shards)
	s := &t.shards[home]
	s.enqueue(e)
	t.expire(s, now, 4)
	for i := 0; i < shards && t.over(); i++ {
		t.room(&t.shards[(home+i)%shards], now)
	}
}

func (t *table) over() bool { return t.entries.Load() > t.maxEntries || t.bytes.Load() > t.maxBytes }

// push puts e first in the list of its i-th anchor. The caller holds s.mu.
func (s *shard) push(e *entry, i int, dense bool) {
	hash := e.chain[anchor(i)-1]
	if dense {
		for looked, n := 0, s.lists[hash]; n != nil && looked < found; looked++ {
			next := n.next
			if n.e.holder == e.holder && covers(e.chain, n.e.chain, anchor(i+1)) {
				s.unlink(n, hash)
			}
			n = next
		}
	}
	n := &e.nodes[i]
	n.e, n.next, n.in = e, s.lists[hash], true
	if n.next != nil {
		n.next.prev = n
	}
	s.lists[hash] = n
}

// covers reports whether a has all that b has of its first n blocks.
func covers(a, b []uint64, n int) bool {
	n = min(n, len(b))
	return n <= len(a) && a[n-1] == b[n-1]
}

// unlink takes n out of the list at hash. The caller holds s.mu.
func (s *shard) unlink(n *node, hash uint64) {
	switch {
	case !n.in:
		return
	case n.prev != nil:
		n.prev.next = n.next
	case n.next != nil:
		s.lists[hash] = n.next
	default:
		delete(s.lists, hash)
	}
	if n.next != nil {
		n.next.prev = n.prev
	}
	n.prev, n.next, n.in = nil, nil, false
}

// end ends e: nobody finds it any more. Whoever comes second does nothing.
func (t *table) end(e *entry) {
	e.length.Store(0)
	if !e.linked.Load() || e.gone.Swap(true) {
		return // where it is not linked yet it goes when its time is over
	}
	for i := range e.nodes {
		hash := e.chain[anchor(i)-1]
		s := t.shard(hash)
		s.mu.Lock()
		s.unlink(&e.nodes[i], hash)
		s.mu.Unlock()
	}
	e.chain, e.nodes = nil, nil // the queue may keep e for a while
	t.entries.Add(-1)
	t.bytes.Add(-e.size)
}

// expire takes out at most n entries whose end has come, and reports whether there may
// be more.
func (t *table) expire(s *shard, now int64, n int) bool {
	for range n {
		e := s.pop(now, false)
		if e == nil {
			return false
		}
		t.end(e)
	}
	return true
}

// room takes out the oldest entries of s until the table's bounds hold.
func (t *table) room(s *shard, now int64) {
	for t.over() {
		e := s.pop(now, true)
		if e == nil {
			return
		}
		if e.alive(now) > 0 {
			t.evicted.Add(1)
		}
		t.end(e)
	}
}

// enqueue puts e last among those that wait for their end.
func (s *shard) enqueue(e *entry) {
	s.queue.Lock()
	defer s.queue.Unlock()
	e.queued = e.until.Load()
	s.fifo = append(s.fifo, e)
}

// pop takes the oldest entry out of the queue if its time is over, or in any case. nil:
// it is not, or there is none.
func (s *shard) pop(now int64, anyhow bool) *entry {
	s.queue.Lock()
	defer s.queue.Unlock()
	for s.head < len(s.fifo) {
		e := s.fifo[s.head]
		live := e.alive(now) > 0
		if live && !anyhow && e.queued > now {
			return nil
		}
		s.fifo[s.head] = nil
		s.head++
		again := live && !anyhow // its end was put off
		if again {
			e.queued = e.until.Load()
			s.fifo = append(s.fifo, e)
		}
		if s.head == len(s.fifo) || s.head >= 1024 && s.head*2 >= len(s.fifo) {
			s.shrink()
		}
		if !again {
			return e
		}
	}
	return nil
}

// shrink gives the room before head back. The caller holds s.queue.
func (s *shard) shrink() {
	n := copy(s.fifo, s.fifo[s.head:])
	clear(s.fifo[n:])
	s.fifo, s.head = s.fifo[:n], 0
	if n == 0 && cap(s.fifo) > 1024 {
		s.fifo = nil
	}
}

// sweep takes out all entries whose end has come.
func (t *table) sweep(now int64) {
	for i := range t.shards {
		for t.expire(&t.shards[i], now, 256) {
		}
	}
}

// hit is an entry that begins as a chain does.
type hit struct {
	e     *entry
	depth int // blocks in common
}

// find appends living entries that begin as chain does: of each holder the one that
// shares the most, of at most found holders; or of one holder at most found entries,
// whatever they share. Those with the longest common beginning are found first, but the
// root's list is looked at in any case: the youngest stand there before anywhere else.
func (t *table) find(dst []hit, chain []uint64, now int64, of *fleet.Holder) []hit {
	if len(chain) == 0 || t.seq.Load() == 0 || !t.there(chain[0]) {
		return dst
	}
	lo, hi := 0, anchors(min(len(chain), longest)) // a list is there at lo, and not known at hi
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if t.there(chain[anchor(mid)-1]) {
			lo = mid
		} else {
			hi = mid
		}
	}
	for i := lo; i > 0 && (of != nil || len(dst) < found); i-- {
		dst = t.list(dst, chain, i, now, of)
	}
	return t.list(dst, chain, 0, now, of)
}

// there reports whether anything has this prefix.
func (t *table) there(hash uint64) bool {
	s := t.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists[hash] != nil
}

// list takes the entries of one list into dst.
func (t *table) list(dst []hit, chain []uint64, at int, now int64, of *fleet.Holder) []hit {
	known := anchor(at)
	s := t.shard(chain[known-1])
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.lists[chain[known-1]]
	for looked := 0; n != nil && looked < walk; n, looked = n.next, looked+1 {
		e := n.e
		long := e.alive(now)
		if long == 0 || of != nil && e.holder != of {
			continue
		}
		dst = take(dst, hit{e, common(e.chain[:long], chain, min(known, long))}, of != nil)
	}
	return dst
}

// take puts h into hits, where it belongs: of each holder the deepest, or each entry
// once.
func take(hits []hit, h hit, each bool) []hit {
	for i := range hits {
		switch o := &hits[i]; {
		case o.e == h.e:
			return hits
		case !each && o.e.holder == h.e.holder:
			if h.depth > o.depth {
				*o = h
			}
			return hits
		}
	}
	if len(hits) < 2*found {
		hits = append(hits, h)
	}
	return hits
}
