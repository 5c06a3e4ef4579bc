// SPDX-License-Identifier: Apache-2.0

// Before: a worker's state, vetoes and terms. After: decisions, which find them in the
// line of memory that they read of a holder anyhow.

package fleet

import "math"

// Standing is how a worker stands, as its holders know it: state, vetoes and priority in
// one word.
type Standing uint64

const (
	standingVetoes   = 8 // bit where they begin
	standingPriority = 32
)

// State is [Worker.State].
func (s Standing) State() State { return State(s & (1<<standingVetoes - 1)) }

// Vetoes is [Worker.Vetoes].
func (s Standing) Vetoes() Veto { return Veto(uint32(s) >> standingVetoes) }

// Priority is the worker's terms'.
func (s Standing) Priority() int { return int(int32(s >> standingPriority)) }

// Usable is [Worker.Usable].
func (s Standing) Usable() bool { return s.State() == Ready && s.Vetoes()&^FaultyCache == 0 }

// Standing returns how h's worker stands. Whoever changed the worker has changed it when
// his call returns.
func (h *Holder) Standing() Standing { return Standing(h.standing.Load()) }

// Cost returns the factor that the worker's terms put on h's expected wait; 0: none.
func (h *Holder) Cost() float64 { return math.Float64frombits(h.cost.Load()) }

// Fetch asks memory for h's newest reading and its rate. Whoever reads several holders calls it of all
// of them first: their lines come side by side instead of one after the other.
func (h *Holder) Fetch() {
	h.rate.Load()
	if r := h.reading.Load(); r != nil {
		r.laterEnded.Load()
		r.laterPrefill.Load()
	}
}

// tell lets w's holders know how w stands. Of two changes at a time the later call tells
// of both.
func (w *Worker) tell() {
	w.telling.Lock()
	defer w.telling.Unlock()
	t := w.Terms()
	priority := int32(max(min(t.Priority, math.MaxInt32), math.MinInt32))
	s := uint64(uint32(priority))<<standingPriority | uint64(uint32(w.Vetoes())<<standingVetoes) | uint64(w.State())
	for _, h := range w.Holders {
		h.cost.Store(math.Float64bits(t.Cost))
		h.standing.Store(s)
	}
}
