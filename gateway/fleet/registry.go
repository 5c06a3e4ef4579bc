// SPDX-License-Identifier: Apache-2.0

// Before: POST /workers, flags, files, by way of the prober. After: pools, which
// decisions read, and whoever follows joins and leaves.

package fleet

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The limits of a registry.
const (
	MaxWorkers       = 4_096
	MaxHolders       = 65_536
	MaxRanks         = 64    // of a worker
	MaxModels        = 4_096 // names that can be asked for
	MaxModelsPerSpec = 256
)

// Why a registry refuses. Each is wrapped with what was refused.
var (
	ErrExists  = errors.New("already registered")
	ErrUnknown = errors.New("not registered")
	ErrFull    = errors.New("no room")
	ErrLeaving = errors.New("leaving")
)

// A Registration is one that was asked for: from the request until its removal. It has
// a worker as soon as it is known what the engine is; one whose engine turned out to be
// another one has another worker, under the same ID.
type Registration struct {
	ID string

	given  atomic.Pointer[Spec]
	worker atomic.Pointer[Worker]
	job    atomic.Pointer[Job]
}

// Given returns what was asked for, with the terms as they are now. It is immutable.
func (r *Registration) Given() *Spec { return r.given.Load() }

// Worker returns the worker that stands for r now; nil: none yet.
func (r *Registration) Worker() *Worker { return r.worker.Load() }

// Job returns how finding out about the engine goes.
func (r *Registration) Job() *Job { return r.job.Load() }

// Job is how finding out about a registration's engine goes. It is immutable.
type Job struct {
	Status   string // "pending", "processing", "done", "failed"
	Attempts int
	Message  string // the newest reason, or what was found and is odd; "": none
	At       time.Time
}

// A Registry is who is there. One write happens at a time, with all hooks of it; reads
// of pools and workers take no lock.
type Registry struct {
	turn sync.Mutex // held for a whole change, its hooks too

	join, leave, change []func(*Worker) // guarded by turn
	own                 map[string]*Pool
	seats               seatMap
	version             uint64
	instances           map[string]*Worker

	mu    sync.RWMutex             // guards the maps below; taken within turn
	byID  map[string]*Registration // written under turn too
	byURL map[string]*Registration

	pools   atomic.Pointer[map[string]*Pool] // by each name that can be asked for
	workers atomic.Pointer[[]*Worker]        // in the order of their joins

	leaving sync.WaitGroup
	stop    chan struct{}
	stopped sync.Once
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	r := &Registry{
		own: make(map[string]*Pool), instances: make(map[string]*Worker),
		byID: make(map[string]*Registration), byURL: make(map[string]*Registration), stop: make(chan struct{}),
	}
	r.pools.Store(&map[string]*Pool{})
	r.workers.Store(&[]*Worker{})
	return r
}

// Close ends the drains that go on, without their removals.
func (r *Registry) Close() {
	r.stopped.Do(func() {
		r.turn.Lock() // no drain begins beside it
		defer r.turn.Unlock()
		close(r.stop)
	})
	r.leaving.Wait()
}

// Pool returns the workers for a model or an adapter; nil: nobody has it. An adapter
// that all workers of its base model have is that model's pool. Lock-free, no
// allocation.
func (r *Registry) Pool(model string) *Pool {
	all := *r.pools.Load()
	if p := all[model]; p != nil {
		return p
	}
	// SGLang takes an adapter together with its model, too. Either name may have colons.
	for i := range len(model) {
		if model[i] != ':' {
			continue
		}
		base, adapter := model[:i], model[i+1:]
		if p := all[adapter]; p != nil && base != "" && adapter != base && (p.Model == base || p.Base == base) {
			return p
		}
	}
	return nil
}

// Adapter reports whether a name that can be asked for is that of an adapter.
func (r *Registry) Adapter(name string) bool {
	p := r.Pool(name)
	return p != nil && (p.Model != name || p.Base != "")
}

// Models returns every name that can be asked for, with its pool. The map is immutable.
func (r *Registry) Models() map[string]*Pool { return *r.pools.Load() }

// Workers returns all workers in the order of their joins. The slice is immutable.
func (r *Registry) Workers() []*Worker { return *r.workers.Load() }

// Seats returns a number above every seat that is taken.
func (r *Registry) Seats() int {
	r.turn.Lock()
	defer r.turn.Unlock()
	return r.seats.top()
}

