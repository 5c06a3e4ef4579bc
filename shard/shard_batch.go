// SPDX-License-Identifier: Apache-2.0

// Hop before: callers with several lookups at once.
// Hop after: the chain core, with all of them in step.

package shard

import (
	"runtime"
	"sync"

	"kindex/internal/kv"
)

const (
	// batchMax is how many lookups walk in step, batchMin how many are worth it.
	batchMax = 32
	batchMin = 8
	// batchAhead is [contentAhead] in a batch, where all together must stay in the
	// cache. Chosen by measurement.
	batchAhead = 4
)

// batchScratch is what a batch needs besides the callers' memory.
type batchScratch struct {
	one   [batchMax]lookupScratch
	lines [batchMax]uint32 // runs to be read next
	// going are the numbers of the lookups still on their way.
	going [batchMax]uint8
}

var batchPool = sync.Pool{New: func() any { return new(batchScratch) }}

// LookupBatch implements [Batcher].
func (s *Shard) LookupBatch(queries []Query) {
	for len(queries) > 0 {
		n := min(len(queries), batchMax)
		if n < batchMin || s.chain == nil {
			for i := range queries[:n] {
				q := &queries[i]
				q.Matches = s.Lookup(q.Namespace, q.Chain, q.Matches)
			}
		} else {
			s.lookupBatch(queries[:n])
		}
		queries = queries[n:]
	}
}

func (s *Shard) lookupBatch(queries []Query) {
	b, ok := batchPool.Get().(*batchScratch)
	if !ok {
		panic("BUG: shard: foreign batch scratch")
	}
	for i := range queries {
		if chain := contentWords(queries[i].Chain); len(chain) > 0 {
			prefetch(&chain[0], 1)
		}
	}
	t := s.seats.Load()
	for i := range queries {
		q, sc := &queries[i], &b.one[i]
		sc.flat.start(t, q.Matches)
		sc.walk.start(s.chain, q.Namespace, q.Chain, &sc.flat)
		sc.walk.ahead = batchAhead
		b.going[i] = uint8(i)
	}
	for n := len(queries); n > 0; {
		n = b.step(n)
	}
	for i := range queries {
		sc := &b.one[i]
		sc.walk.count()
		queries[i].Matches = sc.flat.finish(&sc.walk)
	}
	same := s.seats.Load() == t
	for i := range queries {
		base := b.one[i].flat.base
		b.one[i].release()
		if !same {
			q := &queries[i]
			q.Matches = s.Lookup(q.Namespace, q.Chain, q.Matches[:base])
		}
	}
	batchPool.Put(b)
	runtime.KeepAlive(s)
}

// step takes the first n lookups of b.going a run further, stage by stage, each of
// which asks for the memory that the next one looks at. It returns how many are
// still going.
func (b *batchScratch) step(n int) int {
	left := 0
	for _, i := range b.going[:n] {
		w := &b.one[i].walk
		if hook := w.c.testHookLookup; hook != nil {
			hook()
		}
		line, ok := uint32(0), false
		if !w.over {
			line, ok = w.probe()
		}
		if !ok {
			w.end()
			continue
		}
		b.lines[i] = line
		b.going[left] = i
		left++
	}
	for _, i := range b.going[:left] {
		b.one[i].walk.peek(b.lines[i])
	}
	for _, i := range b.going[:left] {
		w := &b.one[i].walk
		if out := w.read(b.lines[i]); out != readDone && out != readOther {
			w.restart(out)
		}
	}
	return left
}

// LookupGroups implements [Grouper].
func (s *Shard) LookupGroups(ns kv.Namespace, chain []kv.ContentHash, a *Answer) {
	sc := takeScratch()
	groups, words := len(a.Groups), len(a.words)
	for {
		t := s.seats.Load()
		s.walk(sc, ns, chain, nil)
		sc.flat.start(t, a.Singles)
		a.Singles = sc.flat.singles(&sc.walk, a)
		if s.seats.Load() == t {
			break
		}
		a.Groups, a.words, a.Singles = a.Groups[:groups], a.words[:words], a.Singles[:sc.flat.base]
	}
	giveScratch(sc)
}

// singles adds w's groups to a, but for those slots in them that are one of
// several of their holder, and lists these and all others.
func (f *flatAnswer) singles(w *walk, a *Answer) []kv.Match {
	for _, g := range w.groups {
		set := w.group(g)
		from, n := len(a.words), 0
		for i, word := range set {
			word &= f.t.pages[i*64/seatPageSlots].plain[i%(seatPageSlots/64)]
			a.words = append(a.words, word)
			if word != 0 {
				n++
			}
		}
		if n > 0 {
			a.Groups = append(a.Groups, Group{Depth: g.depth, Seats: a.words[from:len(a.words):len(a.words)], table: f.t})
		} else {
			a.words = a.words[:from]
		}
		if f.t.odd > 0 {
			f.group(set, g.depth)
		}
	}
	w.first = w.first[:0] // none of them is listed
	for _, d := range w.few {
		f.one(w, d)
	}
	return f.dst
}
