// SPDX-License-Identifier: Apache-2.0

// Before: Stream (socket messages), or a recording. After: a Sink.

package feed

import (
	"fmt"
	"time"
)

// State says how far a stream can be trusted. The order is that of severity: a
// worker's state is the greatest of its streams'.
type State uint8

// The states of a stream.
const (
	StateActive   State = iota // exact
	StatePending               // not connected yet
	StateDegraded              // something may be missing: being repaired, or lost for good
	StateFailed                // no connection for a long time; still retried
)

// String returns the word of the HTTP contract.
func (s State) String() string {
	switch s {
	case StateActive:
		return "active"
	case StatePending:
		return "pending"
	case StateDegraded:
		return "degraded"
	case StateFailed:
		return "failed"
	}
	return "unknown"
}

// Config describes one stream: one publisher, one (worker, rank).
type Config struct {
	Rank           int    // data-parallel rank
	Endpoint       string // live socket, this rank's port already in it
	ReplayEndpoint string // replay socket, this rank's port already in it; "" where there is none
	Limits         Limits
	// Resume is where the content stands that the sink holds already; nil: it is empty.
	Resume *Position
}

// Limits bound what one stream may occupy and how long it waits. The zero
// value means the defaults.
//
// AbsenceTries is for answers that may have lost messages on their way: only with
// more than one is a batch that an answer happens to lack not taken for one that
// the publisher does not have, at the price of more requests where it is so.
type Limits struct {
	HeldBatches   int           // live batches that wait behind a gap; default 16,384
	HeldBytes     int           // and their payload bytes; default 64 MiB
	ReplayTries   int           // fruitless replay requests before a gap is given up; default 2
	AbsenceTries  int           // answers in a row before it is believed what they do not show; default 1
	RetryDelay    time.Duration // before the second try, doubling; default 200 ms
	ResyncDelay   time.Duration // between tries to get back what was given up; default 30 s
	ConfirmDelay  time.Duration // after connecting, until a silent stream is asked once more; default 1 s
	QuietDelay    time.Duration // after the last live batch, until it is asked whether one was missed; default 0: never
	SubscribeTime time.Duration // after connecting, until the subscription counts as told; default 50 ms
	ConnectPeriod time.Duration // without a connection before a stream is failed; default 30 s
}

