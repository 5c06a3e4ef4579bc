// SPDX-License-Identifier: Apache-2.0

// Before: readings of an engine's load (package load). After: Subscription.

package relay

import "time"

// LoadSource knows the newest load of one rank. The zero of everything is "none
// known". Concurrency: any goroutine.
type LoadSource interface {
	// Pace returns the state that paces the records of one stream.
	Pace() LoadPace
	// Notify has fn called, on any goroutine, whenever a record may have become
	// due before its time because the load moved. nil ends it.
	Notify(fn func())
}

// LoadPace paces the records of one rank on one subscription. Concurrency: one
// goroutine.
type LoadPace interface {
	// WithBatch returns the record that goes with batches sent now, appended to
	// dst: an encoded smg.grpc.common.EngineLoad. dst alone: none is known.
	WithBatch(dst []byte, now time.Time) []byte
	// Alone returns the record that is due by itself at now, appended to dst, or
	// dst alone where none is; and when to ask again at the latest (zero: when
	// notified).
	Alone(dst []byte, now time.Time) (record []byte, next time.Time)
}
