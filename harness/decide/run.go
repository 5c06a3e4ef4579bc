// SPDX-License-Identifier: Apache-2.0

// Before: arms.go. After: report.go.

package decide

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/policy"
	"kindex/harness/trial"
	"kindex/internal/lookup"
	"kindex/numa"
)

// Trial is one arm in one round.
type Trial struct {
	Arm       string `json:"arm"`
	Round     int    `json:"round"`
	Decisions int    `json:"decisions"`
	Dropped   int    `json:"dropped"` // the thread lost its CPU meanwhile
	Late      int    `json:"late"`    // begun more than an interval after they were due
	Failed    int    `json:"failed"`  // lookups without an answer

	Total  *trial.Latency `json:"decision_ns"` // lookup included
	Lookup *trial.Latency `json:"lookup_ns"`   // and its names made holders
	Choice *trial.Latency `json:"choice_ns"`   // the policy, and what its choice has where that was not answered
	CPU    float64        `json:"cpu_ns"`      // of a decision, lookup included

	Branches map[string]int `json:"branches"`
}

// bench is what the trials share.
type bench struct {
	o      *Options
	w      *world
	pool   *fleet.Pool
	policy policy.Policy
	arms   []*arm
	rng    *rand.Rand
	p      *trial.Progress
	report *Report

	// Of the fleet's state, which goes on from trial to trial.
	leases []*fleet.Lease // a ring
	at     int

	matches             []policy.Match
	alone               lookup.Answer
	total, look, choice []uint32
}

// Measure fills all indexes alike and measures all arms, in rounds.
func Measure(ctx context.Context, o *Options, p *trial.Progress) (*Report, error) {
	w, err := newWorld(ctx, o, p)
	if err != nil {
		return nil, err
	}
	f, err := newFeed(o.Workers)
	if err != nil {
		return nil, err
	}
	defer f.close()
	b, err := newBench(o, w, f.at, p)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "decide")
	if err != nil {
		return nil, err
	}
	m := &machines{dir}
	defer m.close()
	defer func() {
		for _, a := range b.arms {
			a.close()
		}
	}()
	if err := b.open(ctx, m, f); err != nil {
		return nil, err
	}
	if err := b.rounds(ctx); err != nil {
		return nil, err
	}
	b.report.sum()
	return b.report, nil
}

func newBench(o *Options, w *world, at []string, p *trial.Progress) (*bench, error) {
	po := policy.DefaultOptions()
	po.Seed = o.Seed
	pol, err := policy.New(o.Policy, po)
	if err != nil {
		return nil, err
	}
	b := &bench{o: o, w: w, policy: pol, p: p, rng: rand.New(rand.NewPCG(o.Seed, 0x646563696465))} //nolint:gosec // seeded on purpose
	var ws []*fleet.Worker
	for i, endpoint := range at {
		x := fleet.NewWorker("w"+strconv.Itoa(i+1), &fleet.Spec{
			URL: "http://127.0.0.1:" + strconv.Itoa(i+1), Models: []string{modelName}, Engine: fleet.VLLM, Ranks: 1,
			Instance: strconv.Itoa(i + 1), BlockSize: blockTokens, Events: fleet.Events{Endpoint: endpoint},
		})
		x.SetState(fleet.Ready)
		ws = append(ws, x)
	}
	b.pool = fleet.NewPool(modelName, 1, ws)
	b.leases = make([]*fleet.Lease, max(o.Workers*o.InFlight, 1))
	for _, h := range b.pool.Holders {
		b.reading(h)
	}
	b.report = newReport(o, w)
	return b, nil
}

// reading gives h a new report, as it would be with the leases that it has.
func (b *bench) reading(h *fleet.Holder) {
	r := &fleet.Reading{
		At: fleet.Now(), Pushed: true, Running: h.InFlight(), WaitingUncached: -1, Usage: -1, ActiveUsage: b.rng.Float64() / 2,
		Throughput: 2_500, MaxRunning: 256, PrefillPending: h.PrefillInFlight(), SilenceMS: -1,
	}
	h.Stamp(r)
	h.SetReading(r)
}

// open makes the arms and waits until each knows all.
func (b *bench) open(ctx context.Context, m *machines, f *feed) error {
	indexes := 0
	for _, name := range b.o.Arms {
		a, why, err := m.open(ctx, name, b.pool.Workers)
		if a != nil {
			b.arms = append(b.arms, a)
		}
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		case why != "":
			b.report.Left[name] = why
			b.p.Alwaysf("%s is left out: %s", name, why)
		case a.index != nil:
			indexes++
		}
	}
	if indexes == 0 {
		return errors.New("--kv-index: must have one with an index")
	}
	if err := f.subscribed(ctx, indexes); err != nil {
		return err
	}
	if err := f.announce(ctx, b.w); err != nil {
		return err
	}
	for _, a := range b.arms {
		if err := a.settled(ctx, b.w.questions); err != nil {
			return err
		}
		b.p.Alwaysf("%s knows %d blocks of %d workers and answers %d questions right", a.name, b.w.blocks, b.o.Workers, len(b.w.questions))
	}
	return nil
}

// rounds measures every arm once a round, in a fresh order each time.
func (b *bench) rounds(ctx context.Context) error {
	for round := range b.o.Rounds {
		b.rng.Shuffle(len(b.arms), func(i, j int) { b.arms[i], b.arms[j] = b.arms[j], b.arms[i] })
		for i, a := range b.arms {
			if err := ctx.Err(); err != nil {
				return err
			}
			t, err := b.one(ctx, a)
			if err != nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
			t.Round = round
			b.report.Trials = append(b.report.Trials, t)
			b.p.Sayf("round %d of %d, %d of %d: %s %s", round+1, b.o.Rounds, i+1, len(b.arms), a.name, t)
		}
	}
	return nil
}

