// SPDX-License-Identifier: Apache-2.0

// Before: everything of this package. After: metrics and answers about workers.

package health

import (
	"math/bits"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
)

// numStates and numVetoes are what there is of them.
const (
	numStates = int(fleet.Removed) + 1
	numVetoes = len(fleet.VetoNames)
)

// BreakerNames are the states of a breaker, in the order of [Stats.Breakers].
var BreakerNames = [3]string{"closed", "half_open", "open"}

// counts only grow.
type counts struct {
	set, lifted [numVetoes]atomic.Uint64
	states      [numStates]atomic.Uint64
	breakers    [3]atomic.Uint64
	probes      [numResults]atomic.Uint64
	beside      atomic.Uint64
	outcomes    [numKinds]atomic.Uint64
	shed        atomic.Uint64
}

func (c *counts) veto(v fleet.Veto, on bool) {
	at := bits.TrailingZeros32(uint32(v))
	if on {
		c.set[at].Add(1)
	} else {
		c.lifted[at].Add(1)
	}
}

func vetoName(v fleet.Veto) string { return fleet.VetoNames[bits.TrailingZeros32(uint32(v))] }

// Stats are a watch's counts since it began, and how its workers stand.
type Stats struct {
	Set, Lifted [numVetoes]uint64  // vetoes, as [fleet.VetoNames]; of this package only
	Moved       [numStates]uint64  // to each state, by probes
	Breakers    [3]uint64          // changes to each of [BreakerNames]
	Probes      [numResults]uint64 // by [Result]
	Beside      uint64             // of these, those tried beside one that was overdue
	Outcomes    [numKinds]uint64   // by [Kind]
	Shed        uint64             // requests refused because all workers are full

	Workers int
	Probing int            // probes under way
	States  [numStates]int // workers in each
	Vetoed  [numVetoes]int // workers under each
}

// Stats returns the counts. Cost: O(workers).
func (w *Watch) Stats() Stats {
	c := &w.counts
	out := Stats{Beside: c.beside.Load(), Shed: c.shed.Load()}
	read(out.Set[:], c.set[:])
	read(out.Lifted[:], c.lifted[:])
	read(out.Moved[:], c.states[:])
	read(out.Breakers[:], c.breakers[:])
	read(out.Probes[:], c.probes[:])
	read(out.Outcomes[:], c.outcomes[:])
	for _, s := range *w.all.Load() {
		out.Workers++
		if s.asked.Load() != 0 {
			out.Probing++
		}
		out.States[s.worker.State()]++
		v := s.worker.Vetoes()
		for i := range numVetoes {
			if v&(1<<i) != 0 {
				out.Vetoed[i]++
			}
		}
	}
	return out
}

func read(to []uint64, from []atomic.Uint64) {
	for i := range from {
		to[i] = from[i].Load()
	}
}

// Status is how one worker stands.
type Status struct {
	State   fleet.State
	Vetoes  fleet.Veto
	Breaker string // closed, half-open, open
	Probe   Result // of the newest one
	Probed  time.Duration
	Passes  int // probes in a row
	Fails   int
	Heard   time.Duration // ago: the newest sign of life of its own
	// PrefillRate is what its ranks prefill, tokens a second each on average, as
	// measured; 0: not yet.
	PrefillRate float64
}

// Status returns how a worker stands; false: the watch does not know it.
func (w *Watch) Status(worker *fleet.Worker) (Status, bool) {
	s := w.of(worker)
	if s == nil {
		return Status{}, false
	}
	now := fleet.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Status{
		State: worker.State(), Vetoes: worker.Vetoes(), Breaker: s.breakerState(), Probe: s.last, Probed: since(now, s.lastAt),
		Passes: s.passes, Fails: s.fails, Heard: since(now, s.heard()),
	}
	for i := range s.ranks {
		out.PrefillRate += s.ranks[i].rate.value() / float64(len(s.ranks))
	}
	return out, true
}
