// SPDX-License-Identifier: Apache-2.0

// Before: the router, with a prompt. After: an index host, in this process or not.

package index

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"kindex/gateway/fleet"
	"kindex/indexclient"
	"kindex/internal/lookup"
)

// Kinds of index.
const (
	Chain      = "chain"      // embedded
	Positional = "positional" // embedded
	Remote     = "remote"     // hosts elsewhere

	// Run is the name that the peer's configurations have for Chain. It is taken, with a
	// warning.
	Run = "run"
)

// Kinds are the names that [Options.Kind] takes, the default first.
var Kinds = []string{Chain, Positional, Remote, Run}

// Index answers who holds how much of a prompt, and tells the fleet's holders their
// pushed loads and levels.
//
// Concurrency: any goroutine.
type Index interface {
	// Lookup answers q into a. It takes no longer than the options' timeout; after an
	// error a is empty and the caller routes without it. Allocates nothing where the
	// index is embedded and a has room.
	//
	// Errors: [ErrSkipped]; else what [lookup.KindOf] tells apart. They are counted here.
	Lookup(ctx context.Context, q *lookup.Query, a *lookup.Answer) error

	// Joined and Left are the registry's hooks: an embedded index follows the worker's
	// events from Joined to Left. Neither waits. A worker that joins with the instance id
	// of one that is about to leave begins when nothing of the other is left.
	Joined(w *fleet.Worker)
	Left(w *fleet.Worker)

	// Unready says what keeps the index from being exact that may yet come: a line for
	// each worker, and whether hosts answer. Empty: it is ready.
	Unready() []string

	// Stream says how a joined worker is followed, for /workers.
	Stream(w *fleet.Worker) Stream

	// Stats returns what was counted so far.
	Stats() Stats

	// Close ends all calls and streams.
	Close() error
}

// Stream is how the index follows a worker.
type Stream struct {
	Status string // "pending", "active" (exact), "degraded", "failed", "none"
	Why    string // not active
	Blocks uint64 // held, all ranks
}

// Stats are an index's counters.
type Stats struct {
	Answered uint64             // lookups
	Failed   [numReasons]uint64 // lookups without an answer, by [Reason]
	Pauses   uint64             // that lookups were skipped for
	Paused   bool               // now
	Lost     time.Duration      // that failed lookups took
	Partial  map[string]uint64  // answers without the part of a host, by its target; nil: none
	Twice    uint64             // matches that two hosts named
	Readings uint64             // of loads, pushed
	Blocks   uint64             // held by all holders, as told last
}

// Options say what index there is.
type Options struct {
	Kind string // of Kinds; "": Chain

	// Of a remote one.

	Target  string        // as [indexclient.Dial] takes it
	Timeout time.Duration // of a lookup; 0: 5 ms. Of an embedded one: none
	TLS     *tls.Config   // over gRPC; nil: in the clear
	Token   func() (string, error)
	// Group and Tenant are asked for where a query names none; "": default.
	Group, Tenant string

	// Of an embedded one.

	Memory int64 // bound, bytes; 0: the index's own
	// Relay is what relays, and workers that serve their events themselves, are dialled
	// with.
	Relay RelayOptions
}

// RelayOptions are files, as the index host's settings of the same names.
type RelayOptions struct {
	TLS                      bool
	CA, Cert, Key, TokenFile string
}

// DefaultTimeout is how long a lookup at remote hosts may take.
const DefaultTimeout = 5 * time.Millisecond

// ErrSkipped is what a lookup gets that was not made, because the index has just
// failed several.
var ErrSkipped = lookup.Refuse(lookup.ErrUnavailable, "the index is not asked for a while: it has just failed several lookups")

// Validate returns what is wrong with o, each fault naming its option.
func (o *Options) Validate() []error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	switch o.Kind {
	case "", Chain, Positional, Run:
		if o.Target != "" {
			bad("index: is the target of --kv-index remote: leave it out, or give that")
		}
	case Remote:
		if o.Target == "" {
			bad("index: is missing: it must be unix:/path or host:port (a|b for replicas, a,b for parts) where kv-index is remote")
		} else if err := indexclient.CheckTarget(o.Target); err != nil {
			bad("index: %w", err)
		}
	default:
		bad("kv-index: %.40q must be %s, %s or %s", o.Kind, Chain, Positional, Remote)
	}
	if o.Timeout < 0 || o.Timeout > time.Minute {
		bad("index-timeout: must be 0 to 1m")
	}
	return faults
}

// Open returns the index that o describes. That remote hosts are not there is no
// error: they are tried again.
func Open(ctx context.Context, o Options, log *slog.Logger) (Index, error) {
	if faults := o.Validate(); len(faults) > 0 {
		return nil, faults[0]
	}
	if o.Kind == Run {
		log.Warn("kv-index: run is deprecated, it means chain: say chain")
	}
	if o.Kind == Remote {
		return openRemote(ctx, &o, log)
	}
	return openEmbedded(&o, log)
}

var answers = sync.Pool{New: func() any { return new(lookup.Answer) }}

// GetAnswer returns an answer with room from answers before it.
func GetAnswer() *lookup.Answer {
	a, ok := answers.Get().(*lookup.Answer)
	if !ok {
		panic("BUG: index: the pool holds something else than answers")
	}
	return a
}

// PutAnswer gives back an answer that nobody looks at any more.
func PutAnswer(a *lookup.Answer) {
	if cap(a.Matches) > maxKeptMatches {
		return
	}
	a.Reset()
	answers.Put(a)
}

// maxKeptMatches bounds what one answer keeps: holders of several fleets.
const maxKeptMatches = 1 << 14
