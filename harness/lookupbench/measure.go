// SPDX-License-Identifier: Apache-2.0

package lookupbench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"time"

	"kindex/harness/proc"
	"kindex/harness/trial"
)

// Trial is one arm in one round.
type Trial struct {
	Arm       string         `json:"arm"`
	Again     bool           `json:"again,omitempty"` // the control
	Round     int            `json:"round"`
	Discarded bool           `json:"discarded,omitempty"`
	Foreign   float64        `json:"foreign_cpus"`
	Lookups   int64          `json:"lookups"`
	Wrong     int64          `json:"wrong"`
	Wall      float64        `json:"wall_s"`
	Latency   *trial.Latency `json:"lookup_ns"`
	ClientCPU float64        `json:"client_cpu_ns"` // of a lookup
	ServerCPU float64        `json:"server_cpu_ns"` // the same; 0 in process, where all is the client's
}

// bench is what the trials share.
type bench struct {
	o       *Options
	hosts   *hosts
	arms    map[string]*arm
	times   [][]uint32
	rng     *rand.Rand
	p       *trial.Progress
	report  *Report
	measure func(context.Context, *arm) (*Trial, error) // b.one, but for tests
}

// Measure fills all hosts alike and measures all arms, in rounds.
func Measure(ctx context.Context, o *Options, p *trial.Progress) (*Report, error) {
	w := newWorld(o)
	qs := w.questions(o.Questions, o.Seed)
	h, left, err := startHosts(ctx, o.Arms)
	if err != nil {
		return nil, err
	}
	defer h.close()
	for name, why := range left {
		p.Alwaysf("%s is left out: %s", name, why)
	}
	// Its sockets stay: without them content is no longer told to be exact.
	f, err := newFleet(o.Instances)
	if err != nil {
		return nil, err
	}
	defer f.close()
	if err := fill(ctx, f, h, w, qs, p); err != nil {
		return nil, err
	}
	b := newBench(o, h, p)
	b.report.Left, b.report.Memberships = left, w.memberships
	defer func() {
		for _, a := range b.arms {
			a.end()
		}
	}()
	for _, name := range o.Arms {
		if left[name] != "" {
			continue
		}
		a, err := openArm(ctx, name, h, o, qs)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		b.arms[name] = a
		b.times = slices.Grow(b.times, len(a.askers))
		b.times = b.times[:max(len(b.times), len(a.askers))]
	}
	if err := b.rounds(ctx); err != nil {
		return nil, err
	}
	b.report.sum()
	return b.report, nil
}

// fill announces w to all hosts and waits until each holds it.
func fill(ctx context.Context, f *fleet, h *hosts, w *world, qs []question, p *trial.Progress) error {
	for _, x := range h.all() {
		if err := x.register(ctx, f.at); err != nil {
			return err
		}
	}
	if err := f.subscribed(len(h.all())); err != nil {
		return err
	}
	if err := f.announce(w); err != nil {
		return err
	}
	for _, x := range h.all() {
		if err := x.settled(ctx, qs); err != nil {
			return err
		}
		p.Alwaysf("%s holds %d memberships and answers %d questions right", x.name, w.memberships, len(qs))
	}
	return nil
}

func newBench(o *Options, h *hosts, p *trial.Progress) *bench {
	b := &bench{
		o: o, hosts: h, arms: map[string]*arm{}, p: p,
		rng: rand.New(rand.NewPCG(o.Seed, 0x6f72646572)), //nolint:gosec // seeded on purpose
	}
	b.report = newReport(o)
	b.measure = b.one
	return b
}

// turn is one trial to be taken.
type turn struct {
	arm   string
	again bool
}

// rounds measures every arm once a round, in a fresh order each time.
func (b *bench) rounds(ctx context.Context) error {
	var turns []turn
	for _, name := range b.o.Arms {
		if b.arms[name] != nil {
			turns = append(turns, turn{arm: name})
			if name == b.o.Control {
				turns = append(turns, turn{arm: name, again: true})
			}
		}
	}
	for round := range b.o.Rounds {
		b.rng.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
		for i, t := range turns {
			if err := b.kept(ctx, round, t); err != nil {
				return err
			}
			b.p.Sayf("round %d of %d, %d of %d: %s", round+1, b.o.Rounds, i+1, len(turns), b.report.last())
		}
	}
	return nil
}

// kept takes one trial until nothing disturbs it.
func (b *bench) kept(ctx context.Context, round int, t turn) error {
	for range trial.MaxDiscarded {
		if err := ctx.Err(); err != nil {
			return err
		}
		x, err := b.measure(ctx, b.arms[t.arm])
		if err != nil {
			return fmt.Errorf("%s: %w", t.arm, err)
		}
		x.Arm, x.Again, x.Round = t.arm, t.again, round
		x.Discarded = x.Foreign > b.o.MaxForeign
		b.report.Trials = append(b.report.Trials, x)
		if !x.Discarded {
			return nil
		}
		b.p.Sayf("%s is taken again: %.2f foreign CPUs", t.arm, x.Foreign)
	}
	return fmt.Errorf("%s: %w", t.arm, trial.ErrBusy(trial.MaxDiscarded, b.o.MaxForeign))
}

// one takes one trial.
func (b *bench) one(ctx context.Context, a *arm) (*Trial, error) {
	times := b.times[:len(a.askers)]
	if err := a.run(ctx, b.o.Trial/10, b.o.Questions, times); err != nil {
		return nil, err
	}
	var x Trial
	for _, k := range a.askers {
		x.Wrong += k.judge()
	}
	for i := range times {
		x.Lookups += int64(len(times[i]))
	}
	warm := x.Lookups // held against the content, too, and not timed
	runtime.GC()      // what the last trial left is no part of this one
	before, err := b.sample(a)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := a.run(ctx, b.o.Trial, b.o.Questions, times); err != nil {
		return nil, err
	}
	x.Wall = time.Since(begun).Seconds()
	after, err := b.sample(a)
	if err != nil {
		return nil, err
	}
	x.Foreign = before.cpus.Foreign(after.cpus, (after.children - before.children).Seconds())
	all := slices.Concat(times...)
	timed := len(all)
	x.Latency = trial.NewLatency(all)
	for _, k := range a.askers {
		x.Wrong += k.judge()
	}
	x.Lookups = warm + int64(timed)
	n := float64(max(timed, 1))
	x.ClientCPU = float64(after.client-before.client) / n
	x.ServerCPU = float64(after.server-before.server) / n
	return &x, a.host.ended()
}

// sampled is what was used at one moment.
type sampled struct {
	cpus                     trial.CPUSample
	client, server, children time.Duration
}

func (b *bench) sample(a *arm) (s sampled, err error) {
	if s.children, err = b.hosts.cost(); err != nil {
		return s, err
	}
	if a.host.proc != nil {
		c, err := proc.CostOf(a.host.pid())
		if err != nil {
			return s, err
		}
		s.server = c.CPU
	}
	c, err := proc.CostOf(os.Getpid())
	s.client, s.cpus = c.CPU, trial.CPUs()
	return s, err
}