// OnJoin has f called for each worker before decisions can name it, beginning with those
// that are there. Hooks are called one after another, in the order of the changes; they
// may read the registry but not change it, and must not block.
func (r *Registry) OnJoin(f func(*Worker)) {
	r.turn.Lock()
	defer r.turn.Unlock()
	r.join = append(r.join, f)
	for _, w := range r.Workers() {
		f(w)
	}
}

// OnLeave has f called for each worker that left, after the last pool that names it was
// replaced; or, where another one of the same registration takes its place, before that
// one joins. Leases on it may still be out. As for [Registry.OnJoin].
func (r *Registry) OnLeave(f func(*Worker)) {
	r.turn.Lock()
	defer r.turn.Unlock()
	r.leave = append(r.leave, f)
}

// OnChange has f called after a worker's terms changed or it began to drain. As for
// [Registry.OnJoin].
func (r *Registry) OnChange(f func(*Worker)) {
	r.turn.Lock()
	defer r.turn.Unlock()
	r.change = append(r.change, f)
}

func tell(hooks []func(*Worker), w *Worker) {
	for _, f := range hooks {
		f(w)
	}
}

// Add registers a worker of which all is known: it joins at once, pending.
//
// Errors: of [Spec.Validate], [ErrExists], [ErrFull].
func (r *Registry) Add(s Spec) (*Worker, error) {
	reg, err := r.Enroll(s)
	if err != nil {
		return nil, err
	}
	w, err := r.Join(reg, *reg.Given())
	if err != nil {
		r.withdraw(reg)
	}
	return w, err
}

// Enroll takes a registration in: its URL is taken, and nobody is given requests yet.
// With [ErrExists] it returns the one that is there.
func (r *Registry) Enroll(s Spec) (*Registration, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if s.Instance == "" {
		s.Instance = s.URL
	}
	reg := &Registration{ID: newID()}
	reg.given.Store(&s)
	reg.job.Store(&Job{Status: "pending", At: time.Now()})
	r.turn.Lock()
	defer r.turn.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.byURL[s.URL]; old != nil {
		return old, fmt.Errorf("%s: %w as %s", s.URL, ErrExists, old.ID)
	}
	if len(r.byID) >= MaxWorkers {
		return nil, fmt.Errorf("%s: %w: a gateway has at most %d workers", s.URL, ErrFull, MaxWorkers)
	}
	r.byID[reg.ID], r.byURL[s.URL] = reg, reg
	return reg, nil
}

// newID returns an id that no other registration has.
func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return "w-" + hex.EncodeToString(b[:])
}

// withdraw forgets a registration that has no worker.
func (r *Registry) withdraw(reg *Registration) {
	r.turn.Lock()
	defer r.turn.Unlock()
	r.forget(reg)
}

// forget takes reg out of the maps. turn is held.
func (r *Registry) forget(reg *Registration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID[reg.ID] != reg {
		return false
	}
	delete(r.byID, reg.ID)
	delete(r.byURL, reg.Given().URL)
	return true
}

// Join makes the worker of a registration, as s says, and puts it into the pools. Where
// it has one already that one leaves first: what was known of it does not go over. Of
// the URL s may have another scheme than was asked for, where that was found out.
//
// Errors: [ErrUnknown] where the registration was removed meanwhile, [ErrLeaving] where
// its worker drains, [ErrExists] where another worker has the instance, [ErrFull].
func (r *Registry) Join(reg *Registration, s Spec) (*Worker, error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	old := reg.Worker()
	return r.replace(reg, old, s, old != nil && old.Spec.serves(&s))
}

// replace is Join with turn held. Where same says that it is the same engine in another
// registration it goes on to serve all the while; else nobody is sent to the old one
// once that is known.
func (r *Registry) replace(reg *Registration, old *Worker, s Spec, same bool) (*Worker, error) {
	if s.Instance == "" {
		s.Instance = reg.Given().Instance
	}
	s.Ranks = max(s.Ranks, 1)
	if err := r.mayJoin(reg, old, &s); err != nil {
		return nil, err
	}
	s.Terms = reg.Given().Terms // an update may have come meanwhile
	w := NewWorker(reg.ID, &s)
	for _, h := range w.Holders {
		h.Seat = r.seats.take()
	}
	if old != nil {
		if !same {
			old.SetState(Removed)
		}
		tell(r.leave, old)
	}
	if same && old.State() == Ready {
		w.SetState(Ready)
	}
	tell(r.join, w)
	reg.worker.Store(w)
	if old != nil {
		r.unlist(old)
	}
	r.list(w, w.Serves())
	r.instances[s.Instance] = w
	r.show(old, w)
	if old != nil {
		r.gone(old)
	}
	return w, nil
}

