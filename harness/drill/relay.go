// SPDX-License-Identifier: Apache-2.0

// Before: drill.go. After: env.go and judge.go.

package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/harness/subscribe"
)

// What the relay's rules allow.
const (
	healTime    = 500 * time.Millisecond
	newLifeTime = time.Second
	shortCut    = 15 * time.Second
	longCut     = 45 * time.Second
	bigHistory  = 10_000
	longHistory = 1_000 // batches, of each rank: less than a long cut publishes
	tinyHistory = 100
	dropped     = 20
	delayBy     = 1_500 * time.Millisecond
	delayFor    = 4 * time.Second
	downTime    = 300 * time.Millisecond
	deadTime    = 2 * time.Second
)

var relayDrills = []Drill{
	{
		"relay-rolled",
		"the history has rolled and the index host is restarted: exact within 500 ms of its registration; new subscribers of both contracts get one snapshot a rank, whole and true, then every batch",
		relayRolled,
	},
	{
		"relay-cut",
		"the link is cut for 15 s: exact within 500 ms of the heal; both contracts go on where they were, without a gap, a reset or a refused cursor, ours without a snapshot",
		relayCut,
	},
	{
		"relay-gap",
		"the link is cut for 45 s, longer than the history: exact within 500 ms of the heal; the peer's contract refuses the cursor (OUT_OF_RANGE), ours resets each rank, both then bring snapshots and no wrong state",
		relayGap,
	},
	{
		"relay-drop",
		"20 batches are lost on the wire: the relay recovers each from the engine's replay, and no subscriber sees a gap, a hole, a reset or a snapshot; exact within 500 ms of the last loss",
		relayDrop,
	},
	{
		"relay-delay",
		"every batch comes 1.5 s late for 4 s, then what waits comes at once: no gap, restart or reset; exact within 500 ms of the end",
		relayDelay,
	},
	{
		"relay-restart-kept",
		"the publisher restarts with its cache kept, numbers from 0 and tells none of it again, so that what can be known is what it announced since: exact to that within 1 s of the new life's first batches; the peer's contract ends with DATA_LOSS, ours resets each rank",
		func(ctx context.Context, e *Env) (string, error) { return relayRestart(ctx, e, true) },
	},
	{
		"relay-restart-empty",
		"the publisher restarts with its cache emptied: exact within 1 s of the new life's first batches, nothing of the old life left; the peer's contract ends with DATA_LOSS, ours resets each rank",
		func(ctx context.Context, e *Env) (string, error) { return relayRestart(ctx, e, false) },
	},
	{
		"relay-killed",
		"the relay is killed with -9 and started again 2 s later: exact within 500 ms of its readiness; our contract's cursors prove themselves and go on, without a gap, a reset or a snapshot",
		relayKilled,
	},
}

// drillLoad is what the relay's drills publish.
func drillLoad() publish.Options {
	o := publish.DefaultOptions()
	o.Capacity = 1_000
	return o
}

func relayRolled(ctx context.Context, e *Env) (string, error) {
	r, err := e.setup(ctx, drillLoad(), tinyHistory)
	if err != nil {
		return "", err
	}
	if err := r.await(ctx, func() bool { return r.newest()[0] > 3*tinyHistory }, "the history to roll"); err != nil {
		return "", err
	}
	if err := r.index.proc.Stop(); err != nil {
		return "", err
	}
	if r.index, err = e.startIndex(ctx); err != nil {
		return "", err
	}
	from := time.Now()
	if err := r.index.register(ctx, r); err != nil {
		return "", err
	}
	took, err := r.exact(ctx, from, e.within(healTime))
	if err != nil {
		return "", err
	}
	peer, own, err := r.newcomers(ctx)
	measured := fmt.Sprintf("exact %s after registration; snapshots of %d copies in %d chunks, peer's contract, %d in %d, ours",
		round(took), peer.Blocks, peer.Chunks, own.Blocks, own.Chunks)
	return measured, errors.Join(err, r.settle(ctx))
}

// newcomers subscribes anew by both contracts and returns what that met.
func (r *relayed) newcomers(ctx context.Context) (peer, own subscribe.Counts, err error) {
	p, err := subscribe.OpenPeer(r.link.Addr(), r.pub)
	if err != nil {
		return peer, own, err
	}
	r.e.later(p.Close)
	o, err := subscribe.OpenOwn(r.link.Addr(), r.pub)
	if err != nil {
		return peer, own, err
	}
	r.e.later(o.Close)
	r.peer, r.own = p, o
	err = r.subscribersReach(ctx, r.newest())
	peer, own = p.Counts(), o.Counts()
	if n := r.pub.Ranks(); peer.Snapshots != n || own.Snapshots != n {
		err = errors.Join(err, fmt.Errorf("%d snapshots by the peer's contract and %d by ours, %d ranks", peer.Snapshots, own.Snapshots, n))
	}
	return peer, own, err
}

