// SPDX-License-Identifier: Apache-2.0

package gatewaybench

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"kindex/harness/proc"
	"kindex/harness/trial"
)

// Trial is one target in one cell of one round.
type Trial struct {
	Target   string  `json:"target"`
	Kind     string  `json:"kind"`
	Conns    int     `json:"connections"`
	Round    int     `json:"round"` // from 1
	Requests int     `json:"requests"`
	PerS     float64 `json:"requests_per_s"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
	First50  float64 `json:"first_byte_p50_us"`
	CPU      float64 `json:"cpu_us_per_request"` // of the gateway; of the worker, where there is none
	Foreign  float64 `json:"foreign_cpus"`       // that none of these programs kept busy
}

// Start is one target at the begin and the end of a round.
type Start struct {
	Target  string  `json:"target"`
	Round   int     `json:"round"`
	ReadyMs float64 `json:"ready_ms"`
	IdleRSS uint64  `json:"idle_rss_bytes"`
	IdleCPU float64 `json:"idle_cpu_ms_per_s"`
	EndRSS  uint64  `json:"rss_after_load_bytes"`
}

// client is the process that sends requests.
type client struct {
	child *proc.Process
	tell  *json.Encoder
	heard *json.Decoder
	next  uint64
}

func (p *programs) startClient() (*client, error) {
	exe, args := pinned(p.othersOn, p.self, []string{"gatewaybench", RoleClient})
	child, err := proc.Talk(exe, args...)
	if err != nil {
		return nil, err
	}
	return &client{child: child, tell: json.NewEncoder(child.Stdin), heard: json.NewDecoder(child.Out)}, nil
}

func (c *client) close() {
	_ = c.child.Stdin.Close()
	c.child.Wait()
}

// run carries out one order; at is called when it begins to count and at its end.
func (c *client) run(o *Order, at func() error) (*Seen, error) {
	o.First = c.next
	if err := c.tell.Encode(o); err != nil {
		return nil, c.lost(err)
	}
	for {
		s := new(Seen)
		if err := c.heard.Decode(s); err != nil {
			return nil, c.lost(err)
		}
		if err := at(); err != nil {
			return nil, err
		}
		if !s.Counting {
			c.next = s.Last
			return s, nil
		}
	}
}

func (c *client) lost(err error) error {
	return fmt.Errorf("the client: %w: %s", err, c.child.Log.Last())
}

// Measure runs all rounds.
func Measure(ctx context.Context, o *Options, p *trial.Progress) (*Report, error) {
	found, err := find(ctx, o)
	if err != nil {
		return nil, err
	}
	r := &Report{Machine: trial.ThisMachine(), Options: *o}
	if found.note != "" {
		r.Notes = append(r.Notes, found.note)
	}
	for round := 1; round <= o.Rounds; round++ {
		if err := r.round(ctx, found, round, p); err != nil {
			return nil, fmt.Errorf("round %d: %w", round, err)
		}
	}
	r.sum()
	return r, nil
}

// round starts everything and puts each target through each cell.
func (r *Report) round(ctx context.Context, found *programs, round int, p *trial.Progress) error {
	f, err := found.start(ctx)
	defer f.close()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.client.child.Out.Close() })
	defer stop()
	first := len(r.Starts)
	if err := r.idle(ctx, f, round); err != nil {
		return err
	}
	cell := 0
	for _, kind := range r.Options.Kinds {
		for _, conns := range r.Options.Conns {
			for i := range r.Options.Targets {
				t := f.targets[r.Options.Targets[(i+cell+round)%len(r.Options.Targets)]]
				x, err := r.trial(f, t, kind, conns)
				if err != nil {
					return fmt.Errorf("%s, %s, %d connections: %w", t.name, kind, conns, err)
				}
				x.Round = round
				r.Trials = append(r.Trials, x)
				p.Sayf("round %d of %d: %s, %d connections, %s: p50 %.0f us, CPU %.1f us a request, %.2f foreign CPUs", round, r.Options.Rounds, kind, conns, t.name, x.P50, x.CPU, x.Foreign)
			}
			cell++
		}
	}
	for _, s := range r.Starts[first:] {
		c, err := costOf(f.targets[s.Target].child.PID())
		if err != nil {
			return err
		}
		s.EndRSS = c.RSS
	}
	return nil
}

// idle leaves all targets alone and reads what they take.
func (r *Report) idle(ctx context.Context, f *fleet, round int) error {
	if err := pause(ctx, r.Options.Idle); err != nil {
		return err
	}
	var before []proc.Cost
	first := len(r.Starts)
	for _, name := range r.Options.Targets {
		t := f.targets[name]
		if t.child == nil {
			continue
		}
		c, err := costOf(t.child.PID())
		if err != nil {
			return err
		}
		before = append(before, c)
		r.Starts = append(r.Starts, &Start{Target: name, Round: round, ReadyMs: float64(t.ready.Microseconds()) / 1e3, IdleRSS: c.RSS})
	}
	began := time.Now()
	if err := pause(ctx, r.Options.Idle); err != nil {
		return err
	}
	for i, s := range r.Starts[first:] {
		c, err := costOf(f.targets[s.Target].child.PID())
		if err != nil {
			return err
		}
		if wall := time.Since(began).Seconds(); wall > 0 {
			s.IdleCPU = float64((c.CPU - before[i].CPU).Nanoseconds()) / 1e6 / wall
		}
	}
	return nil
}

// trial measures one target in one cell.
func (r *Report) trial(f *fleet, t *target, kind string, conns int) (*Trial, error) {
	o := &r.Options
	measured := f.others[0]
	if t.child != nil {
		measured = t.child
	}
	var costs []proc.Cost
	var all []time.Duration // what all of these programs used
	var cpus []trial.CPUSample
	seen, err := f.client.run(&Order{Addr: t.addr, Kind: kind, Conns: conns, Warm: o.Warm, For: o.For, Seed: o.Seed}, func() error {
		c, err := costOf(measured.PID())
		costs, all, cpus = append(costs, c), append(all, f.cpu()), append(cpus, trial.CPUs())
		return err
	})
	if err != nil {
		return nil, err
	}
	switch {
	case seen.Wrong > 0:
		return nil, fmt.Errorf("%d of its answers were wrong, the first: %s", seen.Wrong, seen.Why)
	case seen.Requests == 0 || len(costs) != 2:
		return nil, fmt.Errorf("nothing was answered within %v", o.For)
	}
	return &Trial{
		Target: t.name, Kind: kind, Conns: conns, Requests: seen.Requests, PerS: float64(seen.Requests) * 1e9 / float64(seen.WallNS),
		P50: float64(seen.Total.P50) / 1e3, P99: float64(seen.Total.P99) / 1e3, First50: float64(seen.First.P50) / 1e3,
		CPU:     float64((costs[1].CPU - costs[0].CPU).Nanoseconds()) / 1e3 / float64(seen.Requests),
		Foreign: cpus[0].Foreign(cpus[1], (all[1] - all[0]).Seconds()),
	}, nil
}

// cpu is what all of a fleet's programs have used.
func (f *fleet) cpu() (sum time.Duration) {
	add := func(p *proc.Process) {
		if p == nil {
			return
		}
		if c, err := costOf(p.PID()); err == nil {
			sum += c.CPU
		}
	}
	for _, t := range f.targets {
		add(t.child)
	}
	for _, p := range f.others {
		add(p)
	}
	add(f.client.child)
	return sum
}
