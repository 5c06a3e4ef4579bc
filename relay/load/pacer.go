// SPDX-License-Identifier: Apache-2.0

package load

// Before this file: a subscription that sends batches. After it: the records on
// them, and those that go alone.

import (
	"math"
	"time"
)

// The pace of records without events, and what counts as a record that moved:
// those of the closest peer's relay, whose gateways are tuned to them.
const (
	tick            = 100 * time.Millisecond // between records that moved, at least
	beatPeriod      = time.Second
	quietPeriod     = 5 * time.Second // after beatsUnchanged heartbeats that said nothing new
	beatsUnchanged  = 2
	movedUsage      = 0.005 // share of the pool
	movedThroughput = 50    // tokens a second
	movedShare      = 0.05  // of the throughput sent last
)

// Source is one rank of a [Meter], as its subscriptions see it.
//
// Concurrency: any goroutine.
type Source struct{ k *rank }

// Source returns a rank's source, or nil where there is no such rank.
func (m *Meter) Source(i int) *Source {
	if m == nil || i < 0 || i >= len(m.ranks) {
		return nil
	}
	return &Source{k: &m.ranks[i]}
}

// Pace returns the state that paces one stream's records.
func (s *Source) Pace() *Pacer { return &Pacer{k: s.k} }

// Notify has fn called whenever a record may have become due before its time,
// because a new reading says something else. fn runs on the goroutine that reads
// the load and must not block. Each call replaces the one before; nil ends it.
func (s *Source) Notify(fn func()) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	s.k.notify = fn
}

// Pacer decides when one stream gets a record of one rank, and in which form: one
// with every batch; one alone when the load moved, and as a heartbeat when there
// was none for a second, for five seconds once two have said nothing new. What
// describes rather than steers is in the stream's first record and in those that
// go alone.
//
// Concurrency: one goroutine. Cost: a few comparisons, and the record's bytes.
type Pacer struct {
	k       *rank
	sent    *Reading  // on the stream last
	silence uint64    // seconds of silence that it told
	at      time.Time // when it was sent
	beats   int       // heartbeats in a row that said nothing new
}

// WithBatch returns the record that goes with batches sent now, appended to dst:
// an encoded smg.grpc.common.EngineLoad. dst alone: nothing is known yet.
func (p *Pacer) WithBatch(dst []byte, now time.Time) []byte {
	r := p.k.now.Load()
	if r == nil {
		return dst
	}
	full := p.sent == nil
	p.note(r, now)
	p.beats = 0
	return r.AppendRecord(dst, now, full, false)
}

// Alone returns the record that is due by itself now, appended to dst, or dst
// alone where none is; and when to ask again at the latest, zero meaning when
// notified.
func (p *Pacer) Alone(dst []byte, now time.Time) (record []byte, next time.Time) {
	r := p.k.now.Load()
	switch {
	case r == nil:
		return dst, time.Time{}
	case p.sent == nil:
	case p.moved(r, now):
		if early := p.at.Add(tick); now.Before(early) {
			return dst, early
		}
		p.beats = 0
	case now.Sub(p.at) >= p.period():
		p.beats++
	default:
		return dst, p.next(r, now)
	}
	p.note(r, now)
	return r.AppendRecord(dst, now, true, true), p.next(r, now)
}

func (p *Pacer) period() time.Duration {
	if p.beats >= beatsUnchanged {
		return quietPeriod
	}
	return beatPeriod
}

// next returns when a record becomes due though nothing is read: the heartbeat, or
// the next full second of the engine's silence.
func (p *Pacer) next(r *Reading, now time.Time) time.Time {
	next := p.at.Add(p.period())
	if d, ok := r.Silence(now); ok && r.Running.Value > 0 {
		if second := now.Add(time.Second - d%time.Second); second.Before(next) {
			return second
		}
	}
	return next
}

func (p *Pacer) note(r *Reading, now time.Time) {
	p.sent, p.at, p.silence = r, now, silentSeconds(r, now)
}

func silentSeconds(r *Reading, now time.Time) uint64 {
	d, _ := r.Silence(now)
	return uint64(d / time.Second)
}

// moved reports whether r says something that the stream has not been told.
func (p *Pacer) moved(r *Reading, now time.Time) bool {
	if p.silence != silentSeconds(r, now) {
		return true
	}
	s := p.sent
	return s != r && (s.Running != r.Running || s.Waiting != r.Waiting || s.WaitingUncached != r.WaitingUncached ||
		s.MaxRunning != r.MaxRunning || s.PrefillPending != r.PrefillPending || s.ReportsSteps != r.ReportsSteps ||
		usageMoved(s.Usage, r.Usage) || usageMoved(s.ActiveUsage, r.ActiveUsage) ||
		throughputMoved(s.Throughput.Value, r.Throughput.Value))
}

func usageMoved(a, b Opt[float64]) bool {
	return a.Known != b.Known || math.Abs(a.Value-b.Value) > movedUsage
}

func throughputMoved(a, b float64) bool {
	d := math.Abs(a - b)
	return d > movedThroughput || d > movedShare*a
}

// paces reports whether two readings differ in anything that makes a record move.
func (r *Reading) paces(o *Reading) bool {
	return r.Running != o.Running || r.Waiting != o.Waiting || r.WaitingUncached != o.WaitingUncached ||
		r.MaxRunning != o.MaxRunning || r.PrefillPending != o.PrefillPending || r.ReportsSteps != o.ReportsSteps ||
		r.Usage != o.Usage || r.ActiveUsage != o.ActiveUsage || r.Throughput != o.Throughput
}
