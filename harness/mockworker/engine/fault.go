// SPDX-License-Identifier: Apache-2.0

// Before: admin.go, which is asked for a fault. After: the fronts, engine.go and
// publisher.go, which have it.

package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// The faults a worker can have.
const (
	FaultDrop      = "drop"              // batches are lost on their way
	FaultDelay     = "delay"             // batches come late
	FaultAdmitWait = "admit-delay"       // requests are let in late
	FaultAdmitRate = "admit-rate"        // requests are let in one by one
	FaultRestart   = "restart-publisher" // another life of the events
	FaultPause     = "pause"             // no pass begins
	FaultRefuse    = "refuse"            // the fronts' ports are closed, who is connected is cut
	FaultStall     = "stall"             // answers stop coming
	FaultFail      = "fail"              // requests are answered with an error
	FaultStarve    = "starve"            // processors are taken from the process, and passes take longer
	FaultCorrupt   = "corrupt"           // batches' bytes are changed on their way
)

// Faults returns every kind.
func Faults() []string {
	return []string{
		FaultDrop, FaultDelay, FaultAdmitWait, FaultAdmitRate, FaultRestart, FaultPause, FaultRefuse, FaultStall, FaultFail, FaultStarve, FaultCorrupt,
	}
}

// FaultState is how one kind of fault stands.
type FaultState struct {
	Active  float64 `json:"active"`          // what it is set to; 0: not there
	Effects uint64  `json:"effects"`         // what it did since the worker began: batches, requests, passes, connections, lives
	CPU     float64 `json:"cpu_s,omitempty"` // of starve: s of processors that it took, for all workers of the fleet
}

// faults are what a worker has.
//
// Concurrency: any goroutine.
type faults struct {
	worker *Worker

	mu       sync.Mutex
	effects  map[string]uint64 // guarded by mu
	delay    time.Duration     // of being let in; guarded by mu
	apart    time.Duration     // guarded by mu
	paused   bool              // guarded by mu
	refused  bool              // guarded by mu
	share    float64           // of the time that passes do not get; guarded by mu
	passes   uint64            // when share was set; guarded by mu
	after    int               // tokens after which answers stall; below 0: they do not; guarded by mu
	released chan struct{}     // closed when answers go on; guarded by mu
	status   int               // of requests that fail; 0: none do; guarded by mu
	count    int               // of these, how many more; below 0: no end; guarded by mu
	until    time.Time         // when they fail no more; zero: no end; guarded by mu
}

func (f *faults) init(w *Worker) {
	f.worker, f.effects, f.after, f.released = w, make(map[string]uint64), -1, make(chan struct{})
}

// slowAdmission sets how late requests are let in, and how far apart.
func (f *faults) slowAdmission(delay, apart time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay, f.apart = delay, apart
	f.worker.Engine.SlowAdmission(delay, apart)
}

// admission returns what slowAdmission set.
func (f *faults) admission() (delay, apart time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.delay, f.apart
}

// arrived counts a request that is let in late.
func (f *faults) arrived() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.delay > 0 {
		f.effects[FaultAdmitWait]++
	}
	if f.apart > 0 {
		f.effects[FaultAdmitRate]++
	}
}

// pause lets no pass begin, or lets them go on.
func (f *faults) pause(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if on && !f.paused {
		f.effects[FaultPause]++
	}
	f.paused = on
	f.worker.Engine.Pause(on)
}

// refuse closes the fronts' ports and cuts their connections, or opens them.
func (f *faults) refuse(on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.worker.gates() {
		cut, err := g.shut(on)
		f.effects[FaultRefuse] += uint64(cut)
		if err != nil {
			return err
		}
	}
	f.refused = on
	return nil
}

// gates returns the listeners of the worker's fronts.
func (w *Worker) gates() []*gate {
	var out []*gate
	if w.http != nil {
		out = append(out, w.http.gate)
	}
	if w.grpc != nil {
		out = append(out, w.grpc.gate)
	}
	return out
}

// starve takes a share of the time from passes, and of that of all processors; 0 gives
// it back.
func (f *faults) starve(share float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.worker.passes()
	if f.share > 0 {
		f.effects[FaultStarve] += n - f.passes
	}
	f.share, f.passes = share, n
	f.worker.Engine.Starve(share)
	f.worker.fleet.burner.set(f.worker, share)
}

