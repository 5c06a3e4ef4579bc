// SPDX-License-Identifier: Apache-2.0

// Before: confirm.go, with an answer. After: metrics; vetoes of package fleet.

package overlay

import (
	"math/bits"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
)

// Differences is the number of buckets of [Stats.Differences].
const Differences = 17

// accuracy is how well what was expected met what was delivered, over all answers.
type accuracy struct {
	answers, other, exact, prompt atomic.Uint64
	available, chosen, delivered  atomic.Uint64
	differences                   [Differences]atomic.Uint64
}

// add counts one answer. usable is what a cache can save of the prompt, in blocks.
func (c *accuracy) add(a *Answer, usable uint32) {
	block := uint64(a.BlockSize)
	chosen := uint64(min(a.Expected, usable)) * block
	c.answers.Add(1)
	c.prompt.Add(uint64(a.Prompt))
	c.available.Add(uint64(min(max(a.Available, a.Expected), usable)) * block)
	c.chosen.Add(chosen)
	c.delivered.Add(uint64(a.Cached))
	d := a.Cached - int64(chosen)
	if d == 0 {
		c.exact.Add(1)
	}
	c.differences[difference(d, int64(a.BlockSize))].Add(1)
}

// difference returns the bucket of d tokens: the middle one is none, and to both sides
// up to 1 block, 2 to 3, 4 to 7 and so on, to 64 to 127, and more.
func difference(d, block int64) int {
	const middle = Differences / 2
	n := d
	if n < 0 {
		n = -n
	}
	n = (n + block - 1) / block // part of a block is one
	step := min(bits.Len64(uint64(n)), middle)
	if d < 0 {
		step = -step
	}
	return middle + step
}

// DifferenceName names a bucket of [Stats.Differences]: the least and the most blocks
// that it has, or one number.
func DifferenceName(i int) string {
	const middle = Differences / 2
	step := i - middle
	sign, n := "", step
	if step < 0 {
		sign, n = "-", -step
	}
	switch {
	case n <= 1:
		return sign + strconv.Itoa(n)
	case n == middle:
		return sign + strconv.Itoa(1<<(n-1)) + "+"
	}
	return sign + strconv.Itoa(1<<(n-1)) + ".." + sign + strconv.Itoa(1<<n-1)
}

// How a window of a worker's answers becomes a verdict.
const (
	window     = 16 // answers
	enough     = 8  // of them at odds with the events: the worker is flagged
	few        = 2  // and no more than these: no longer
	leastTold  = 2  // blocks below which an answer says nothing
	unheardFor = int64(time.Minute)
)

// record is what one worker's answers say of its events.
type record struct {
	worker  *fleet.Worker
	epoch   atomic.Uint32 // grows as all that was confirmed of it is over
	strikes atomic.Int32

	mu     sync.Mutex
	words  [window]word // guarded by mu
	next   int          // guarded by mu
	counts [words]int   // of words; guarded by mu
	last   int64        // the newest word; guarded by mu

	faulty, hiding        atomic.Bool
	expected, delivered   atomic.Uint64 // blocks, by its events and by its answers
	answers, below, above atomic.Uint64
}

// word is one answer's.
type word uint8

const (
	silent word = iota
	agrees
	tooLittle // less than half of what its events say
	tooMuch   // more than twice that, and the index heard no more of it
	words
)

// record returns w's.
func (o *Overlay) record(w *fleet.Worker) *record {
	if r, ok := o.records.Load(w); ok {
		return r.(*record) //nolint:errcheck // nothing else is in there
	}
	r, _ := o.records.LoadOrStore(w, &record{worker: w})
	if w.State() == fleet.Removed { // an answer that was under way: nobody would forget it
		o.records.Delete(w)
	}
	return r.(*record) //nolint:errcheck // nothing else is in there
}

// answered takes an answer that told of so many blocks, of which the events had told
// indexed. More than these may be late events: settled has the word on that.
func (r *record) answered(indexed, told uint32, now int64) {
	r.answers.Add(1)
	r.expected.Add(uint64(indexed))
	r.delivered.Add(uint64(told))
	switch {
	case max(indexed, told) < leastTold:
	case told < indexed-indexed/2:
		r.below.Add(1)
		r.say(tooLittle, now)
	case told <= 2*indexed:
		r.say(agrees, now)
	}
}

// settled takes the index's second word on an answer that told of more.
func (r *record) settled(indexed, told uint32, now int64) {
	switch {
	case told < leastTold:
	case told > 2*indexed:
		r.above.Add(1)
		r.say(tooMuch, now)
	default:
		r.say(agrees, now)
	}
}