func orElse[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Thorough returns l with what a relay wants in place of zeros: it is often the
// only one that asks the engine, so that what it concludes from one damaged answer
// all its subscribers would believe, and a batch that was missed as an engine falls
// silent would stay missed until it speaks again.
func (l Limits) Thorough() Limits {
	orElse(&l.AbsenceTries, 3)
	orElse(&l.ReplayTries, 4)
	orElse(&l.RetryDelay, 50*time.Millisecond)
	orElse(&l.QuietDelay, time.Second)
	return l
}

// WithDefaults returns l with the defaults in place of zeros.
func (l Limits) WithDefaults() Limits {
	l.setDefaults()
	return l
}

func (l *Limits) setDefaults() {
	orElse(&l.HeldBatches, 16_384)
	orElse(&l.HeldBytes, 64<<20)
	orElse(&l.ReplayTries, 2)
	orElse(&l.AbsenceTries, 1)
	orElse(&l.RetryDelay, 200*time.Millisecond)
	orElse(&l.ResyncDelay, 30*time.Second)
	orElse(&l.ConfirmDelay, time.Second)
	orElse(&l.SubscribeTime, 50*time.Millisecond)
	orElse(&l.ConnectPeriod, 30*time.Second)
}

// Status is what one stream has seen and where it stands.
type Status struct {
	State     State
	Repairing bool // a replay is wanted or under way; false once given up on
	Connected bool

	LastSeq uint64 // number of the last admitted batch
	HasSeq  bool   // false until one was admitted in this epoch
	Epoch   uint64 // the publisher's life, from 1

	Batches    uint64 // admitted
	Gaps       uint64 // runs of batches that were missing when a later one came live
	Recovered  uint64 // batches that came through replay
	Lost       uint64 // batches that never came
	Restarts   uint64
	Duplicates uint64 // batches that came again, or after they were given up
	Malformed  uint64 // messages and payloads that cannot be read as a whole

	Resumed uint64 // 1: the stream went on from [Config].Resume
	Cold    string // why it could not; "" where it did, may yet, or had none

	HeldBatches uint64 // live batches that wait behind a gap now
	HeldBytes   uint64

	LastBatch time.Time // when the last batch was admitted; zero: never
	LastError string    // why the stream is not active, or what last went wrong
}

// ReplayRequest is what a feed wants asked of the replay socket.
type ReplayRequest struct {
	ID    uint64 // never 0; names the request in the answers
	Start uint64 // first batch wanted
}

// Feed admits one stream's batches without its sockets. Inputs are method calls,
// and what it wants done is returned by Next; it reads no clock, starts no
// goroutine and does no I/O, so that equal inputs give equal results.
//
// A feed is told by Connected when messages can come; until then it is pending.
// It hands batches on in the publisher's order only: what comes early is held,
// within bounds, while the missing ones are asked of the replay socket; what
// nobody has is told lost. Without a replay socket nothing waits.
//
// Concurrency: one goroutine at a time.
type Feed struct {
	cfg    Config
	limits Limits
	sink   Sink

	staged Batch
	apply  func() // commit, made once

	// The cursor: the last number admitted, or passed over as lost, of this epoch.
	epoch   uint64
	has     bool
	last    uint64
	history history

	// What came live.
	seen    uint64 // one past the greatest number seen live or admitted, this epoch
	held    map[uint64]heldBatch
	heldLen int // bytes
	bad     badBatch

	suspects suspects
	anchor   anchor
	resume   resume

	// The connection.
	connected bool
	ever      bool      // connected at least once
	failed    bool      // not connected for too long, or unbound
	unbound   bool      // the live endpoint cannot be bound
	since     time.Time // not connected since then; zero: not known yet
	why       string    // why there is no connection
	telling   time.Time // until then the publisher may not know of the subscription; zero: it does

	repair repair

	faults    Faults
	lastBatch time.Time
	counts    counts
}

// counts are the counters that Status copies.
type counts struct {
	batches, gaps, recovered, lost, restarts, duplicates, malformed uint64
}

// heldBatch is a batch that waits for those before it.
type heldBatch struct {
	payload  []byte
	replayed bool // came through replay
}

// badBatch is an undecodable payload whose number was not admitted yet.
type badBatch struct {
	open bool
	seq  uint64
	sum  uint64
}

// New returns the feed of one stream into sink.
func New(cfg Config, sink Sink) *Feed {
	f := &Feed{cfg: cfg, limits: cfg.Limits, sink: sink, epoch: 1, held: map[uint64]heldBatch{}}
	f.apply = f.commit
	f.limits.setDefaults()
	f.repair.wantJoin = f.canReplay()
	if cfg.Resume != nil {
		f.take(cfg.Resume)
	}
	return f
}

func (f *Feed) canReplay() bool { return f.cfg.ReplayEndpoint != "" }

// next is the number that continues the stream.
func (f *Feed) next() uint64 {
	if f.has {
		return f.last + 1
	}
	return 0
}

// State returns where the stream stands.
func (f *Feed) State() State {
	switch {
	case f.failed:
		return StateFailed
	case !f.ever, f.connected && !f.has && !f.telling.IsZero():
		return StatePending
	case !f.connected, f.faults.set != 0, f.repairing():
		return StateDegraded
	}
	return StateActive
}

func (f *Feed) standing() Standing {
	return Standing{State: f.State(), Repairing: f.repairing() || f.ever && !f.connected && !f.failed, Epoch: f.epoch}
}

// Status returns a copy of all counters.
func (f *Feed) Status() Status {
	return Status{
		State:       f.State(),
		Repairing:   f.standing().Repairing,
		Connected:   f.connected,
		LastSeq:     f.last,
		HasSeq:      f.has,
		Epoch:       f.epoch,
		Batches:     f.counts.batches,
		Gaps:        f.counts.gaps,
		Recovered:   f.counts.recovered,
		Lost:        f.counts.lost,
		Restarts:    f.counts.restarts,
		Duplicates:  f.counts.duplicates,
		Malformed:   f.counts.malformed,
		Resumed:     f.resume.proved,
		Cold:        f.resume.why,
		HeldBatches: uint64(len(f.held)),
		HeldBytes:   uint64(f.heldLen),
		LastBatch:   f.lastBatch,
		LastError:   f.lastError(),
	}
}

// lastError says why the stream is not active; "" when it is.
func (f *Feed) lastError() string {
	switch f.State() {
	case StateActive:
		return ""
	case StatePending:
		return f.why
	case StateFailed:
		if f.unbound {
			return f.why
		}
		return fmt.Sprintf("no connection to %s for %v: %s", f.cfg.Endpoint, f.limits.ConnectPeriod, orUnknown(f.why))
	case StateDegraded:
	}
	switch {
	case !f.connected:
		return fmt.Sprintf("connection to %s lost: %s", f.cfg.Endpoint, orUnknown(f.why))
	case f.faults.set != 0, f.faults.reason != "":
		return f.faults.reason
	case f.resume.open:
		return fmt.Sprintf("asking %s whether it is still the publisher of the content loaded, which stands at batch %d", f.cfg.ReplayEndpoint, f.last)
	case f.resume.why != "":
		return fmt.Sprintf("began cold, %s: asking %s for batches from %d", f.resume.why, f.cfg.ReplayEndpoint, f.next())
	}
	return fmt.Sprintf("asking %s for batches from %d", f.cfg.ReplayEndpoint, f.next())
}

func orUnknown(why string) string {
	if why == "" {
		return "no answer"
	}
	return why
}
