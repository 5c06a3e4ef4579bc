// SPDX-License-Identifier: Apache-2.0

package churn

import (
	"math"
	"math/rand/v2"

	"kindex/harness/corpus"
	"kindex/internal/kv"
	"kindex/shard"
)

// sequence is what was decoded below a prompt: blocks first, first+1, and so on.
type sequence struct {
	prompt int
	first  uint64
	n      int // blocks stored and not evicted
	ends   int // blocks when it will have ended
}

// worker is one engine's cache.
type worker struct {
	holder  shard.Holder
	prompts []int
	active  [active]sequence
	ended   []sequence // a ring: the oldest at head
	head    int
	count   int
	held    int // blocks, prompts included
}

// event is one event of one block.
type event struct {
	worker  int
	store   bool
	parent  kv.EngineHash
	engine  [1]kv.EngineHash
	content [1]kv.ContentHash
}

// fleet makes the workload.
type fleet struct {
	o       *Options
	rng     *rand.Rand
	prompts [][]kv.ContentHash // by prompt
	ends    []kv.EngineHash    // each prompt's last block
	holds   []int              // workers that hold each
	workers []worker
	next    uint64 // block not used yet
	turn    int    // worker whose turn it is
}

func contentOf(block uint64) kv.ContentHash { return corpus.LocalHash(block) }
func engineOf(block uint64) kv.EngineHash   { return kv.EngineHash(corpus.LocalHash(^block)) }

func newFleet(o *Options) *fleet {
	f := &fleet{o: o, rng: rand.New(rand.NewPCG(o.Seed, 0x636875726e)), workers: make([]worker, o.Workers), holds: make([]int, o.Pool)} //nolint:gosec // seeded on purpose
	for range o.Pool {
		var chain []kv.ContentHash
		for range o.Length {
			chain = append(chain, contentOf(f.next))
			f.next++
		}
		f.prompts, f.ends = append(f.prompts, chain), append(f.ends, engineOf(f.next-1))
	}
	for i := range f.workers {
		w := &f.workers[i]
		w.prompts = f.rng.Perm(o.Pool)[:o.Prompts]
		for _, p := range w.prompts {
			f.holds[p]++
		}
		w.held = o.Prompts * o.Length
		// A sequence has a block at least.
		w.ended = make([]sequence, o.capacity()-w.held+1)
		for k := range w.active {
			w.active[k] = f.begin(w)
		}
	}
	return f
}

// engines returns the names of prompt p's blocks.
func (f *fleet) engines(p int) []kv.EngineHash {
	var out []kv.EngineHash
	for j := range uint64(f.o.Length) {
		out = append(out, engineOf(uint64(p*f.o.Length)+j))
	}
	return out
}

// begin returns a sequence that w begins to decode.
func (f *fleet) begin(w *worker) sequence {
	n := min(max(int(math.Ceil(f.rng.ExpFloat64()*float64(f.o.Decode))), 1), longest*f.o.Decode)
	s := sequence{prompt: w.prompts[f.rng.IntN(len(w.prompts))], first: f.next, ends: n}
	f.next += uint64(n)
	return s
}

// full reports whether all workers hold as much as they may.
func (f *fleet) full() bool {
	for i := range f.workers {
		if f.workers[i].held < f.o.capacity() {
			return false
		}
	}
	return true
}

// events fills chunk with what happens next and returns how much of it there is room for.
func (f *fleet) events(chunk []event) int {
	n := 0
	for n+1 < len(chunk) {
		i := f.turn
		f.turn = (f.turn + 1) % len(f.workers)
		w := &f.workers[i]
		if w.held >= f.o.capacity() {
			s := &w.ended[w.head]
			s.n--
			w.held--
			chunk[n] = event{worker: i, engine: [1]kv.EngineHash{engineOf(s.first + uint64(s.n))}}
			n++
			if s.n == 0 {
				w.head, w.count = (w.head+1)%len(w.ended), w.count-1
			}
		}
		s := &w.active[f.rng.IntN(active)]
		block := s.first + uint64(s.n)
		ev := event{worker: i, store: true, parent: f.ends[s.prompt], engine: [1]kv.EngineHash{engineOf(block)}, content: [1]kv.ContentHash{contentOf(block)}}
		if s.n > 0 {
			ev.parent = engineOf(block - 1)
		}
		chunk[n] = ev
		n++
		s.n++
		w.held++
		if s.n == s.ends {
			w.ended[(w.head+w.count)%len(w.ended)] = *s
			w.count++
			*s = f.begin(w)
		}
	}
	return n
}

// question is a lookup and its answer.
type question struct {
	worker  int
	prompt  int
	holders int // of the prompt
	chain   []kv.ContentHash
}

// ask makes the lookup of a sequence that is being decoded.
func (f *fleet) ask(q *question) {
	q.worker = f.rng.IntN(len(f.workers))
	s := &f.workers[q.worker].active[f.rng.IntN(active)]
	q.prompt, q.holders = s.prompt, f.holds[s.prompt]
	q.chain = append(q.chain[:0], f.prompts[s.prompt]...)
	for j := range uint64(s.n) {
		q.chain = append(q.chain, contentOf(s.first+j))
	}
}
