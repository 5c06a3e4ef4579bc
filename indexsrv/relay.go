// SPDX-License-Identifier: Apache-2.0

// Before: relay/client (one rank of a relay, admitted). After: indexSink, on a lane.

package indexsrv

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"kindex/relay/client"
	"kindex/relay/feed"
	"kindex/relay/normal"
)

// relayed is one rank of a relay: what a [feed.Stream] is to an engine's sockets.
// The relay has admitted the batches and the client has their order; what is left
// is where the stream stands.
//
// Concurrency: the methods of [client.Handler] are the client's, one call at a
// time. The others may be called from any goroutine.
type relayed struct {
	rank     uint32
	endpoint string
	period   time.Duration // without a connection before the stream is failed
	mend     time.Duration // between tries to get back what the index refused
	sink     *indexSink
	run      func(feed.Job) // nil: a job runs where it is
	hooks    streamHooks
	changed  func(before, now feed.State, why string)
	tell     func(why string) // what became of the content it began with
	group    *relayGroup

	gate   sync.Mutex // the client's, but while the stream is frozen; before mu and any lane
	mu     sync.Mutex // held while a job runs, so that nobody sees a batch half applied
	closed bool

	connected, ever, failed bool
	why                     string      // there is no connection
	waiting                 *time.Timer // for a connection
	mending                 *time.Timer // until the content is asked for again; nil: no need
	standing                client.Standing
	faults                  feed.Faults // the index's
	state                   feed.State  // told last

	// What was seen. Lives are numbered from 1 here, whatever the relay calls them.
	lives   uint64
	life    uint64 // the relay's word for this one; 0: none yet
	has     bool
	last    uint64
	counts  relayCounts
	resume  *Resume        // what the stream began with, until it is known what became of it; nil: nothing
	start   *client.Cursor // how the client goes on from there; nil: it does not
	cold    string         // why it did not
	applied time.Time      // when the last batch was

	load atomic.Pointer[loadRecord] // the newest; nil: none

	job relayJob
}

// relayCounts are the counters of a relayed stream that are its own.
type relayCounts struct {
	batches, lost, resets, snapshots, resumed uint64
}

// mendable are the faults that another try may not have. Blocks of another size are
// of that size again.
const mendable = feed.FaultOrphans | feed.FaultRefused

var (
	_ client.Handler       = (*relayed)(nil)
	_ client.ResumeHandler = (*relayed)(nil)
)

// relayJob is what one call of the client does to the index. It implements
// [feed.Job].
type relayJob struct {
	r     *relayed
	begun bool
	empty bool // take everything out first
	ops   []normal.Op
	after func() // under the stream's lock, once it is applied
	took  time.Duration
}

// Prepare implements [feed.Job].
func (j *relayJob) Prepare() bool {
	r := j.r
	if !j.begun {
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return false
		}
		j.begun, r.sink.ops = true, j.ops
		if j.empty {
			// Before a lookup can see that it is.
			r.standing = client.Standing{Repairing: true, Why: "receiving the rank's content"}
			r.settle()
		}
		return true
	}
	j.after()
	r.settle()
	j.begun = false
	r.mu.Unlock()
	return false
}

// Apply implements [feed.Job].
func (j *relayJob) Apply() {
	begun := time.Now()
	if j.empty {
		j.r.sink.empty(&j.r.faults)
	}
	j.r.sink.Commit(&j.r.faults)
	j.took = time.Since(begun)
}

// do applies ops on the stream's lane and waits. A snapshot's chunk and a batch
// are each applied in one turn of the shard.
func (r *relayed) do(empty bool, ops []normal.Op, after func()) {
	r.gate.Lock()
	defer r.gate.Unlock()
	r.job = relayJob{r: r, empty: empty, ops: ops, after: after}
	if r.run != nil {
		r.run(&r.job)
		return
	}
	for r.job.Prepare() {
		r.sink.InTurn(r.job.Apply)
	}
}

// Connected implements [client.Handler].
func (r *relayed) Connected(client.Contract) {
	r.locked(func() {
		r.connected, r.ever, r.failed, r.why = true, true, false, ""
		r.standing = client.Standing{Repairing: true, Why: "asking for the rank's content"}
		r.waiting.Stop()
	})
}