// mayJoin returns why the worker of reg cannot be s. turn is held.
func (r *Registry) mayJoin(reg *Registration, old *Worker, s *Spec) error {
	if r.Get(reg.ID) != reg {
		return fmt.Errorf("%s: %w", s.URL, ErrUnknown)
	}
	if old != nil && old.State() >= Draining {
		return fmt.Errorf("%s: %w", s.URL, ErrLeaving)
	}
	if len(s.Models) == 0 {
		return fmt.Errorf("%s: it serves no model", s.URL)
	}
	if other := r.instances[s.Instance]; other != nil && other != old {
		return fmt.Errorf("%s: instance_id %.100q: %w for %s", s.URL, s.Instance, ErrExists, other.Spec.URL)
	}
	free := MaxHolders - r.seats.taken
	if old != nil {
		free += len(old.Holders)
	}
	if s.Ranks > min(free, MaxRanks) {
		return fmt.Errorf("%s: %w for %d ranks: a worker has at most %d, all workers at most %d", s.URL, ErrFull, s.Ranks, MaxRanks, MaxHolders)
	}
	return r.mayServe(s.URL, &Served{s.Models, s.Adapters})
}

// mayServe returns why a worker cannot serve s. turn is held.
func (r *Registry) mayServe(at string, s *Served) error {
	names := len(r.own)
	for name := range s.names() {
		if r.own[name] == nil {
			names++
		}
	}
	if names > MaxModels {
		return fmt.Errorf("%s: %w: all workers together have at most %d models and adapters", at, ErrFull, MaxModels)
	}
	return nil
}

// Adapters changes which adapters a worker has, in place: what is in flight goes on.
// Hooks of changes are told.
//
// Errors: [ErrUnknown] where w is no longer there, [ErrFull], of the names.
func (r *Registry) Adapters(w *Worker, adapters map[string]string) error {
	s := &Served{w.Spec.Models, adapters}
	if err := s.validate(); err != nil {
		return err
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	if w.State() == Removed {
		return fmt.Errorf("%s: %w", w.Spec.URL, ErrUnknown)
	}
	if err := r.mayServe(w.Spec.URL, s); err != nil {
		return err
	}
	r.unlist(w)
	r.list(w, s)
	r.show(nil, nil)
	tell(r.change, w)
	return nil
}

// Pin says which models and adapters a registration has, for good: what its engine lists
// no longer counts. Where it has a worker that one is replaced, and serves all the while.
func (r *Registry) Pin(id string, s Served) (*Registration, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	reg := r.Get(id)
	if reg == nil {
		return nil, fmt.Errorf("%.300s: %w", id, ErrUnknown)
	}
	if w := reg.Worker(); w != nil {
		spec := *w.Spec
		spec.Models, spec.Adapters = s.Models, s.Adapters
		if _, err := r.replace(reg, w, spec, true); err != nil {
			return reg, err
		}
	}
	given := *reg.Given()
	given.Models, given.Adapters = s.Models, s.Adapters
	reg.given.Store(&given)
	return reg, nil
}

// Note says how finding out about a registration's engine goes.
func (r *Registration) Note(j Job) {
	j.At = time.Now()
	r.job.Store(&j)
}

// Get returns the registration of an id, or of a URL; nil: there is none.
func (r *Registry) Get(id string) *Registration {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if reg := r.byID[id]; reg != nil {
		return reg
	}
	return r.byURL[id]
}

// Registrations returns all of them, in no order.
func (r *Registry) Registrations() []*Registration {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Values(r.byID))
}

// Update changes a registration's terms.
func (r *Registry) Update(id string, edit func(*Terms) error) (*Registration, error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	reg := r.Get(id)
	if reg == nil {
		return nil, fmt.Errorf("%.300s: %w", id, ErrUnknown)
	}
	w := reg.Worker()
	t := reg.Given().Terms
	if w != nil {
		t = *w.Terms()
	}
	if err := edit(&t); err != nil {
		return reg, err
	}
	if err := t.validate(); err != nil {
		return reg, err
	}
	s := *reg.Given()
	s.Terms = t
	reg.given.Store(&s)
	if w != nil {
		w.SetTerms(&t)
		tell(r.change, w)
	}
	return reg, nil
}
