// SPDX-License-Identifier: Apache-2.0

package mooncake

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"kindex/asm"
	"kindex/harness/corpus"
	"kindex/harness/replay"
	"kindex/harness/trial"
	"kindex/numa"
	"kindex/shard"
)

// Result is what one trial measured.
type Result struct {
	trial.Report
	Mode   string `json:"mode"`
	Index  string `json:"index"`
	Shards int    `json:"shards"`
	Lanes  int    `json:"lanes"`
	Level  string `json:"cpu_features"`

	Placement string   `json:"placement"`        // one of Memories
	Placed    []Placed `json:"placed,omitempty"` // on machines of several memory nodes
	nodes     int
	options   *Options

	Memory *replay.Memory `json:"memory,omitempty"`

	BareEvents *replay.Applied `json:"bare_events,omitempty"` // mode bare: no lookups
	BareMix    *replay.Applied `json:"bare_mix,omitempty"`    // mode bare: with them
	Wrote      *replay.Applied `json:"wrote,omitempty"`       // write, contend: the lanes'
	Half       *replay.Looked  `json:"half_load,omitempty"`   // lookup
	Full       *replay.Looked  `json:"full_load,omitempty"`   // lookup; others: once all is applied
	Contended  *replay.Looked  `json:"contended,omitempty"`   // contend
	InOrder    *replay.InOrder `json:"in_order,omitempty"`    // mixed, open loops
}

// One measures once, in this process.
//
// Errors: of the corpus file and of the index; ctx's, between steps only.
func One(ctx context.Context, o Options, p *trial.Progress) (*Result, error) {
	if err := asm.SetLevel(o.Level); err != nil {
		return nil, err
	}
	p.Sayf("reading %s", o.Corpus)
	c, err := corpus.ReadFile(o.Corpus)
	if err != nil {
		return nil, err
	}
	if o.LimitOps > 0 && o.LimitOps < len(c.Ops) {
		c.Ops = c.Ops[:o.LimitOps]
	}
	topology, err := numa.Discover("/")
	if err != nil {
		return nil, err
	}
	shards, pins := place(&o, topology)
	src := &replay.Source{
		Corpus: c, Lanes: o.Lanes, Queries: o.Queries,
		NewTarget: func() (*replay.Target, error) {
			t, err := replay.NewTarget(o.Index, c.Workers, shards...)
			if err == nil {
				t.Pins = pins
			}
			return t, err
		},
	}
	r := &Result{nodes: len(topology.MemoryNodes()), options: &o, Placement: o.Memory, Mode: o.Mode, Index: o.Index, Shards: o.shards(), Lanes: o.Lanes, Level: asm.Level()}
	r.Report = trial.Report{Command: "mooncake", Corpus: filepath.Base(o.Corpus), Seed: o.Seed, Ops: int64(len(c.Ops))}
	p.Sayf("replaying %d operations", len(c.Ops))
	if err := profiled(o.Profile, func() error { return r.measure(src, &o) }); err != nil {
		return nil, err
	}
	if o.Check {
		r.Exact, err = replay.Check(ctx, src, func(done, of int) { p.Sayf("%d of %d operations compared with the reference", done, of) })
	}
	return r, err
}

// profiled runs f, with a CPU profile into the file name, if it is not empty. What is
// measured meanwhile is a little dearer.
func profiled(name string, f func() error) error {
	if name == "" {
		return f()
	}
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(out); err != nil {
		return errors.Join(err, out.Close())
	}
	err = f()
	pprof.StopCPUProfile()
	return errors.Join(err, out.Close())
}

// measure runs the mode.
func (r *Result) measure(src *replay.Source, o *Options) error {
	if o.WindowMS > 0 {
		return r.inOrder(src, time.Duration(o.WindowMS)*time.Millisecond)
	}
	switch o.Mode {
	case "bare":
		return r.bare(src)
	case "write":
		t, a, err := replay.Write(src)
		if err != nil {
			return err
		}
		r.Wrote = &a
		r.took(a.CPU, a.Blocks, a.Wall)
		return r.finish(src, t)
	case "lookup":
		t, half, full, err := replay.Lookups(src)
		if err != nil {
			return err
		}
		r.Half, r.Full = &half, &full
		r.Lookup, r.CPUPerLookup = full.Latency, full.CPU
		r.took(int64(full.CPU*float64(full.Lookups)), full.Blocks, full.Wall)
		return r.memory(t)
	case "contend":
		t, wrote, looked, err := replay.Contend(src)
		if err != nil {
			return err
		}
		r.Wrote, r.Contended = &wrote, &looked
		r.Lookup, r.CPUPerLookup = looked.Latency, looked.CPU
		r.took(wrote.CPU, wrote.Blocks, wrote.Wall)
		return r.memory(t)
	default:
		return r.inOrder(src, 0)
	}
}

func (r *Result) bare(src *replay.Source) error {
	t, events, err := replay.Bare(src)
	if err != nil {
		return err
	}
	if err := r.finish(src, t); err != nil {
		return err
	}
	mix, err := replay.BareMix(src)
	r.BareEvents, r.BareMix = &events, &mix
	r.took(events.CPU, events.Blocks, events.Wall)
	return err
}

func (r *Result) inOrder(src *replay.Source, window time.Duration) error {
	t, in, err := replay.Replay(src, window)
	if err != nil {
		return err
	}
	r.InOrder = in
	latency := in.Latency
	front := in.FrontCPU
	if window > 0 {
		front = in.Looking // the rest of it mostly waited for deadlines
	}
	r.took(front+in.LaneCPU, in.Blocks, in.Wall)
	if window > 0 {
		r.Offered, r.Achieved = in.Offered(), in.Achieved()
		kept := in.KeptUp()
		r.KeptUp = &kept
	}
	err = r.finish(src, t)
	r.Lookup = latency
	return err
}

func (r *Result) took(cpu, blocks, wall int64) {
	r.BlockOps = blocks
	r.Wall = float64(wall) / 1e9
	r.SetCPU(cpu, blocks)
}

// finish times all lookups once all is applied, and reads what memory is taken.
func (r *Result) finish(src *replay.Source, t *replay.Target) error {
	full := replay.AllLookups(src, t)
	r.Full = &full
	r.Lookup, r.CPUPerLookup = full.Latency, full.CPU
	return r.memory(t)
}

// memory reads what the index takes, and where it lies.
func (r *Result) memory(t *replay.Target) (err error) {
	m := t.Memory()
	r.Memory = &m
	r.PerMembership, r.PerBlock = m.PerMembership, m.PerBlock
	if r.Index == shard.Kinds[0] {
		r.Placed, err = placed(r.options, r.nodes)
	}
	return err
}