func relayCut(ctx context.Context, e *Env) (string, error) {
	r, err := e.setup(ctx, drillLoad(), bigHistory)
	if err != nil {
		return "", err
	}
	took, missed, err := r.cutFor(ctx, shortCut)
	if err != nil {
		return "", err
	}
	measured := fmt.Sprintf("exact %s after the heal, %d batches caught up", round(took), missed)
	err = r.subscribersReach(ctx, r.newest())
	peer, own := r.since()
	err = errors.Join(err, unbroken("the peer's contract", peer), unbroken("our contract", own))
	if own.Snapshots > 0 {
		err = errors.Join(err, fmt.Errorf("our contract: %d snapshots", own.Snapshots))
	}
	return measured, errors.Join(err, r.settle(ctx))
}

func relayGap(ctx context.Context, e *Env) (string, error) {
	r, err := e.setup(ctx, drillLoad(), longHistory)
	if err != nil {
		return "", err
	}
	took, missed, err := r.cutFor(ctx, longCut)
	if err != nil {
		return "", err
	}
	err = r.subscribersReach(ctx, r.newest())
	peer, own := r.since()
	measured := fmt.Sprintf("exact %s after the heal, %d batches missed with %d kept of each rank; the peer's contract: %d cursors refused, %d snapshots in %d chunks; ours: %d resets, %d snapshots in %d chunks",
		round(took), missed, r.history, peer.OutOfRange, peer.Snapshots, peer.Chunks, own.Resets, own.Snapshots, own.Chunks)
	n := r.pub.Ranks()
	if peer.OutOfRange == 0 || peer.Snapshots < n {
		err = errors.Join(err, fmt.Errorf("the peer's contract: %d cursors refused and %d snapshots, want 1 and %d", peer.OutOfRange, peer.Snapshots, n))
	}
	if own.Resets < n || own.Snapshots < n {
		err = errors.Join(err, fmt.Errorf("our contract: %d resets and %d snapshots, want %d of each", own.Resets, own.Snapshots, n))
	}
	return measured, errors.Join(err, r.settle(ctx))
}

// cutFor cuts the link and returns how long after the heal the index was exact, and how
// many batches were published meanwhile.
func (r *relayed) cutFor(ctx context.Context, d time.Duration) (took time.Duration, missed uint64, err error) {
	before := r.newest()
	r.link.Cut()
	defer r.link.Heal()
	for end := time.Now().Add(d); time.Now().Before(end); {
		r.e.sayf("the link is cut, %d s to go", int(time.Until(end).Seconds()))
		if err := pause(ctx, min(time.Second, time.Until(end))); err != nil {
			return 0, 0, err
		}
	}
	from := time.Now()
	r.link.Heal()
	for rank, seq := range r.newest() {
		missed += seq - before[rank]
	}
	took, err = r.exact(ctx, from, r.e.within(healTime))
	return took, missed, err
}

func relayDrop(ctx context.Context, e *Env) (string, error) {
	r, err := e.setup(ctx, drillLoad(), bigHistory)
	if err != nil {
		return "", err
	}
	before, err := r.stats(ctx)
	if err != nil {
		return "", err
	}
	r.pub.Drop(dropped)
	if err := r.await(ctx, func() bool { return r.pub.Dropped() >= dropped }, "batches to be dropped"); err != nil {
		return "", err
	}
	from, floor := time.Now(), r.newest()
	took, err := r.exact(ctx, from, e.within(healTime))
	if err != nil {
		return "", err
	}
	err = r.subscribersReach(ctx, floor)
	after, serr := r.stats(ctx)
	peer, own := r.since()
	recovered, holes := after.Recovered-before.Recovered, after.Holes-before.Holes
	measured := fmt.Sprintf("%d dropped, %d recovered by the relay in %d gaps, exact %s after the last", dropped, recovered, after.Gaps-before.Gaps, round(took))
	if recovered < dropped || holes > 0 {
		err = errors.Join(err, fmt.Errorf("the relay recovered %d of %d batches and has %d holes", recovered, dropped, holes))
	}
	err = errors.Join(err, serr, unbroken("the peer's contract", peer), unbroken("our contract", own))
	if n := peer.Snapshots + own.Snapshots; n > 0 {
		err = errors.Join(err, fmt.Errorf("%d snapshots", n))
	}
	return measured, errors.Join(err, r.settle(ctx))
}