// Disconnected implements [client.Handler].
func (r *relayed) Disconnected(why string) {
	r.locked(func() {
		if r.connected {
			r.waiting.Reset(r.period)
		}
		r.connected, r.why = false, why
	})
}

// again asks for the whole content, of which the index lacks something.
func (r *relayed) again() {
	r.mu.Lock()
	wanted := !r.closed && r.faults.Has(mendable)
	r.mending = nil
	r.mu.Unlock()
	if wanted {
		r.group.again(r.rank)
	}
}

// tooLong is called when there was no connection for the period.
func (r *relayed) tooLong() {
	r.locked(func() { r.failed = !r.connected })
}

// Standing implements [client.Handler].
func (r *relayed) Standing(s client.Standing) {
	r.locked(func() { r.standing = s })
}

func (r *relayed) locked(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		fn()
		r.settle()
	}
}

// Reset implements [client.Handler].
func (r *relayed) Reset(life uint64, _ string) {
	r.do(true, nil, func() {
		r.counts.resets++
		r.begin(life)
	})
}

// Begin implements [client.Handler].
func (r *relayed) Begin(s *client.Snapshot) {
	r.do(true, nil, func() { r.begin(s.Epoch) })
}

// begin begins a content, of another life or of the same. The lock is held.
func (r *relayed) begin(life uint64) {
	if life != r.life || r.lives == 0 {
		r.lives++
	}
	r.life, r.has = life, false
	r.sink.norm.Restart()
}

// Chunk implements [client.Handler].
func (r *relayed) Chunk(ops []normal.Op) { r.do(false, ops, func() {}) }

// End implements [client.Handler].
func (r *relayed) End(s *client.Snapshot) {
	r.gate.Lock()
	defer r.gate.Unlock()
	r.locked(func() {
		r.counts.snapshots++
		r.has, r.last = true, s.Through
	})
}

// Batch implements [client.Handler].
func (r *relayed) Batch(b *client.Batch) {
	came := time.Now()
	r.do(false, b.Ops, func() {
		// Without a reset it is the same life, or its first word: a relay that
		// restarted goes on from a cursor that proves it, by a name of its own.
		r.lives, r.life = max(r.lives, 1), b.Epoch
		r.counts.batches++
		r.has, r.last = true, b.Sequence
		r.applied = time.Now()
		r.sink.events += uint64(b.Events)
		r.sink.timestamp = b.Timestamp
	})
	if r.hooks.Applied != nil {
		r.hooks.Applied(time.Since(came))
	}
	if r.hooks.Shard != nil {
		r.hooks.Shard(r.job.took)
	}
}

// Hole implements [client.Handler].
func (r *relayed) Hole(h *client.Hole) {
	r.gate.Lock()
	defer r.gate.Unlock()
	r.locked(func() {
		r.counts.lost += h.To - h.From + 1
		r.has, r.last = true, h.To
	})
}

// settle makes known where the stream stands. The lock is held.
func (r *relayed) settle() {
	// What is refused for want of memory would be refused again, and more: asking
	// for all of it begins with taking away what is there.
	if r.faults.Has(mendable) && r.mending == nil && !r.sink.charge.tight() {
		r.mending = time.AfterFunc(r.mend, r.again)
	}
	now := r.stands()
	if before := r.state; now != before {
		r.state = now
		r.changed(before, now, r.lastError())
	}
}

func (r *relayed) stands() feed.State {
	switch {
	case r.failed:
		return feed.StateFailed
	case !r.ever:
		return feed.StatePending
	case !r.connected, !r.standing.Exact, r.faults.Any():
		return feed.StateDegraded
	}
	return feed.StateActive
}

// lastError says why the stream is not active; "" when it is.
func (r *relayed) lastError() string {
	switch r.stands() {
	case feed.StateActive:
		return ""
	case feed.StatePending:
		return r.why
	case feed.StateFailed:
		return fmt.Sprintf("no event stream from %s for %v: %s", r.endpoint, r.period, orUnknown(r.why))
	case feed.StateDegraded:
	}
	switch {
	case !r.connected:
		return fmt.Sprintf("event stream of %s lost: %s", r.endpoint, orUnknown(r.why))
	case r.faults.Any():
		return r.faults.Why()
	}
	return r.standing.Why
}

