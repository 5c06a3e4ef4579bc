// SPDX-License-Identifier: Apache-2.0

// Before: fleet.go, which has a request, and rank.go, which ended one. After:
// admin.go, which tells of them.

package engine

import (
	"sync"
	"time"
)

// maxJournal is how many requests a fleet remembers.
const maxJournal = 100_000

// Entry is one request, as a fleet remembers it. Tokens unless said otherwise.
type Entry struct {
	N        uint64 `json:"n"`                   // from 1, in the order of arrival
	ID       string `json:"id"`                  // what the front told the client
	ClientID string `json:"client_id,omitempty"` // what the client told the front
	Worker   string `json:"worker"`
	Rank     int    `json:"rank"`
	Model    string `json:"model"`

	Arrived    float64 `json:"arrived"`               // Unix time in s, as the next three
	Admitted   float64 `json:"admitted,omitempty"`    // 0: not yet, or never
	FirstToken float64 `json:"first_token,omitempty"` // the same
	Ended      float64 `json:"ended,omitempty"`       // 0: it runs
	Queue      float64 `json:"queue_s"`               // from its arrival until it was let in

	Prompt    int    `json:"prompt_tokens"`
	Cached    int    `json:"cached_tokens"`          // of the prompt, found cached where it went
	Best      int    `json:"best_at_arrival_tokens"` // of the prompt, cached in the best place when it arrived
	Output    int    `json:"output_tokens"`
	Finish    string `json:"finish"`    // stop, length, abort, error; "": it runs
	Preempted int    `json:"preempted"` // times
	Error     string `json:"error,omitempty"`
}

// journal remembers the last requests of a fleet.
//
// Concurrency: any goroutine.
type journal struct {
	mu   sync.Mutex
	from uint64   // number of the oldest that is kept; guarded by mu
	kept []*Entry // oldest first; guarded by mu
	max  int
}

func newJournal(most int) *journal { return &journal{from: 1, max: most} }

// add numbers an entry and keeps it.
func (j *journal) add(e *Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e.N = j.from + uint64(len(j.kept))
	j.kept = append(j.kept, e)
	if len(j.kept) >= 2*j.max {
		n := len(j.kept) - j.max
		j.kept = append(make([]*Entry, 0, 2*j.max), j.kept[n:]...)
		j.from += uint64(n)
	}
}

// change changes an entry.
func (j *journal) change(e *Entry, f func(*Entry)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(e)
}

// since returns up to limit entries after number n, the number of the last of
// them, and how many after n were forgotten.
func (j *journal) since(n uint64, limit int) (out []Entry, next, lost uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	kept, from := j.kept, j.from
	if over := len(kept) - j.max; over > 0 {
		kept, from = kept[over:], from+uint64(over)
	}
	next = n
	if n+1 < from {
		lost = from - n - 1
		n = from - 1
	}
	skip := n + 1 - from
	if skip >= uint64(len(kept)) {
		return []Entry{}, next, lost
	}
	kept = kept[skip:]
	kept = kept[:min(limit, len(kept))]
	out = make([]Entry, len(kept))
	for i, e := range kept {
		out[i] = *e
		next = e.N
	}
	return out, next, lost
}

// forget begins anew: the next request is number 1. Those that run are changed on
// without being told of.
func (j *journal) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.from, j.kept = 1, nil
}

// end fills in what became of a request.
func (e *Entry) end(s *Stats) {
	e.Rank, e.Cached, e.Output, e.Preempted = s.Rank, s.Cached, s.Output, s.Preempted
	e.Admitted, e.FirstToken, e.Ended = unix(s.Admitted), unix(s.FirstToken), unix(s.Ended)
	e.Arrived, e.Queue = unix(s.Arrived), s.Queued().Seconds()
	if e.Finish == "" {
		e.Finish = s.Finish
	}
}

// unix returns t as Unix time in s; 0 for none.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return seconds(t)
}
