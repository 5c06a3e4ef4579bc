// SPDX-License-Identifier: Apache-2.0

package lookup

import "context"

// Index answers lookups: a host in this process, or a client of hosts elsewhere.
//
// Concurrency: any goroutine. Errors: a [Refusal] or what wraps one, so that
// [KindOf] finds the kind; context.Canceled where the caller ended the call.
type Index interface {
	// Lookup answers q into a, which it empties first; after an error a is empty.
	Lookup(ctx context.Context, q *Query, a *Answer) error

	// Workers returns the workers that f chooses, in the order of their registration.
	Workers(ctx context.Context, f Filter) ([]Worker, error)

	// Watch calls fn with the whole table of the workers that f chooses and then with
	// each change, one call at a time, until ctx ends or fn returns an error, and
	// returns that. A caller that is slow misses no change, but gets several as one. The
	// Update belongs to fn.
	//
	// A connection that breaks is made again; fn gets a whole table then.
	Watch(ctx context.Context, f Filter, fn func(*Update) error) error

	// Loads calls fn with how all ranks of the workers that f chooses stand, and then
	// with those that changed, as Watch does: one call at a time, each belonging to fn,
	// until ctx ends or fn returns an error. A new record comes within some 20 ms; a
	// change of anything else within about a second. A connection that breaks is told, and
	// made again.
	Loads(ctx context.Context, f Filter, fn func(*LoadUpdate) error) error

	// Close ends all calls and what is behind them.
	Close() error
}
