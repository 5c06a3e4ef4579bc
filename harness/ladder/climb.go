// SPDX-License-Identifier: Apache-2.0

package ladder

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"kindex/harness/corpus"
	"kindex/harness/mooncake"
	"kindex/harness/peers"
	"kindex/harness/trial"
)

// Trial is what one trial at one step showed.
type Trial struct {
	mooncake.Offer
	KeptUp    bool           `json:"kept_up"`
	Lookup    *trial.Latency `json:"lookup_ns"`
	DueToDone *trial.Latency `json:"lookup_due_to_done_ns,omitempty"` // ours
	CPU       float64        `json:"cpu_ns_per_block_op,omitempty"`   // ours
	Foreign   float64        `json:"foreign_cpus"`
}

// Step is one arm at one offered rate.
type Step struct {
	Arm       string        `json:"arm"`
	WindowMS  int           `json:"window_ms"`
	Offered   float64       `json:"offered"` // block operations a second, as achieved
	Achieved  float64       `json:"achieved"`
	KeptUp    bool          `json:"kept_up"`
	Sustained bool          `json:"sustained"`
	Lookup    trial.Latency `json:"lookup_ns"` // medians of the trials' quantiles
	P99       trial.Spread  `json:"lookup_p99_ns"`
	Foreign   float64       `json:"foreign_cpus"`
	Discarded int           `json:"discarded"` // trials on a busy machine
	Trials    []Trial       `json:"trials"`
}

// Climbed is a whole ladder. The report is of our highest step that was kept up with.
type Climbed struct {
	trial.Report
	Machine trial.Machine `json:"machine"`
	Arms    []string      `json:"arms"`
	Steps   []Step        `json:"steps"` // by rate, then by arm
	options Options
}

// Ours is the arm of this program's index.
const Ours = "kindex"

// ask runs one trial of arm in a window.
type ask func(ctx context.Context, arm string, windowMS int) (Trial, error)

// Climb climbs, each trial in a fresh process.
//
// Errors: of the corpus file; a child's; ctx's.
func Climb(ctx context.Context, o Options, p *trial.Progress, stderr io.Writer) (*Climbed, error) {
	c, err := corpus.ReadFile(o.Mooncake.Corpus)
	if err != nil {
		return nil, err
	}
	if n := o.Mooncake.LimitOps; n > 0 && n < len(c.Ops) {
		c.Ops = c.Ops[:n]
	}
	counts := c.Counts()
	if counts.BlockOps == 0 {
		return nil, fmt.Errorf("%s: a corpus without block operations", o.Mooncake.Corpus)
	}
	out, err := climb(ctx, &o, counts.BlockOps, p, func(ctx context.Context, arm string, windowMS int) (Trial, error) {
		if arm == Ours {
			return askOurs(ctx, &o, windowMS, stderr)
		}
		return askPeer(ctx, &o, arm, windowMS, stderr)
	})
	if err == nil {
		out.Machine = trial.ThisMachine()
		out.Ops, out.BlockOps = counts.Ops, counts.BlockOps
	}
	return out, err
}

func climb(ctx context.Context, o *Options, blocks int64, p *trial.Progress, try ask) (*Climbed, error) {
	out := &Climbed{Arms: append([]string{Ours}, o.Peers...), options: *o}
	out.Report = trial.Report{Command: "ladder", Corpus: filepath.Base(o.Mooncake.Corpus), Seed: o.Mooncake.Seed}
	failed := map[string]int{}
	last := 0
	for n := range o.Steps {
		window := o.window(n, blocks)
		if window == last {
			break // no corpus is long enough for more
		}
		last = window
		steps, err := out.step(ctx, o, window, failed, try)
		if err != nil {
			return nil, err
		}
		for i := range steps {
			s := &steps[i]
			s.summarize()
			if failed[s.Arm]++; s.KeptUp {
				failed[s.Arm] = 0
			}
			p.Alwaysf("%s: %.1f M block operations a second offered, %.1f M achieved, kept up: %v, lookup p50 %d ns, p99 %d ns", s.Arm, s.Offered/1e6, s.Achieved/1e6, s.KeptUp, s.Lookup.P50, s.Lookup.P99)
		}
		out.Steps = append(out.Steps, steps...)
		climbing := false
		for _, arm := range out.Arms {
			climbing = climbing || failed[arm] < giveUp
		}
		if !climbing {
			break
		}
	}
	out.report()
	return out, nil
}

// step measures all arms that still climb, trial by trial in turn.
func (c *Climbed) step(ctx context.Context, o *Options, window int, failed map[string]int, try ask) ([]Step, error) {
	var steps []Step
	for _, arm := range c.Arms {
		if failed[arm] < giveUp {
			steps = append(steps, Step{Arm: arm, WindowMS: window})
		}
	}
	for range o.Runs {
		for i := range steps {
			t, more, err := calm(ctx, o.MaxForeign, steps[i].Arm, window, try)
			if err != nil {
				return nil, err
			}
			steps[i].Trials, steps[i].Discarded = append(steps[i].Trials, t), steps[i].Discarded+more
		}
	}
	return steps, nil
}

// calm makes a trial until the machine was calm during it, and counts those discarded.
func calm(ctx context.Context, most float64, arm string, window int, try ask) (best Trial, discarded int, err error) {
	for n := range attempts {
		t, err := try(ctx, arm, window)
		if err != nil {
			return t, n, err
		}
		if n == 0 || t.Foreign < best.Foreign {
			best = t
		}
		if discarded = n; best.Foreign <= most {
			break
		}
	}
	return best, discarded, nil
}