func (w *Worker) passes() (n uint64) {
	for _, l := range w.Engine.Loads() {
		n += l.Passes
	}
	return n
}

// stall holds answers back after a number of tokens; below 0 they go on.
func (f *faults) stall(after int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = after
	close(f.released) // whoever waits looks again
	f.released = make(chan struct{})
}

// stalled waits for as long as an answer's n-th token is held back.
//
// Errors: ctx's.
func (f *faults) stalled(ctx context.Context, n int) error {
	for waited := false; ; waited = true {
		f.mu.Lock()
		held, released := f.after >= 0 && n > f.after, f.released
		if held && !waited {
			f.effects[FaultStall]++
		}
		f.mu.Unlock()
		if !held {
			return nil
		}
		select {
		case <-released:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// failWith has requests answered with a status: count of them, below 0 all, for
// span, 0 without an end. Status 0 ends it.
func (f *faults) failWith(status, count int, span time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status, f.count, f.until = status, count, time.Time{}
	if span > 0 {
		f.until = time.Now().Add(span)
	}
}

// failing reports whether the next request fails. The caller holds mu.
func (f *faults) failing() bool {
	return f.status != 0 && f.count != 0 && (f.until.IsZero() || time.Now().Before(f.until))
}

// faultError is what a request gets that was to fail.
type faultError struct{ status int }

func (e *faultError) Error() string {
	return fmt.Sprintf("%s: a fault that was asked for", http.StatusText(e.status))
}

// fail returns the error of a request that is to fail.
func (f *faults) fail() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.failing() {
		return nil
	}
	if f.count > 0 {
		f.count--
	}
	f.effects[FaultFail]++
	return &faultError{f.status}
}

// restart begins another life of the events, with the cache kept or emptied: numbers
// from 0, new sockets at the same ports.
func (f *faults) restart(kept bool) error {
	f.mu.Lock()
	f.effects[FaultRestart]++
	f.mu.Unlock()
	if !kept {
		return f.worker.Engine.Reopen()
	}
	var errs []error
	for _, p := range f.worker.Engine.Publishers() {
		errs = append(errs, p.Rebind())
	}
	return errors.Join(errs...)
}

// clear undoes every fault.
func (f *faults) clear() {
	for _, p := range f.worker.Engine.Publishers() {
		p.Drop(0, false)
		p.Delay(0)
		p.Corrupt(0)
	}
	f.slowAdmission(0, 0)
	f.pause(false)
	_ = f.refuse(false) // a port that somebody took stays refused
	f.starve(0)
	f.stall(-1)
	f.failWith(0, 0, 0)
}

// states returns how every kind stands.
func (f *faults) states() map[string]FaultState {
	out := make(map[string]FaultState)
	passes := f.worker.passes()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, kind := range Faults() {
		out[kind] = FaultState{Effects: f.effects[kind]}
	}
	set := func(kind string, active float64, effects uint64) {
		s := out[kind]
		s.Active = active
		s.Effects += effects
		out[kind] = s
	}
	for _, p := range f.worker.Engine.Publishers() {
		h := p.harmed()
		set(FaultDrop, out[FaultDrop].Active+float64(h.drop), h.dropped)
		set(FaultCorrupt, out[FaultCorrupt].Active+float64(h.corrupt), h.corrupted)
		set(FaultDelay, max(out[FaultDelay].Active, h.delay.Seconds()*1e3), h.delayed)
	}
	set(FaultAdmitWait, f.delay.Seconds()*1e3, 0)
	if f.apart > 0 {
		set(FaultAdmitRate, 1/f.apart.Seconds(), 0)
	}
	set(FaultPause, number(f.paused), 0)
	set(FaultRefuse, number(f.refused), 0)
	set(FaultStall, number(f.after >= 0), 0)
	if f.failing() {
		set(FaultFail, float64(f.status), 0)
	}
	if f.share > 0 {
		set(FaultStarve, f.share, passes-f.passes)
	}
	starved := out[FaultStarve]
	starved.CPU = f.worker.fleet.burner.seconds()
	out[FaultStarve] = starved
	return out
}

func number(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
