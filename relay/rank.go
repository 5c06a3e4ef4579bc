// SPDX-License-Identifier: Apache-2.0

// Before: feed.Feed (batches in the publisher's order). After: the history, read
// by Subscriptions.

package relay

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"kindex/internal/kv"
	"kindex/internal/logsink"
	"kindex/relay/client"
	"kindex/relay/feed"
	"kindex/relay/hashcheck"
	"kindex/relay/live"
	"kindex/relay/normal"
	"kindex/relay/wire"
)

// Rank is one data-parallel rank of an engine: what it holds, its newest batches
// and where it stands.
//
// Concurrency: Info and Stats may be called from any goroutine. It is its feed's
// sink, whose calls come one at a time.
type Rank struct {
	number int
	engine *Engine
	stream *feed.Stream // nil before it is opened

	// The sink's own, ordered by the feed.
	dec     wire.Decoder
	probe   wire.Decoder // tells whether a payload that must wait is a batch
	batch   kv.Batch
	norm    *normal.Normaliser
	staged  *feed.Batch
	effects live.Effects
	own     []byte // the batch in work, encoded
	peer    []byte
	eventID uint64 // of the peer's form: the next
	hashes  *hashcheck.Checker
	changes *logsink.Changes // what an operator should know of it

	snapshots snapshots
	fell      atomic.Uint64 // readers that fell out of the history

	mu sync.RWMutex // guards what follows; not the effects

	live      *live.State
	hist      history
	epoch     uint64
	why       string // the epoch began
	standing  Standing
	version   uint64    // of standing, from 1
	rests     uint64    // the index in the history up to which an exact standing rests on it
	life      uint64    // of the publisher, as the feed counts; Primed holds for it
	has       bool      // something was admitted or lost in this epoch
	last      uint64    // its number
	check     uint64    // of it; 0: it was lost
	timestamp float64   // of the last batch, the engine's clock
	received  time.Time // the last batch; zero: none in this epoch
	blockSize int       // as the normaliser learned it
	unknown   uint64    // numbers lost since the content was last known whole
	counts    counts
}

// counts are what a rank counts itself.
type counts struct {
	batches, events, holes, lost, restarts, resyncs, mismatches uint64
	orphansDropped, refused                                     uint64 // of live.Stats, told as faults
}

var _ feed.Sink = (*Rank)(nil)

func newRank(e *Engine, number int) *Rank {
	cfg := &e.cfg
	return &Rank{
		number:    number,
		engine:    e,
		snapshots: snapshots{freed: cfg.Freed},
		norm:      normal.New(normal.Config{BlockSize: cfg.BlockSize, Stated: cfg.Kind == "sglang"}),
		live:      live.New(live.Options{HashTokens: cfg.HashTokens, MaxCuts: 2 * int(numForms) * maxSnapshots}),
		hist:      newHistory(cfg.HistoryBatches, cfg.HistoryBytes),
		hashes:    hashcheck.New(cfg.HashCheck),
		changes:   logsink.NewChanges(cfg.Log.With("engine", cfg.Name, "rank", number)),
		epoch:     e.nextEpoch(),
		why:       "the relay started",
		standing:  Standing{Why: "not connected yet"},
		version:   1,
	}
}

// Decodable implements [feed.Sink].
func (r *Rank) Decodable(payload []byte) bool { return r.probe.Decode(payload, &r.batch) == nil }

// Stage implements [feed.Sink].
func (r *Rank) Stage(b *feed.Batch) bool {
	if r.dec.Decode(b.Payload, &r.batch) != nil {
		return false
	}
	r.staged = b
	return true
}

// Commit implements [feed.Sink]. Whatever the batch's events are worth, its number
// goes out: a batch that holds nothing of use is an empty one, never a gap.
func (r *Rank) Commit(f *feed.Faults) {
	b, batch := r.staged, &r.batch
	r.staged = nil
	ops := r.norm.Batch(batch)
	now := time.Now()

	r.mu.Lock()
	r.live.Apply(batch, ops, &r.effects)
	clears := r.raise(f, ops)
	served := r.tooShort() == ""
	r.has, r.last, r.check, r.timestamp = true, b.Seq, b.Sum, batch.Timestamp
	r.received, r.blockSize = now, r.norm.BlockSize()
	short := r.tooShort()
	r.counts.batches++
	r.counts.events += uint64(len(batch.Events))
	if batch.HasRank && batch.Rank != r.number {
		r.counts.mismatches++
	}
	e := entry{from: b.Seq, to: b.Seq, check: b.Sum, timestamp: batch.Timestamp, received: now.UnixNano(), clears: clears}
	r.own = live.AppendOwn(appendOwnBatch(r.own[:0], b.Seq, b.Sum, batch.Timestamp), &r.effects)
	e.bodies[FormOwn] = r.hist.keep(r.own)
	if !r.engine.cfg.HashTokens {
		r.peer, r.eventID = live.AppendPeer(appendPeerBatch(r.peer[:0], b.Seq, batch.Timestamp, r.number), &r.effects, r.eventID)
		e.bodies[FormPeer] = r.hist.keep(r.peer)
	}
	r.hist.add(e)
	r.snapshots.passed(r)
	r.trim()
	r.mu.Unlock()
	r.engine.waker.wake()
	r.engine.cfg.Load.Output(r.number, now)
	if served && short != "" {
		r.engine.cfg.Log.Error("a rank serves no events", "engine", r.engine.cfg.Name, "rank", r.number, "why", short)
	}
	if why := r.hashes.Check(batch, now); why != "" {
		r.engine.cfg.Log.Warn("the engine's hashes are not as they should be", "engine", r.engine.cfg.Name, "rank", r.number, "why", why)
	}
}

