// SPDX-License-Identifier: Apache-2.0

// Before: run.go, now and then while it replays. After: whoever watches it.

package openloop

import (
	"slices"
	"time"
)

// Standing is how far a replay is.
type Standing struct {
	At, Last                   time.Duration // since its begin; when the last request is due
	Rows, OK, InFlight, Failed int           // requests
	Example                    string        // of what failed
	Prompt, Cached, Oracle     int           // tokens, of answers that told what was cached
	Foreseen                   bool          // there is an oracle
	TTFTs                      int           // answers with a first token
	TTFT50, TTFT99             time.Duration
	Workers                    map[string]Part // by what the answers' header says
}

// Part is one worker's.
type Part struct{ Requests, Prompt, Cached int }

// standing sums up what is done. Cost: a pass over the rows, and one sort.
func (r *replay) standing() *Standing {
	c := r.client
	s := &Standing{
		At: c.since(), Rows: len(r.due), InFlight: int(c.inFlight.Load()), Failed: int(c.failed.Load()),
		Foreseen: r.oracle != nil, Workers: map[string]Part{},
	}
	if n := len(r.due); n > 0 {
		s.Last = r.due[n-1]
	}
	var first []time.Duration
	for i := range r.recs {
		rec := &r.recs[i]
		if !rec.done.Load() || !rec.ok() {
			continue
		}
		s.OK++
		if d, ok := rec.ttft(); ok {
			first = append(first, d)
		}
		p := s.Workers[rec.Worker]
		p.Requests++
		if n := rec.cached(); n != unknown {
			p.Prompt += rec.prompt()
			p.Cached += n
			s.Prompt += rec.prompt()
			s.Cached += n
			s.Oracle += max(rec.Oracle, 0)
		}
		s.Workers[rec.Worker] = p
	}
	if n := len(first); n > 0 {
		slices.Sort(first)
		s.TTFTs, s.TTFT50, s.TTFT99 = n, first[(n-1)/2], first[(n-1)*99/100]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for kind, text := range c.examples {
		if kind != errInterrupted {
			s.Example = kind + ": " + text
		}
	}
	return s
}