func (s *Step) summarize() {
	med := func(f func(Trial) float64) float64 { return trial.SpreadOf(s.Trials, f).Median }
	s.Offered, s.Achieved = med(func(t Trial) float64 { return t.Offered }), med(func(t Trial) float64 { return t.Achieved })
	s.Foreign = med(func(t Trial) float64 { return t.Foreign })
	s.KeptUp, s.Sustained = true, true
	var timed []Trial
	for _, t := range s.Trials {
		s.KeptUp, s.Sustained = s.KeptUp && t.KeptUp, s.Sustained && t.Sustained()
		if t.Lookup != nil {
			timed = append(timed, t)
		}
	}
	if len(timed) == 0 {
		return
	}
	of := func(f func(*trial.Latency) uint32) trial.Spread {
		return trial.SpreadOf(timed, func(t Trial) float64 { return float64(f(t.Lookup)) })
	}
	s.P99 = of(func(l *trial.Latency) uint32 { return l.P99 })
	s.Lookup = trial.Latency{
		Samples: timed[0].Lookup.Samples,
		P50:     uint32(of(func(l *trial.Latency) uint32 { return l.P50 }).Median),
		P99:     uint32(s.P99.Median),
		P999:    uint32(of(func(l *trial.Latency) uint32 { return l.P999 }).Median),
		Max:     uint32(of(func(l *trial.Latency) uint32 { return l.Max }).Max),
	}
}

// report fills in what our index showed where it last kept up.
func (c *Climbed) report() {
	for i := range c.Steps {
		if s := &c.Steps[i]; s.Arm == Ours && (c.KeptUp == nil || s.KeptUp) {
			kept := s.KeptUp
			c.Offered, c.Achieved, c.KeptUp, c.Lookup = s.Offered, s.Achieved, &kept, &s.Lookup
			c.CPUPerBlockOp = trial.SpreadOf(s.Trials, func(t Trial) float64 { return t.CPU }).Median
			c.Wall = float64(s.WindowMS) / 1e3
		}
	}
	if c.CPUPerBlockOp > 0 {
		c.BlockOpsPerS = 1e9 / c.CPUPerBlockOp
	}
}

func askOurs(ctx context.Context, o *Options, windowMS int, stderr io.Writer) (Trial, error) {
	m := o.Mooncake
	m.WindowMS = windowMS
	r := &mooncake.Result{}
	ran, err := trial.SelfInto(ctx, stderr, r, m.Args()...)
	if err != nil {
		return Trial{}, err
	}
	return Trial{
		Offer:  mooncake.Offer{Offered: r.Offered, Achieved: r.Achieved, Issued: float64(r.InOrder.Issued) / float64(r.InOrder.Window)},
		KeptUp: *r.KeptUp, Lookup: r.InOrder.Latency, DueToDone: r.InOrder.DueToDone, CPU: r.CPUPerBlockOp, Foreign: ran.Foreign,
	}, nil
}

func askPeer(ctx context.Context, o *Options, arm string, windowMS int, stderr io.Writer) (Trial, error) {
	out, ran, err := peers.Ask(ctx, o.PeersBin, peers.Question{
		Indexer: arm, Mode: "replay", Corpus: o.Mooncake.Corpus, Lanes: o.Mooncake.Lanes, WindowMS: windowMS, LimitOps: o.Mooncake.LimitOps,
	}, stderr)
	if err != nil {
		return Trial{}, err
	}
	return peerTrial(out.Last(), ran.Foreign), nil
}

func peerTrial(r *peers.Run, foreign float64) Trial {
	t := Trial{Offer: mooncake.Offer{Offered: r.Offered, Achieved: r.Achieved, Issued: r.IssuedOverWindow}, KeptUp: r.KeptUp, Foreign: foreign}
	if s := r.Service; s != nil {
		t.Lookup = &trial.Latency{Samples: s.Samples, P50: s.P50, P99: s.P99, P999: s.P999, Max: s.Max}
	}
	return t
}

// WriteJSON writes c as one object.
func (c *Climbed) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(c) }

// WriteText writes c as a Markdown table.
func (c *Climbed) WriteText(w io.Writer) error {
	var b strings.Builder
	o := &c.options.Mooncake
	fmt.Fprintf(&b, "%s\n%s, %d block operations, open loop; ours: index %s, %d lanes, kernels %s; %d trials a step, each in a fresh process\n\n", c.Machine, c.Corpus, c.BlockOps, o.Index, o.Lanes, o.Level, c.options.Runs)
	fmt.Fprint(&b, "| offered, M/s | arm | achieved, M/s | kept up | sustained | lookup p50, ns | p99 | p99.9 | foreign CPUs | trials discarded |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	yes := func(x bool) string { return map[bool]string{true: "yes", false: "no"}[x] }
	for _, s := range c.Steps {
		fmt.Fprintf(&b, "| %.2f | %s | %.2f | %s | %s | %d | %s | %d | %.2f | %d |\n", s.Offered/1e6, s.Arm, s.Achieved/1e6, yes(s.KeptUp), yes(s.Sustained), s.Lookup.P50, s.P99.Text(0), s.Lookup.P999, s.Foreign, s.Discarded)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