func relayDelay(ctx context.Context, e *Env) (string, error) {
	r, err := e.setup(ctx, drillLoad(), bigHistory)
	if err != nil {
		return "", err
	}
	before, err := r.stats(ctx)
	if err != nil {
		return "", err
	}
	r.pub.Delay(delayBy)
	if err := pause(ctx, delayFor); err != nil {
		return "", err
	}
	waiting := r.newest()
	from := time.Now()
	r.pub.Delay(0)
	took, err := r.exact(ctx, from, e.within(healTime))
	if err != nil {
		return "", err
	}
	err = r.subscribersReach(ctx, waiting)
	after, serr := r.stats(ctx)
	peer, own := r.since()
	measured := fmt.Sprintf("exact %s after the end of the delay; %d gaps, %d restarts", round(took), after.Gaps-before.Gaps, after.Restarts-before.Restarts)
	if after.Gaps != before.Gaps || after.Restarts != before.Restarts || after.Holes != before.Holes {
		err = errors.Join(err, fmt.Errorf("the relay saw %d gaps, %d restarts and %d holes", after.Gaps-before.Gaps, after.Restarts-before.Restarts, after.Holes-before.Holes))
	}
	return measured, errors.Join(err, serr, unbroken("the peer's contract", peer), unbroken("our contract", own), r.settle(ctx))
}

func relayRestart(ctx context.Context, e *Env, keep bool) (string, error) {
	r, err := e.setup(ctx, drillLoad(), bigHistory)
	if err != nil {
		return "", err
	}
	if err := r.pub.Restart(ctx, keep, downTime); err != nil {
		return "", err
	}
	life := r.pub.Life()
	first := func() (at time.Time, all bool) {
		for rank := range r.pub.Ranks() {
			rec, ok := r.pub.Record(rank, life, 0)
			if !ok {
				return at, false
			}
			if rec.At.After(at) {
				at = rec.At
			}
		}
		return at, true
	}
	if err := r.await(ctx, func() bool { _, all := first(); return all }, "the new life's first batches"); err != nil {
		return "", err
	}
	from, _ := first()
	took, err := r.exact(ctx, from, e.within(newLifeTime))
	if err != nil {
		return "", err
	}
	err = r.subscribersReach(ctx, r.newest())
	peer, own := r.since()
	copies := 0
	for rank := range r.pub.Ranks() {
		copies += r.pub.Copies(rank)
	}
	measured := fmt.Sprintf("exact %s after the new life's first batches, now %d copies; DATA_LOSS %d times by the peer's contract, %d resets by ours", round(took), copies, peer.Resets, own.Resets)
	if peer.Resets == 0 || own.Resets < r.pub.Ranks() {
		err = errors.Join(err, fmt.Errorf("want DATA_LOSS by the peer's contract and %d resets by ours", r.pub.Ranks()))
	}
	return measured, errors.Join(err, r.settle(ctx))
}

func relayKilled(ctx context.Context, e *Env) (string, error) {
	r, err := e.setup(ctx, drillLoad(), bigHistory)
	if err != nil {
		return "", err
	}
	before := r.newest()
	r.relay.Kill()
	if err := pause(ctx, deadTime); err != nil {
		return "", err
	}
	started := time.Now()
	if err := r.startRelay(ctx); err != nil {
		return "", err
	}
	from := time.Now()
	var missed uint64
	for rank, seq := range r.newest() {
		missed += seq - before[rank]
	}
	took, err := r.exact(ctx, from, e.within(healTime))
	if err != nil {
		return "", err
	}
	err = r.subscribersReach(ctx, r.newest())
	_, own := r.since()
	measured := fmt.Sprintf("ready %s after its start, exact %s after that, %d batches published meanwhile", round(from.Sub(started)), round(took), missed)
	err = errors.Join(err, unbroken("our contract", own))
	if own.Snapshots > 0 {
		err = errors.Join(err, fmt.Errorf("our contract: %d snapshots", own.Snapshots))
	}
	return measured, errors.Join(err, r.settle(ctx))
}

// unbroken demands that a subscriber met nothing but batches in order.
func unbroken(contract string, c subscribe.Counts) error {
	if c.Gaps+c.Resets+c.OutOfRange+c.Holes+c.Wrong == 0 {
		return nil
	}
	return fmt.Errorf("%s: %d gaps, %d resets, %d refused cursors, %d holes, %d wrong states", contract, c.Gaps, c.Resets, c.OutOfRange, c.Holes, c.Wrong)
}

// await waits for what a drill does by itself.
func (r *relayed) await(ctx context.Context, ok func() bool, what string) error {
	if err := proc.Until(ctx, startTime, ok); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}

// relayStats are what the relay counts of all ranks.
type relayStats struct{ Gaps, Recovered, Holes, Restarts uint64 }

// stats asks the relay.
func (r *relayed) stats(ctx context.Context) (relayStats, error) {
	var sum relayStats
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.http+"/status", http.NoBody)
	if err != nil {
		return sum, err
	}
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return sum, fmt.Errorf("the relay's status: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	var all struct {
		Engines []struct {
			Ranks []relayStats `json:"ranks"`
		} `json:"engines"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		return sum, fmt.Errorf("the relay's status: %w", err)
	}
	for _, e := range all.Engines {
		for _, s := range e.Ranks {
			sum.Gaps += s.Gaps
			sum.Recovered += s.Recovered
			sum.Holes += s.Holes
			sum.Restarts += s.Restarts
		}
	}
	return sum, nil
}