// trim lets go of what the history's window has passed and no subscriber needs. It
// looks for that only so often, as there may be many. The rank is locked.
func (r *Rank) trim() {
	h := &r.hist
	if h.tail < h.from && h.head%trimEvery == 0 {
		h.trim(min(r.snapshots.need(), r.engine.need(r)))
	}
}

// raise tells the feed what the batch did to the content's exactness, and returns
// whether it cleared the content. The rank is locked.
func (r *Rank) raise(f *feed.Faults, ops []normal.Op) (clears bool) {
	for i := range ops {
		switch ops[i].Kind {
		case normal.Clear:
			clears = true
			r.unknown = 0
			f.Heal()
		case normal.Mismatch:
			f.Raise(feed.FaultBlockSize, "the engine's block size is %d, that of its content so far is %d", ops[i].Size, r.norm.BlockSize())
		case normal.Store, normal.Remove:
		}
	}
	st := r.live.Stats()
	if st.OrphansDropped > r.counts.orphansDropped {
		f.Raise(feed.FaultOrphans, "%d blocks whose parent did not come were dropped", st.OrphansDropped)
	}
	if st.Refused > r.counts.refused {
		f.Raise(feed.FaultRefused, "%d blocks were refused: the limit of live blocks is reached", st.Refused)
	}
	r.counts.orphansDropped, r.counts.refused = st.OrphansDropped, st.Refused
	return clears
}

// Lost implements [feed.Sink]: a hole, which subscribers see.
func (r *Rank) Lost(from, to uint64, why string) {
	r.mu.Lock()
	r.has, r.last, r.check = true, to, 0
	r.unknown += to - from + 1
	r.counts.holes++
	r.counts.lost += to - from + 1
	r.hist.add(entry{from: from, to: to, hole: true, why: why, received: time.Now().UnixNano()})
	r.snapshots.passed(r)
	r.mu.Unlock()
	r.engine.waker.wake()
	r.changes.Tell(slog.LevelWarn, "batches lost", "from", from, "to", to, "why", why)
}

// Forget implements [feed.Sink]: an epoch begins.
func (r *Rank) Forget(why feed.Forget, _ *feed.Faults) {
	r.mu.Lock()
	r.epoch = r.engine.nextEpoch()
	switch why {
	case feed.ForgetRestart:
		r.why = client.WhyRestarted
		r.counts.restarts++
		r.norm.Restart()
		r.hashes.Restart()
		r.blockSize = r.norm.BlockSize()
		if r.standing.Exact {
			// That was the other life's. The feed tells of this one when it is asked next.
			r.standing.Exact, r.standing.Why = false, r.why
			r.version++
		}
	case feed.ForgetResync:
		r.why = "what was lost has come after all"
		r.counts.resyncs++
	}
	r.live.Clear()
	r.hist.reset()
	r.has, r.last, r.check, r.unknown, r.received = false, 0, 0, 0, time.Time{}
	r.snapshots.passed(r)
	r.mu.Unlock()
	r.engine.waker.wake()
	r.changes.Tell(slog.LevelInfo, "content begins anew", "why", r.why)
}

// changed logs that the stream's state is another one.
func (r *Rank) changed(before, now feed.State, why string) {
	level := slog.LevelInfo
	if now > feed.StatePending {
		level = slog.LevelWarn
	}
	r.changes.Tell(level, "stream "+now.String(), "before", before.String(), "why", why)
}

// stands is told where the stream stands whenever that is another place.
func (r *Rank) stands(now feed.Standing, why string) {
	r.mu.Lock()
	st := Standing{
		Primed: r.standing.Primed && now.Epoch == r.life,
		Exact:  now.State == feed.StateActive,
		Why:    why,
	}
	if now.State == feed.StateActive || now.State == feed.StateDegraded && !now.Repairing {
		st.Primed = true
	}
	r.life = now.Epoch
	changed := st != r.standing
	if changed {
		r.standing = st
		r.version++
		r.rests = r.hist.head
	}
	r.mu.Unlock()
	if changed {
		r.engine.waker.wake()
	}
}

// newest and oldest describe the history for who asks for something else.
func (r *Rank) newest() string {
	if !r.has {
		return "there is none"
	}
	return fmt.Sprint(r.last)
}

func (r *Rank) oldest() string {
	if r.hist.len() == 0 {
		return "nothing"
	}
	return fmt.Sprintf("from %d", r.hist.at(r.hist.from).from)
}
