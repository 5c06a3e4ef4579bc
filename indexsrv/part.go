// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"errors"
)

// part is a server of the host beside its HTTP one: another way in to the same
// answers. A host without the setting that asks for it has no such part.
//
// Order: listen, then serve in a goroutine of its own, then drain, each once.
type part interface {
	// listen takes the part's address, so that a taken one is known before
	// anything starts.
	listen() error
	// serve answers until drain, and returns what kept it from serving.
	serve() error
	// drain refuses what is new and lets what runs end, no longer than ctx; then
	// it cuts it short. serve has returned, or is about to, when it returns.
	drain(ctx context.Context) error
}

// serveParts starts all parts; the channel gets what each ends with.
func (h *Host) serveParts() <-chan error {
	ended := make(chan error, len(h.parts))
	for _, p := range h.parts {
		go func() { ended <- p.serve() }()
	}
	return ended
}

// drainParts drains all parts at once.
func (h *Host) drainParts(ctx context.Context) error {
	ended := make(chan error, len(h.parts))
	for _, p := range h.parts {
		go func() { ended <- p.drain(ctx) }()
	}
	var errs error
	for range h.parts {
		errs = errors.Join(errs, <-ended)
	}
	return errs
}
