// SPDX-License-Identifier: Apache-2.0

// Before: drill.go. After: rig.go, which has an index host at the engine's sockets and
// one behind a relay.

package drill

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"kindex/harness/proc"
	"kindex/harness/publish"
)

// What the index's rules allow, beside the relay's.
const (
	tellTime      = time.Second            // until a state tells of a connection that ended
	keepaliveTime = 35 * time.Second       // until it tells of a peer that is silent: TCP's own probes
	silenceTime   = 6 * time.Second        // the same behind a relay, which gives signs of life
	redialTime    = 3 * time.Second        // engines are tried again every 2 s
	resendTime    = 4 * time.Second        // TCP's next try of what it had lost for 3 s
	rejoinTime    = 8 * time.Second        // a connection that was given up, made anew
	anewTime      = 2 * time.Second        // an index host that begins with nothing
	starvedTime   = 1 * time.Second        // behind the end of a starvation
	pausedFor     = 8 * time.Second        // paused and frozen engines
	refusedFor    = 5 * time.Second        // nobody listens
	cutFor        = 3 * time.Second        // a short partition
	starvedFor    = 15 * time.Second       //
	downFor       = 2 * time.Second        // an index host that is gone
	restartDown   = 300 * time.Millisecond // a publisher between two lives
)

// indexDrills break an engine's stream and its index host, with a publisher that knows
// its truth at every number.
var indexDrills = []Drill{
	{
		"batches-dropped",
		"20 batches are lost on the wire and kept for replay: exact within 500 ms of the last loss, each recovered, none given up; no stream is active with anything but the truth of its cursor",
		batchesDropped,
	},
	{
		"publisher-delayed",
		"every batch comes 1.5 s late for 4 s, then what waits comes at once: no gap or restart is counted, exact within 500 ms of the end; no stream is active with anything but the truth of its cursor",
		publisherDelayed,
	},
	{
		"publisher-restarted",
		"the publisher restarts with its cache kept, numbers from 0 and tells none of it again: exact within 1 s of the new life's first batches to what was announced since; nothing else is claimed",
		func(ctx context.Context, e *Env) (string, error) { return restarted(ctx, e, true) },
	},
	{
		"engine-restarted",
		"the engine restarts with an empty cache: exact within 1 s of the new life's first batches, nothing of the old life left",
		func(ctx context.Context, e *Env) (string, error) { return restarted(ctx, e, false) },
	},
	{
		"engine-partitioned",
		"every packet between index host and engine is lost for 3 s (a network namespace; where none can be made, a proxy that holds everything back): exact within 4 s of the heal, TCP's own resend included; lookups are answered within 1 s meanwhile, no stream is active with anything but the truth of its cursor",
		func(ctx context.Context, e *Env) (string, error) {
			return partitioned(ctx, e, cutFor, resendTime, false)
		},
	},
	{
		"engine-partitioned-long",
		"every packet between index host and engine is lost for 45 s (in a network namespace, or behind a proxy): the stream's state tells of it within 35 s at the sockets (TCP's probes; not judged behind a proxy, which answers them) and 6 s behind a relay; exact within 8 s of the heal; lookups are answered within 1 s meanwhile",
		func(ctx context.Context, e *Env) (string, error) {
			return partitioned(ctx, e, longCut, rejoinTime, true)
		},
	},
	{
		"engine-unreachable",
		"connections to the engine, and to the relay, end and are refused for 5 s: the stream's state tells of it within 1 s, lookups are answered all the while; exact within 3 s of the first that is accepted",
		engineUnreachable,
	},
	{
		"engine-paused",
		"the engine publishes nothing for 8 s and its sockets stay: streams stay active, lookups are answered and right; exact within 500 ms of its first batches behind it, without gap or restart",
		enginePaused,
	},
	{
		"cpu-starved",
		"two busy programs for each CPU run beside for 15 s: no stream is active with anything but the truth of its cursor, lookups are answered within 1 s; exact within 1 s of the end",
		cpuStarved,
	},
	{
		"index-restarted",
		"the index host is killed with -9 under load, another takes its place with nothing 2 s later: exact within 2 s of its registration, by replay or the relay's snapshot",
		indexRestarted,
	},
}