// one takes one trial, on a thread of its own.
func (b *bench) one(ctx context.Context, a *arm) (t *Trial, err error) {
	done := make(chan struct{})
	go func() { // a thread that was pinned ends with it
		defer close(done)
		if a.pin == nil {
			runtime.LockOSThread()
		} else if _, err = numa.LockAndPin(a.pin); err != nil {
			return
		}
		runtime.GC()
		t, err = b.timed(ctx, a)
	}()
	<-done
	return t, err
}

// timed decides at the rate, a tenth of the time untimed before.
func (b *bench) timed(ctx context.Context, a *arm) (*Trial, error) {
	n := int(float64(b.o.Rate) * b.o.Trial.Seconds())
	warm := n / 10
	t := &Trial{Arm: a.name, Branches: map[string]int{}}
	var branches [policy.Branches]int
	b.total, b.look, b.choice = b.total[:0], b.look[:0], b.choice[:0]
	clock := int64(trial.ThreadClockCost())
	interval := int64(time.Second) / int64(b.o.Rate)
	var answer lookup.Answer
	var cpu int64
	due := fleet.Now() + interval
	for i := range warm + n {
		q := &b.w.questions[b.rng.IntN(len(b.w.questions))]
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for fleet.Now() < due { // a sleep would end too late
		}
		s, err := b.decide(ctx, a, q, &answer)
		if err != nil {
			return nil, err
		}
		b.move(s.d, q)
		if i >= warm {
			t.Decisions++
			branches[s.d.Branch]++
			if s.failed {
				t.Failed++
			}
			if s.at-due > interval {
				t.Late++
			}
			cpu += max(s.cpu-clock, 0)
			if s.lost(a.index != nil && a.remote(), clock) {
				t.Dropped++
			} else {
				b.total = append(b.total, uint32(s.look+s.choice))
				b.look = append(b.look, uint32(s.look))
				b.choice = append(b.choice, uint32(s.choice))
			}
		}
		due += interval
	}
	for i, n := range branches {
		if n > 0 {
			t.Branches[policy.Branch(i).String()] = n
		}
	}
	t.CPU = float64(cpu) / float64(t.Decisions)
	t.Total, t.Lookup, t.Choice = trial.NewLatency(b.total), trial.NewLatency(b.look), trial.NewLatency(b.choice)
	if t.Total == nil {
		return nil, errors.New("the thread lost its CPU in every decision: the machine is too busy")
	}
	return t, nil
}

// sample is one decision. Times are ns.
type sample struct {
	d            *policy.Decision
	at           int64 // begun
	look, choice int64
	cpu          int64 // of the thread, with one read of its clock
	gave, taken  int64 // CPUs
	failed       bool
}

// lost reports whether the thread was without a CPU meanwhile: where it waits for
// another process it gives its CPU away by itself.
func (s *sample) lost(waits bool, clock int64) bool {
	if waits {
		return s.taken > 0
	}
	return s.taken > 0 || s.gave > 0 || s.look+s.choice > s.cpu+clock
}

var decision policy.Decision

// decide is one decision, timed.
func (b *bench) decide(ctx context.Context, a *arm, q *question, answer *lookup.Answer) (sample, error) {
	s := sample{d: &decision}
	gave, taken := numa.ThreadSwitches()
	cpu := numa.ThreadCPU()
	s.at = fleet.Now()
	matches := q.last
	if a.index != nil {
		s.failed = a.index.Lookup(ctx, &q.query, answer) != nil
		matches = answer.Matches
	}
	b.matches = b.matches[:0]
	for i := range matches {
		m := &matches[i]
		if h := b.pool.Holder(m.Instance, m.Rank); h != nil {
			b.matches = append(b.matches, policy.Match{Holder: h, Blocks: m.Any, Device: m.Device, Degraded: m.Degraded})
		}
	}
	between := fleet.Now()
	question := policy.Question{
		Pool: b.pool, Prompt: q.prompt, BlockSize: blockTokens, Blocks: len(q.query.Hashes), Matches: b.matches,
		Key: uint64(q.prompt), Rank: -1, Now: between,
	}
	question.More = b.o.Limit > 0 && len(matches) >= b.o.Limit
	err := b.policy.Decide(&question, s.d)
	if err == nil && s.d.Guess && a.index != nil { // as the router does
		one := q.query
		one.Limit, one.Only = 0, []string{s.d.Holder.Worker.Spec.Instance}
		s.failed = s.failed || a.index.Lookup(ctx, &one, &b.alone) != nil
	}
	end := fleet.Now()
	s.cpu = numa.ThreadCPU() - cpu
	gave2, taken2 := numa.ThreadSwitches()
	s.look, s.choice = between-s.at, end-between
	s.gave, s.taken = gave2-gave, taken2-taken
	return s, err
}

// move lets the fleet go on by one request: it takes its place, the oldest one ends, and
// now and then a holder reports.
func (b *bench) move(d *policy.Decision, q *question) {
	if old := b.leases[b.at]; old != nil {
		old.Release()
	}
	l := d.Holder.Take(fleet.Work{Prompt: q.prompt, Cached: d.Cached, Stream: true})
	if b.at%4 == 0 {
		l.Moved(fleet.Now())
	}
	b.leases[b.at] = l
	b.at = (b.at + 1) % len(b.leases)
	if b.at%8 == 0 {
		b.reading(b.pool.Holders[b.rng.IntN(len(b.pool.Holders))])
	}
}

func (a *arm) remote() bool { return a.name == ArmRemote || a.name == ArmPinned }
