// SPDX-License-Identifier: Apache-2.0

// Before: DELETE /workers, drains, shutdown. After: pools without the worker.

package fleet

import (
	"fmt"
	"time"
)

// Remove ends a registration at once. Leases on its worker end by themselves and touch
// nobody else. It returns the worker that it had; nil: none yet.
func (r *Registry) Remove(id string) (*Worker, error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	reg := r.Get(id)
	if reg == nil {
		return nil, fmt.Errorf("%.300s: %w", id, ErrUnknown)
	}
	return r.remove(reg), nil
}

// remove is Remove with turn held.
func (r *Registry) remove(reg *Registration) *Worker {
	if !r.forget(reg) {
		return nil
	}
	w := reg.Worker()
	if w != nil {
		r.part(w)
		tell(r.leave, w)
	}
	return w
}

// drainLook is how often a drain looks whether its worker is done.
const drainLook = 20 * time.Millisecond

// Drain ends a registration gently: its worker is given nothing new, and is removed when
// it has no request in flight, or after timeout. It returns at once; a second call
// changes nothing.
func (r *Registry) Drain(id string, timeout time.Duration) (*Registration, error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	reg := r.Get(id)
	if reg == nil {
		return nil, fmt.Errorf("%.300s: %w", id, ErrUnknown)
	}
	w := reg.Worker()
	if w == nil || timeout <= 0 {
		r.remove(reg)
		return reg, nil
	}
	if w.SetState(Draining) == Draining {
		return reg, nil
	}
	tell(r.change, w)
	select {
	case <-r.stop:
	default:
		r.leaving.Go(func() { r.drained(reg, w, timeout) })
	}
	return reg, nil
}

// drained waits for the end of a drain and removes.
func (r *Registry) drained(reg *Registration, w *Worker, timeout time.Duration) {
	look := time.NewTicker(drainLook)
	defer look.Stop()
	end := time.NewTimer(timeout)
	defer end.Stop()
	for over := false; !over && w.State() == Draining && w.InFlight() > 0; {
		select {
		case <-look.C:
		case <-end.C:
			over = true
		case <-r.stop:
			return
		}
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	r.remove(reg)
}