func orUnknown(why string) string {
	if why == "" {
		return "no answer"
	}
	return why
}

// status returns what was seen. The lock is held.
func (r *relayed) status() feed.Status {
	seen := r.group.seen(r.rank)
	return feed.Status{
		State:     r.stands(),
		Repairing: r.ever && !r.connected && !r.failed || r.connected && r.standing.Repairing && !r.faults.Any(),
		Connected: r.connected,
		LastSeq:   r.last, HasSeq: r.has,
		Epoch:      max(r.lives, 1),
		Batches:    r.counts.batches,
		Gaps:       seen.Gaps,
		Lost:       r.counts.lost,
		Restarts:   seen.Restarts,
		Duplicates: seen.Duplicates,
		Resumed:    r.counts.resumed,
		Cold:       r.cold,
		LastBatch:  r.applied,
		LastError:  r.lastError(),
	}
}

// Between calls fn between two batches, as [feed.Stream] does.
func (r *relayed) Between(fn func(feed.Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(r.status())
}

// freeze calls fn while nothing of the rank is applied, as [feed.Stream.Freeze]
// does. The other ranks of the same client wait, too: they share its goroutine.
func (r *relayed) freeze(fn func(st feed.Status, at *Resume)) {
	var cur client.Cursor
	var has bool
	// The client is between two messages as the gate is closed: what it knows of the
	// rank is what the rank was told.
	begun := r.group.hold(r.rank, func(c client.Cursor, ok bool) {
		cur, has = c, ok
		r.gate.Lock()
	})
	if !begun {
		r.gate.Lock()
	}
	defer r.gate.Unlock()
	r.mu.Lock()
	st := r.status()
	at := r.resume // nobody was asked yet
	if begun {
		at = r.position(&cur, has)
	}
	r.mu.Unlock()
	fn(st, at)
}

// position returns where another stream can go on from, by the client's cursor; nil:
// nowhere. The lock is held, and the gate.
func (r *relayed) position(cur *client.Cursor, has bool) *Resume {
	if !has || !r.has || cur.Sequence != r.last {
		return nil
	}
	return &Resume{
		Position: feed.Position{
			Epoch: max(r.lives, 1), HasSeq: true, LastSeq: r.last,
			Faults: r.faults.Set(), Why: r.faults.Why(),
		},
		Relay: cur.Append(nil),
	}
}

// begins takes up the content that the holder has at at.
func (r *relayed) begins(at *Resume) error {
	cur, err := client.ParseCursor(at.Relay)
	if err != nil {
		return err
	}
	if !at.HasSeq || cur.Sequence != at.LastSeq {
		return fmt.Errorf("a cursor of batch %d with a content of batch %d", cur.Sequence, at.LastSeq)
	}
	r.resume, r.start = at, &cur
	r.lives, r.has, r.last = max(at.Epoch, 1), true, at.LastSeq
	r.faults = at.RestoreFaults()
	return nil
}

// Resumed implements [client.ResumeHandler].
func (r *relayed) Resumed(why string) {
	r.locked(func() {
		r.resume, r.cold = nil, why
		if why == "" {
			r.counts.resumed++
		}
		r.tell(why)
	})
}

// extra adds to st what only a relayed stream has.
func (r *relayed) extra(st *StreamStatus) {
	st.Snapshots, st.Resets = r.counts.snapshots, r.counts.resets
	st.RelayRanks = r.group.relayRanks()
	// A registration of one rank other than 0 may be one of several.
	if n := r.group.size; st.RelayRanks > n && (n > 1 || r.rank == 0) && st.LastError == "" {
		st.LastError = fmt.Sprintf("the relay has %d ranks of this engine, dp_size is %d: the others are not read", st.RelayRanks, n)
	}
	for reason, n := range r.group.seen(r.rank).Dropped {
		st.Dropped[reason] += n
	}
}

// Close ends the stream: when it returns nothing of it can touch the index any
// more. The connection ends with the last of those that share it.
func (r *relayed) Close() {
	r.mu.Lock()
	r.closed = true
	r.waiting.Stop()
	if r.mending != nil {
		r.mending.Stop()
	}
	r.mu.Unlock()
	r.group.leave()
}
