// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"sync/atomic"
	"time"
)

// unknown stands where nobody said a number or no instant came.
const unknown = -1

// Record is what is kept of one request. Instants are since the replay's begin.
//
// Concurrency: the request's goroutine until done is set; afterwards anybody reads.
type Record struct {
	Row, Input, Output    int // the trace's number; tokens it asks for
	Due, Sent, First, End time.Duration
	Last                  time.Duration // of the answer's text
	Longest               time.Duration // gap between two pieces of text
	Pieces                int           // events with text
	Prompt, Cached        int           // tokens, as the answer's usage says
	Completion            int
	Predicted             int // cached tokens that a gateway foretold
	Finish                string
	Error                 string // its kind; "" of a whole answer
	ID                    string // the answer's
	Worker                string // as the answer's header says, then as the fleet does
	PrefixReuse, Oracle   int    // what could have been cached, in tokens; see [PrefixReuse], [Oracle]

	// As the fleet says; FleetCached is unknown where it said nothing.
	FleetPrompt, FleetCached, BestAtArrival int
	Rank                                    int
	Queue                                   float64 // seconds

	done atomic.Bool
}

// Kinds of errors beside "status N" and "error NAME".
const (
	errConnect     = "connect"
	errTimeout     = "timeout"
	errCut         = "cut"         // ended before the answer was whole
	errProtocol    = "protocol"    // no such answer is known
	errDropped     = "dropped"     // never sent: too many were in flight
	errInterrupted = "interrupted" // the replay was ended meanwhile
	errNotSent     = "not sent"    // the replay was ended before it was due
)

// TTFT is the time from sending to the first text; false without one.
func (r *Record) ttft() (time.Duration, bool) { return r.First - r.Sent, r.First >= 0 }

// itl is the mean gap between pieces of text; 0 of fewer than two.
func (r *Record) itl() time.Duration {
	if r.Pieces < 2 {
		return 0
	}
	return (r.Last - r.First) / time.Duration(r.Pieces-1)
}

// ok reports whether the whole answer came.
func (r *Record) ok() bool { return r.Error == "" }

// sent reports whether the request left this program.
func (r *Record) sent() bool { return r.Sent >= 0 }

// cached returns how many tokens the engine did not compute, by usage or by the fleet.
func (r *Record) cached() int {
	if r.Cached != unknown {
		return r.Cached
	}
	return r.FleetCached
}

// prompt returns how many tokens the prompt had, as the engine counts.
func (r *Record) prompt() int {
	switch {
	case r.Prompt != unknown:
		return r.Prompt
	case r.FleetPrompt != unknown:
		return r.FleetPrompt
	default:
		return max(r.Input, 1)
	}
}

func newRecords(rows []Row, due []time.Duration) []Record {
	out := make([]Record, len(rows))
	for i := range rows {
		out[i] = Record{
			Row: rows[i].N, Input: rows[i].Input, Output: rows[i].Output, Due: due[i], Sent: unknown, First: unknown, Last: unknown, End: unknown,
			Prompt: unknown, Cached: unknown, Completion: unknown, Predicted: unknown, Oracle: unknown, FleetPrompt: unknown, FleetCached: unknown, BestAtArrival: unknown,
			Rank: unknown, Queue: unknown, Error: errNotSent,
		}
	}
	return out
}