// finish joins what was measured with what the watch saw and what settles.
func (r *rig) finish(ctx context.Context, measured string, err error) (string, error) {
	watched, serr := r.settle(ctx)
	if watched != "" {
		measured += "; watched: " + watched
	}
	return measured, errors.Join(err, serr)
}

func batchesDropped(ctx context.Context, e *Env) (string, error) {
	r, err := e.rig(ctx, drillLoad(), nil)
	if err != nil {
		return "", err
	}
	pub := r.pub
	before, err := r.counts(ctx)
	if err != nil {
		return "", err
	}
	for _, f := range r.faces {
		f.watch.arm()
	}
	pub.Drop(dropped)
	if err := r.beside.await(ctx, func() bool { return pub.Dropped() >= dropped }, "batches to be dropped"); err != nil {
		return "", err
	}
	took, err := r.exact(ctx, time.Now(), e.within(healTime))
	if err != nil {
		return "", err
	}
	after, err := r.counts(ctx)
	a, b := after["direct"], before["direct"]
	measured := fmt.Sprintf("exact after the last loss: %s; direct: %d gaps, %d of %d recovered, %d given up", took, a.Gaps-b.Gaps, a.Recovered-b.Recovered, dropped, a.Lost-b.Lost)
	if a.Recovered-b.Recovered < dropped || a.Lost != b.Lost {
		err = errors.Join(err, fmt.Errorf("direct: %d of %d recovered, %d given up", a.Recovered-b.Recovered, dropped, a.Lost-b.Lost))
	}
	return r.finish(ctx, measured, errors.Join(err, unmoved("relayed", before["relayed"], after["relayed"])))
}

// unmoved demands that a stream counted no fault.
func unmoved(name string, before, after listener) error {
	if before.Gaps == after.Gaps && before.Restarts == after.Restarts && before.Lost == after.Lost {
		return nil
	}
	return fmt.Errorf("%s: %d gaps, %d restarts, %d batches given up", name, after.Gaps-before.Gaps, after.Restarts-before.Restarts, after.Lost-before.Lost)
}

// untouched demands that of all faces.
func (r *rig) untouched(before, after map[string]listener) error {
	var errs []error
	for _, f := range r.faces {
		errs = append(errs, unmoved(f.name, before[f.name], after[f.name]))
	}
	return errors.Join(errs...)
}

func publisherDelayed(ctx context.Context, e *Env) (string, error) {
	r, err := e.rig(ctx, drillLoad(), nil)
	if err != nil {
		return "", err
	}
	pub := r.pub
	before, err := r.counts(ctx)
	if err != nil {
		return "", err
	}
	pub.Delay(delayBy)
	if err := pause(ctx, delayFor); err != nil {
		return "", err
	}
	from := time.Now()
	pub.Delay(0)
	took, err := r.exact(ctx, from, e.within(healTime))
	if err != nil {
		return "", err
	}
	after, err := r.counts(ctx)
	return r.finish(ctx, "exact after the end of the delay: "+took, errors.Join(err, r.untouched(before, after)))
}

func restarted(ctx context.Context, e *Env, keep bool) (string, error) {
	r, err := e.rig(ctx, drillLoad(), nil)
	if err != nil {
		return "", err
	}
	pub := r.pub
	held := 0
	for rank := range pub.Ranks() {
		held += pub.Copies(rank)
	}
	before, err := r.counts(ctx)
	if err != nil {
		return "", err
	}
	if err := pub.Restart(ctx, keep, restartDown); err != nil {
		return "", err
	}
	from, err := r.firstBatches(ctx, pub)
	if err != nil {
		return "", err
	}
	took, err := r.exact(ctx, from, e.within(newLifeTime))
	if err != nil {
		return "", err
	}
	after, err := r.counts(ctx)
	now := 0
	for rank := range pub.Ranks() {
		now += pub.Copies(rank)
	}
	measured := fmt.Sprintf("exact after the new life's first batches: %s; %d copies before, %d of the new life", took, held, now)
	for _, f := range r.faces {
		if after[f.name].Restarts < before[f.name].Restarts+uint64(pub.Ranks()) {
			err = errors.Join(err, fmt.Errorf("%s: %d restarts counted of %d ranks", f.name, after[f.name].Restarts-before[f.name].Restarts, pub.Ranks()))
		}
	}
	return r.finish(ctx, measured, err)
}