// say puts w into the window and passes judgement.
func (r *record) say(w word, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[r.words[r.next]]--
	r.words[r.next] = w
	r.counts[w]++
	r.next = (r.next + 1) % window
	r.last = now
	judge := func(flag *atomic.Bool, n int) bool {
		switch {
		case n >= enough:
			return !flag.Swap(true)
		case n <= few:
			return flag.Swap(false)
		}
		return false
	}
	judge(&r.hiding, r.counts[tooMuch])
	if judge(&r.faulty, r.counts[tooLittle]) {
		r.worker.Steer(fleet.FaultyCache, r.faulty.Load())
	}
}

// rest lifts a verdict that nothing has borne out for long: who is passed over for its
// cache gives few answers that could.
func (r *record) rest(now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now-r.last < unheardFor || !r.faulty.Load() && !r.hiding.Load() {
		return
	}
	r.words, r.counts, r.next = [window]word{}, [words]int{}, 0
	r.hiding.Store(false)
	if r.faulty.Swap(false) {
		r.worker.Steer(fleet.FaultyCache, false)
	}
}

// Worker is how one worker's answers meet its events.
type Worker struct {
	Answers uint64
	Events  uint64 // cached blocks that its events told of, at the times of its answers
	Told    uint64 // cached blocks that its answers told of
	Below   uint64 // answers that told of less than half
	Above   uint64 // of more than twice as much, which the index did not hear of later either
	Faulty  bool   // often below: it has fleet.FaultyCache
	Hiding  bool   // often above: its events do not tell all it has
}

// Worker returns how w's answers meet its events.
func (o *Overlay) Worker(w *fleet.Worker) Worker {
	v, ok := o.records.Load(w)
	if !ok {
		return Worker{}
	}
	r := v.(*record) //nolint:errcheck // nothing else is in there
	return Worker{
		r.answers.Load(), r.expected.Load(), r.delivered.Load(), r.below.Load(), r.above.Load(), r.faulty.Load(), r.hiding.Load(),
	}
}

// Stats are an overlay's counts since it began, and its size.
type Stats struct {
	PredictedEntries, PredictedBytes int64
	ConfirmedEntries, ConfirmedBytes int64
	Evicted                          uint64 // entries of both kinds, for room

	Predicted     uint64 // entries made
	PredictedUsed uint64 // matches that they made or deepened
	Conflicts     uint64 // claims that came second
	Withdrawn     uint64 // by requests that failed
	Indexed       uint64 // ended because the index told of them

	Confirmed     uint64 // entries made
	ConfirmedUsed uint64 // matches that they made or deepened
	Contradicted  uint64 // ended by an answer that told of less
	Emptied       uint64 // workers that showed an emptied cache
	Overtook      uint64 // ended because the index told of them

	Answers     uint64 // compared
	OtherTokens uint64 // not compared: the engine read other tokens than the gateway
	Exact       uint64 // delivered what was expected, to the token

	// Tokens, of the answers compared.
	Prompt, Available, Chosen, Delivered uint64

	// Differences counts answers by delivered less chosen, in blocks: the middle one
	// is none; to both sides up to 1, to 3, to 7 and so on, to 127, and more.
	Differences [Differences]uint64
}

// Stats returns the counts.
func (o *Overlay) Stats() Stats {
	p, c, a, n := o.predicted, o.confirmed, &o.accuracy, &o.stats
	s := Stats{
		PredictedEntries: p.entries.Load(), PredictedBytes: p.bytes.Load(), ConfirmedEntries: c.entries.Load(), ConfirmedBytes: c.bytes.Load(),
		Evicted:   p.evicted.Load() + c.evicted.Load(),
		Predicted: n.predicted.Load(), PredictedUsed: n.predictedUsed.Load(), Conflicts: n.conflicts.Load(),
		Withdrawn: n.withdrawn.Load(), Indexed: n.indexed.Load(),
		Confirmed: n.confirmed.Load(), ConfirmedUsed: n.confirmedUsed.Load(), Contradicted: n.contradicted.Load(),
		Emptied: n.emptied.Load(), Overtook: n.overtook.Load(),
		Answers: a.answers.Load(), OtherTokens: a.other.Load(), Exact: a.exact.Load(),
		Prompt: a.prompt.Load(), Available: a.available.Load(), Chosen: a.chosen.Load(), Delivered: a.delivered.Load(),
	}
	for i := range a.differences {
		s.Differences[i] = a.differences[i].Load()
	}
	return s
}
