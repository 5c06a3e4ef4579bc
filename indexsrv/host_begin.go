// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"fmt"
	"time"
)

// beginning is a host that takes up what it, or another one, knew before.
type beginning struct {
	why  string        // what it waits for
	done chan struct{} // closed when it is over
}

// waitsForState is what a host does that reads its state directory.
const waitsForState = "loading the state"

// durableTime is how long a change of the registrations waits at most until it is in
// a file: a slow disk makes nobody's request fail.
const durableTime = time.Second

// resumes reports whether the host may have something to go on from.
func (h *Host) resumes() bool { return h.keeper != nil || h.cfg.Peers != "" }

// begin registers what the state directory or a peer has, and what is configured.
//
// Errors: a configured worker that is refused.
func (h *Host) begin(ctx context.Context) error {
	found := false
	if h.keeper != nil {
		h.nowWaits(waitsForState)
		var err error
		if found, err = h.keeper.load(ctx); err != nil {
			return err
		}
	}
	if !found && h.cfg.Peers != "" {
		h.nowWaits("copying from a peer")
		var err error
		if found, err = h.peers.bootstrap(ctx); err != nil {
			return err
		}
	}
	if !found {
		for i := range h.cfg.Workers {
			err := h.reg.register(ctx, &h.cfg.Workers[i])
			h.auditRegistration(actorConfig, "register", &h.cfg.Workers[i], err)
			if err != nil {
				return fmt.Errorf("worker %s: %w", h.cfg.Workers[i].Instance, err)
			}
		}
	}
	if h.keeper != nil {
		h.keeper.begin()
	}
	return nil
}

// nowWaits says what a beginning host waits for.
func (h *Host) nowWaits(why string) {
	b := h.beginning.Load()
	if b == nil {
		b = &beginning{done: make(chan struct{})}
	}
	h.beginning.Store(&beginning{why, b.done})
}

// beginAside is begin behind the caller's back; the channel gets what it ends with.
func (h *Host) beginAside(ctx context.Context) <-chan error {
	h.beganAside = make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		defer close(h.beganAside)
		err := h.begin(ctx)
		if b := h.beginning.Swap(nil); b != nil {
			close(b.done)
		}
		ended <- err
	}()
	return ended
}

// begun waits, no longer than ctx and the cleanup timeout, until a beginning host has
// what it goes on from: what is registered before that might be registered twice.
func (h *Host) begun(ctx context.Context) error {
	b := h.beginning.Load()
	if b == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.CleanupTimeout)
	defer cancel()
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		return refuse(ErrUnavailable, "this host is %s: try again", b.why)
	}
}

// changed has a change of the registrations kept, and waits for that a little.
func (h *Host) changed(ctx context.Context) {
	if h.keeper == nil || h.draining.Load() && h.beginning.Load() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, durableTime)
	defer cancel()
	h.keeper.note()
	h.keeper.wait(ctx)
}