// firstBatches waits for the present life's first batch of every rank, and returns when
// the last of them was published.
func (r *rig) firstBatches(ctx context.Context, pub *publish.Publisher) (at time.Time, err error) {
	life := pub.Life()
	err = r.beside.await(ctx, func() bool {
		for rank := range pub.Ranks() {
			rec, ok := pub.Record(rank, life, 0)
			if !ok {
				return false
			}
			if rec.At.After(at) {
				at = rec.At
			}
		}
		return true
	}, "the new life's first batches")
	return at, err
}

func partitioned(ctx context.Context, e *Env, d, limit time.Duration, tells bool) (string, error) {
	how := "packets lost in a network namespace"
	n, why := e.openNamespace(ctx)
	if why != nil {
		n, how = nil, "held back by a proxy, for no network can be made here ("+why.Error()+")"
	}
	r, err := e.rig(ctx, drillLoad(), n)
	if err != nil {
		return "", err
	}
	before := r.newest()
	for _, f := range r.faces {
		f.watch.arm()
	}
	if err := r.cut(ctx); err != nil {
		return "", err
	}
	limits := map[string]time.Duration{}
	began := time.Now()
	if tells {
		limits["relayed"] = silenceTime
		if n != nil {
			limits["direct"] = keepaliveTime
		}
	}
	told, terr := r.shown(ctx, limits)
	for time.Since(began) < d {
		e.sayf("partitioned, %d s to go", int((d - time.Since(began)).Seconds()))
		if err := pause(ctx, min(time.Second, d-time.Since(began))); err != nil {
			return "", err
		}
	}
	var missed uint64
	for rank, seq := range r.newest() {
		missed += seq - before[rank]
	}
	from := time.Now()
	if err := r.heal(ctx); err != nil {
		return "", err
	}
	took, err := r.exact(ctx, from, e.within(limit))
	measured := fmt.Sprintf("%s; exact after the heal: %s, %d batches caught up", how, took, missed)
	if told != "" {
		measured += "; told by the state after: " + told
	}
	if err != nil {
		return measured, errors.Join(terr, err)
	}
	return r.finish(ctx, measured, terr)
}

// cut lets nothing through between engine and index hosts.
func (r *rig) cut(ctx context.Context) error {
	if r.net != nil {
		return r.net.cut(ctx)
	}
	for _, f := range r.faces {
		for _, l := range f.links {
			l.Cut()
		}
	}
	return nil
}

func (r *rig) heal(ctx context.Context) error {
	if r.net != nil {
		return r.net.heal(ctx)
	}
	for _, f := range r.faces {
		for _, l := range f.links {
			l.Heal()
		}
	}
	return nil
}

func engineUnreachable(ctx context.Context, e *Env) (string, error) {
	r, err := e.rig(ctx, drillLoad(), nil)
	if err != nil {
		return "", err
	}
	for _, f := range r.faces {
		f.watch.arm()
	}
	if err := r.refuse(true); err != nil {
		return "", err
	}
	told, terr := r.shown(ctx, map[string]time.Duration{"direct": tellTime, "relayed": tellTime})
	if err := pause(ctx, refusedFor); err != nil {
		return "", err
	}
	from := time.Now()
	if err := r.refuse(false); err != nil {
		return "", err
	}
	took, err := r.exact(ctx, from, e.within(redialTime))
	measured := fmt.Sprintf("told by the state after: %s; exact after the first that is accepted: %s", told, took)
	if err != nil {
		return measured, errors.Join(terr, err)
	}
	return r.finish(ctx, measured, terr)
}

