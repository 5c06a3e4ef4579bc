// SPDX-License-Identifier: Apache-2.0

// Before: the registry. After: decisions, which read a worker's standing, and the
// watchers of its health, which write it.

package fleet

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// State is where a worker stands between its registration and its end.
type State uint32

// The states. Only a ready worker is given requests.
const (
	Pending  State = iota // registered, no probe has passed yet
	Ready                 // serving
	NotReady              // probes fail
	Failed                // probes have failed for long
	Draining              // ends what it has, is given nothing new
	Removed               // no longer registered; who still holds a lease gives it back
)

var stateNames = [...]string{"pending", "ready", "not_ready", "failed", "draining", "removed"}

// String returns the state's name in answers and metrics.
func (s State) String() string { return stateNames[s] }

// Veto is why a worker that serves is passed over. A veto steers, it never refuses:
// where all are vetoed the least loaded one is taken all the same.
type Veto uint32

// The vetoes, a bit each.
const (
	Unreachable Veto = 1 << iota // connections fail, and it has been silent
	Wedged                       // has requests and makes no progress with them
	Stale                        // its load record is too old
	BreakerOpen                  // too many faults in a row
	Overloaded                   // full by its own word
	FaultyCache                  // delivers less of the cache than its events say: prefix hits do not count
)

// VetoNames are the names of the vetoes, in the order of their bits.
var VetoNames = [...]string{"unreachable", "wedged", "stale", "breaker_open", "overloaded", "faulty_cache"}

// String returns the names of v's bits.
func (v Veto) String() string {
	var names []string
	for i, name := range VetoNames {
		if v&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// A Worker is one registration of an engine.
type Worker struct {
	ID      string // of the registration: another one each time
	Spec    *Spec  // as registered; a new Worker takes its place where the URL changes
	Holders []*Holder

	state   atomic.Uint32
	vetoes  atomic.Uint32
	priced  atomic.Pointer[Terms]
	served  atomic.Pointer[Served]
	contact atomic.Int64 // the newest sign of life, monotonic ns of [Now]

	telling sync.Mutex // of tell
}

// NewWorker returns the worker of a registration, pending, with a holder for each rank.
// Their seats are those of a pool of this worker alone; a registry gives others.
func NewWorker(id string, s *Spec) *Worker {
	w := &Worker{ID: id, Spec: s}
	for rank := range max(s.Ranks, 1) {
		w.Holders = append(w.Holders, &Holder{Worker: w, Rank: rank, Seat: rank})
	}
	t := s.Terms
	w.SetTerms(&t)
	w.served.Store(&Served{s.Models, s.Adapters})
	return w
}

// Serves returns what w can be asked for now, which may have changed since its
// registration.
func (w *Worker) Serves() *Served {
	if s := w.served.Load(); s != nil {
		return s
	}
	return &Served{w.Spec.Models, w.Spec.Adapters}
}

// Name returns what answers and logs call w.
func (w *Worker) Name() string {
	if w.Spec.Name != "" {
		return w.Spec.Name
	}
	return w.ID
}

// began is the zero of [Now].
var began = time.Now()

// Now is the time that all marks of this package are in: monotonic ns since the
// program began.
func Now() int64 { return int64(time.Since(began)) }

// State returns where w stands.
func (w *Worker) State() State { return State(w.state.Load()) }

// SetState moves w to s, and reports from where. The registry and the prober call it.
// A worker that drains is only ever removed, and one that was removed stays so: any
// other move of it is left out.
func (w *Worker) SetState(s State) State {
	for {
		old := w.State()
		if !may(old, s) {
			return old
		}
		if w.state.CompareAndSwap(uint32(old), uint32(s)) {
			w.tell()
			return old
		}
	}
}

// MoveState moves w from one state to another, and reports whether it was there and may.
func (w *Worker) MoveState(from, to State) bool {
	if !may(from, to) || !w.state.CompareAndSwap(uint32(from), uint32(to)) {
		return false
	}
	w.tell()
	return true
}

// may reports whether a worker can go from one state to another.
func may(from, to State) bool {
	return from < Draining || to == Removed || from == to && from == Draining
}

// Vetoes returns all vetoes on w.
func (w *Worker) Vetoes() Veto { return Veto(w.vetoes.Load()) }

// Steer sets or lifts vetoes, and reports which of them changed. Package health and
// whoever measures a worker's cache call it.
func (w *Worker) Steer(v Veto, on bool) Veto {
	if on {
		v &^= Veto(w.vetoes.Or(uint32(v)))
	} else {
		v &= Veto(w.vetoes.And(^uint32(v)))
	}
	if v != 0 {
		w.tell()
	}
	return v
}

// Usable reports whether w may be given requests while another that may is there:
// it is ready and nothing but its cache is held against it.
func (w *Worker) Usable() bool { return w.State() == Ready && w.Vetoes()&^FaultyCache == 0 }

// Terms returns what updates may have changed; never nil.
func (w *Worker) Terms() *Terms {
	if t := w.priced.Load(); t != nil {
		return t
	}
	return &noTerms
}

// noTerms are those of a worker that nobody priced.
var noTerms = Terms{Priority: DefaultPriority, Cost: DefaultCost}

// SetTerms is the registry's.
func (w *Worker) SetTerms(t *Terms) {
	w.priced.Store(t)
	w.tell()
}

// Contact notes a sign of life at the time now: bytes of an answer, a probe that passed,
// an event or a load record.
func (w *Worker) Contact(now int64) { newer(&w.contact, now) }

// LastContact returns the newest sign of life; 0: none yet.
func (w *Worker) LastContact() int64 { return w.contact.Load() }

// LastToken returns when any answer of w last moved; 0: never. Cost: O(ranks).
func (w *Worker) LastToken() int64 {
	last := int64(0)
	for _, h := range w.Holders {
		last = max(last, h.token.Load())
	}
	return last
}

// InFlight returns the requests that have a lease on a holder of w. Cost: O(ranks).
func (w *Worker) InFlight() int64 {
	n := int64(0)
	for _, h := range w.Holders {
		n += h.requests.Load()
	}
	return n
}

func newer(at *atomic.Int64, now int64) {
	for {
		old := at.Load()
		if old >= now || at.CompareAndSwap(old, now) {
			return
		}
	}
}