// refuse has all connections end and refused, or accepted again.
func (r *rig) refuse(on bool) error {
	var errs []error
	for _, f := range r.faces {
		for _, l := range f.links {
			if on {
				errs = append(errs, l.Refuse())
			} else {
				errs = append(errs, l.Accept())
			}
		}
	}
	return errors.Join(errs...)
}

func enginePaused(ctx context.Context, e *Env) (string, error) {
	r, err := e.rig(ctx, drillLoad(), nil)
	if err != nil {
		return "", err
	}
	before, err := r.counts(ctx)
	if err != nil {
		return "", err
	}
	r.src.SetRate(0)
	if _, err := r.exact(ctx, time.Now(), e.within(healTime)); err != nil {
		return "", err
	}
	for _, f := range r.faces {
		f.watch.arm()
		err = errors.Join(err, r.answers(ctx, f))
	}
	for end := time.Now().Add(pausedFor); time.Now().Before(end); {
		e.sayf("paused, %d s to go", int(time.Until(end).Seconds()))
		if err := pause(ctx, min(time.Second, time.Until(end))); err != nil {
			return "", err
		}
	}
	for _, f := range r.faces {
		if took, ok := f.watch.shownAfter(); ok {
			err = errors.Join(err, fmt.Errorf("%s: not active %s after the pause began", f.name, round(took)))
		}
	}
	floor := r.newest()
	r.src.SetRate(drillLoad().Rate)
	if werr := r.beside.await(ctx, func() bool {
		for rank, seq := range r.newest() {
			if seq <= floor[rank] {
				return false
			}
		}
		return true
	}, "batches behind the pause"); werr != nil {
		return "", werr
	}
	took, xerr := r.exact(ctx, time.Now(), e.within(healTime))
	if xerr != nil {
		return "", errors.Join(err, xerr)
	}
	after, cerr := r.counts(ctx)
	return r.finish(ctx, "exact after its first batches: "+took, errors.Join(err, cerr, r.untouched(before, after)))
}

func cpuStarved(ctx context.Context, e *Env) (string, error) {
	e.strict = true // to have no CPU is the fault
	r, err := e.rig(ctx, drillLoad(), nil)
	if err != nil {
		return "", err
	}
	busy := 2 * runtime.NumCPU()
	var loops []*proc.Process
	for range busy {
		p, err := proc.Start("/bin/sh", nil, "-c", "while :; do :; done")
		if err != nil {
			return "", err
		}
		e.later(func() error { p.Kill(); return nil })
		loops = append(loops, p)
	}
	for end := time.Now().Add(starvedFor); time.Now().Before(end); {
		e.sayf("starved, %d s to go", int(time.Until(end).Seconds()))
		if err := pause(ctx, min(time.Second, time.Until(end))); err != nil {
			return "", err
		}
	}
	for _, p := range loops {
		p.Kill()
	}
	took, err := r.exact(ctx, time.Now(), e.within(starvedTime))
	if err != nil {
		return "", err
	}
	return r.finish(ctx, fmt.Sprintf("%d busy programs; exact after their end: %s", busy, took), nil)
}

func indexRestarted(ctx context.Context, e *Env) (string, error) {
	r, err := e.rig(ctx, drillLoad(), nil)
	if err != nil {
		return "", err
	}
	for _, f := range r.faces {
		f.watch.leave(true)
		f.host().proc.Kill()
	}
	if err := pause(ctx, downFor); err != nil {
		return "", err
	}
	began := make(map[*face]time.Time, len(r.faces))
	for _, f := range r.faces {
		if err := r.startFace(ctx, f); err != nil {
			return "", err
		}
		began[f] = time.Now()
		f.watch.leave(false)
	}
	floor := r.newest()
	took, err := r.tell(func(f *face) (string, error) {
		took, err := exactWithin(ctx, f.host(), r.src, floor, began[f], e.within(anewTime), stayFor, e.waits)
		return round(took).String(), err
	})
	var all uint64
	for _, seq := range floor {
		all += seq + 1
	}
	measured := fmt.Sprintf("exact after registration: %s, with %d batches published", took, all)
	if err != nil {
		return measured, err
	}
	return r.finish(ctx, measured, nil)
}
