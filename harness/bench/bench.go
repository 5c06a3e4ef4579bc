// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"kindex/asm"
	"kindex/harness/trial"
	"kindex/indexsrv"
	"kindex/internal/kv"
	"kindex/numa"
	"kindex/relay/feed"
	"kindex/relay/wire"
	"kindex/shard"
)

// Options say what is measured.
type Options struct {
	Index   string
	Seed    uint64
	Repeats int
	Short   bool // a small part of the work: to see that it runs
}

// Report is what a run measured.
type Report struct {
	Machine trial.Machine `json:"machine"`
	Level   string        `json:"cpu_features"` // what the index's kernels use
	Index   string        `json:"index"`
	Seed    uint64        `json:"seed"`
	Repeats int           `json:"repeats"`

	Apply   []Apply  `json:"apply"`
	Lookups []Lookup `json:"lookups"`
	Memory  []Memory `json:"memory"`
	// Clock is what reading the clock twice takes: it is within every lookup.
	Clock trial.Spread `json:"clock_ns"`
}

// Apply is CPU time from frame to index, in nanoseconds for each stored block;
// what its removal took is in it.
type Apply struct {
	Workload string       `json:"workload"`
	Stored   int          `json:"stored_blocks"`
	Removed  int          `json:"removed_blocks"`
	Frame    float64      `json:"frame_bytes_per_block"`
	Decode   trial.Spread `json:"decode_ns"` // payload to events
	Hash     trial.Spread `json:"hash_ns"`   // tokens to content hashes
	Index    trial.Spread `json:"index_ns"`  // stores and removals
	Total    trial.Spread `json:"total_ns"`  // all of a stream's pipeline, measured on its own
}

// Lookup is the time of one lookup, in nanoseconds.
type Lookup struct {
	Workload string       `json:"workload"`
	Blocks   int          `json:"blocks"`
	Holders  int          `json:"holders"`
	P50      trial.Spread `json:"p50_ns"`
	P99      trial.Spread `json:"p99_ns"`
}

// Memory is what memberships take.
type Memory struct {
	Workload    string             `json:"workload"`
	Holders     int                `json:"holders"`
	Blocks      uint64             `json:"blocks"`
	Memberships uint64             `json:"memberships"`
	PerMember   float64            `json:"bytes_per_membership"`
	PerBlock    float64            `json:"bytes_per_block"`
	Purpose     map[string]float64 `json:"bytes_per_membership_by_purpose"`
	Heap        float64            `json:"go_heap_bytes_per_membership"`
}

// Run measures everything. It ends early, with ctx's error, when ctx does.
func Run(ctx context.Context, o Options) (*Report, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := &Report{Machine: trial.ThisMachine(), Level: asm.Level(), Index: o.Index, Seed: o.Seed, Repeats: o.Repeats, Clock: clock(o.Repeats)}
	s := typical
	if o.Short {
		s.prompts, s.cache = s.prompts/20, s.cache/20
	}
	unevicted := s
	unevicted.cache = 0
	for _, w := range []struct {
		name string
		s    shape
	}{{"stores alone", unevicted}, {"stores and evictions", s}} {
		a, err := apply(ctx, w.name, w.s, o)
		if err != nil {
			return nil, err
		}
		r.Apply = append(r.Apply, a)
	}
	for _, mixed := range []bool{false, true} {
		for _, blocks := range []int{64, 512} {
			for _, holders := range []int{1, 16, 128} {
				l, err := lookups(ctx, fill{chains: 64, blocks: blocks, holders: holders, part: mixed, branch: mixed}, o)
				if err != nil {
					return nil, err
				}
				r.Lookups = append(r.Lookups, l)
			}
		}
	}
	for _, mixed := range []bool{false, true} {
		for _, holders := range []int{1, 16, 128} {
			m, err := memory(ctx, fill{chains: 4_096, blocks: 64, holders: holders, part: mixed, branch: mixed}, o)
			if err != nil {
				return nil, err
			}
			r.Memory = append(r.Memory, m)
		}
	}
	return r, nil
}

// perBlock returns the thread's CPU nanoseconds of f for each of n blocks.
func perBlock(n int, f func() error) (float64, error) {
	runtime.GC() // no assist for garbage made before
	before := numa.ThreadCPU()
	err := f()
	return float64(numa.ThreadCPU()-before) / float64(n), err
}

// apply measures one workload.
func apply(ctx context.Context, name string, s shape, o Options) (Apply, error) {
	var decode, hash, index, total []float64
	var w *workload
	for i := range o.Repeats {
		if err := ctx.Err(); err != nil {
			return Apply{}, err
		}
		w = generate(s, o.Seed+uint64(i))
		for _, step := range []struct {
			into *[]float64
			f    func(*workload) func() error
		}{{&decode, decodeAll}, {&hash, hashAll}, {&index, indexAll(o.Index)}, {&total, feedAll(o.Index)}} {
			ns, err := perBlock(w.stored, step.f(w))
			if err != nil {
				return Apply{}, err
			}
			*step.into = append(*step.into, ns)
		}
	}
	return Apply{
		Workload: name, Stored: w.stored, Removed: w.removed, Frame: float64(w.bytes) / float64(w.stored),
		Decode: spread(decode), Hash: spread(hash), Index: spread(index), Total: spread(total),
	}, nil
}

func decodeAll(w *workload) func() error {
	var d wire.Decoder
	var b kv.Batch
	return func() error {
		for _, f := range w.frames {
			if err := d.Decode(f, &b); err != nil {
				return err
			}
		}
		return nil
	}
}

func hashAll(w *workload) func() error {
	var out []kv.ContentHash
	return func() error {
		for i := range w.batches {
			for j := range w.batches[i].Events {
				b := kv.Blocks{Tokens: w.batches[i].Events[j].Tokens, BlockSize: blockSize}
				out = b.AppendHashes(out[:0], kv.HashSeed)
			}
		}
		return nil
	}
}

var model = kv.MakeModelKey("", "bench", "default")

// indexAll applies events that are decoded and hashed already.
func indexAll(kind string) func(*workload) func() error {
	return func(w *workload) func() error {
		idx, err := shard.New(kind, shard.Options{})
		if err != nil {
			return func() error { return err }
		}
		var contents [][]kv.ContentHash
		for i := range w.batches {
			for j := range w.batches[i].Events {
				b := kv.Blocks{Tokens: w.batches[i].Events[j].Tokens, BlockSize: blockSize}
				contents = append(contents, b.AppendHashes(nil, kv.HashSeed))
			}
		}
		h, err := idx.AddHolder(model)
		ns := model.Namespace(kv.HashSeed)
		return func() error {
			if err != nil {
				return err
			}
			n := 0
			for i := range w.batches {
				for j := range w.batches[i].Events {
					ev := &w.batches[i].Events[j]
					if err := applyOne(idx, h, ns, ev, contents[n]); err != nil {
						return err
					}
					n++
				}
			}
			return nil
		}
	}
}

func applyOne(idx shard.Index, h shard.Holder, ns kv.Namespace, ev *kv.Event, contents []kv.ContentHash) error {
	if ev.Kind == kv.KindRemoved {
		return idx.Remove(h, &shard.Remove{Engines: ev.Hashes})
	}
	return idx.Store(h, &shard.Store{
		Namespace: ns, Parent: ev.Parent, HasParent: ev.HasParent, Engines: ev.Hashes, Contents: contents,
		Blocks: kv.Blocks{Tokens: ev.Tokens, BlockSize: blockSize},
	})
}

// feedAll goes the whole way: admission, decoding, normalisation, index.
func feedAll(kind string) func(*workload) func() error {
	return func(w *workload) func() error {
		idx, err := shard.New(kind, shard.Options{})
		if err != nil {
			return func() error { return err }
		}
		wr := indexsrv.NewWriter(idx)
		h, err := wr.AddHolder(model)
		fd := indexsrv.NewFeed(indexsrv.StreamConfig{Model: model, BlockSize: blockSize, Engine: "vllm"}, wr, h)
		now := time.Unix(1_796_010_953, 0)
		fd.Connected(now)
		return func() error {
			if err != nil {
				return err
			}
			for i, f := range w.frames {
				fd.Live(uint64(i), f, now)
				fd.Next(now)
			}
			if st := fd.Status(); st.State != feed.StateActive || st.Memberships != uint64(w.stored-w.removed) {
				return fmt.Errorf("the stream is %s with %d memberships, not active with %d: %s", st.State, st.Memberships, w.stored-w.removed, st.LastError)
			}
			return nil
		}
	}
}

// fill says what an index holds: chains of so many blocks, each held by holders.
// With part a holder holds a beginning of random length of each. With branch a
// chain shares a beginning of random length with the one before it. Engines of
// one model and seed name equal blocks alike.
type fill struct {
	chains, blocks, holders int
	part, branch            bool
}

func (f fill) String() string {
	if f.part {
		return "branching chains, held in part"
	}
	return "whole chains"
}

// index returns a filled index, and the chains.
func (f fill) index(kind string, seed uint64) (shard.Index, [][]kv.ContentHash, error) {
	idx, err := shard.New(kind, shard.Options{})
	if err != nil {
		return nil, nil, err
	}
	rng := rand.New(rand.NewPCG(seed, 0x6c6b)) //nolint:gosec // seeded on purpose
	ns := model.Namespace(kv.HashSeed)
	chains := make([][]kv.ContentHash, f.chains)
	engines := make([][]kv.EngineHash, f.chains)
	for i := range chains {
		if f.branch && i%8 > 0 {
			n := rng.IntN(f.blocks)
			chains[i] = append(chains[i], chains[i-1][:n]...)
			engines[i] = append(engines[i], engines[i-1][:n]...)
		}
		for len(chains[i]) < f.blocks {
			chains[i] = append(chains[i], kv.ContentHash(rng.Uint64()))
			engines[i] = append(engines[i], kv.EngineHash(rng.Uint64()))
		}
	}
	for range f.holders {
		h, err := idx.AddHolder(model)
		if err != nil {
			return nil, nil, err
		}
		held := map[kv.EngineHash]bool{} // by h, of chains that share
		for i := range chains {
			n := f.blocks
			if f.part {
				n = 1 + rng.IntN(f.blocks)
			}
			have := 0 // an engine stores once what two prompts share
			for f.branch && have < n && held[engines[i][have]] {
				have++
			}
			if have == n {
				continue
			}
			for _, e := range engines[i][have:n] {
				if f.branch {
					held[e] = true
				}
			}
			st := shard.Store{Namespace: ns, Engines: engines[i][have:n], Contents: chains[i][have:n]}
			if have > 0 {
				st.HasParent, st.Parent = true, engines[i][have-1]
			}
			if err := idx.Store(h, &st); err != nil {
				return nil, nil, err
			}
		}
	}
	return idx, chains, nil
}

// lookups measures lookups of whole chains.
func lookups(ctx context.Context, f fill, o Options) (Lookup, error) {
	rounds := 20_000
	if o.Short {
		f.chains, rounds = 4, 40
	}
	var p50, p99 []float64
	for i := range o.Repeats {
		if err := ctx.Err(); err != nil {
			return Lookup{}, err
		}
		idx, chains, err := f.index(o.Index, o.Seed+uint64(i))
		if err != nil {
			return Lookup{}, err
		}
		ns := model.Namespace(kv.HashSeed)
		rng := rand.New(rand.NewPCG(o.Seed, uint64(i))) //nolint:gosec // seeded on purpose
		times := make([]int64, rounds)
		var dst []kv.Match
		for n := range rounds + rounds/10 {
			c := chains[rng.IntN(len(chains))]
			began := time.Now()
			dst = idx.Lookup(ns, c, dst[:0])
			took := time.Since(began)
			if len(dst) != f.holders || !f.part && int(dst[0].Device) != f.blocks {
				return Lookup{}, fmt.Errorf("lookup of %d blocks and %d holders: %d answers, the first of depth %d", f.blocks, f.holders, len(dst), dst[0].Device)
			}
			if n >= rounds/10 { // the first warm the caches up
				times[n-rounds/10] = took.Nanoseconds()
			}
		}
		slices.Sort(times)
		p50, p99 = append(p50, float64(trial.Quantile(times, 0.50))), append(p99, float64(trial.Quantile(times, 0.99)))
	}
	return Lookup{Workload: f.String(), Blocks: f.blocks, Holders: f.holders, P50: spread(p50), P99: spread(p99)}, nil
}

// memory measures what a filled index takes.
func memory(ctx context.Context, f fill, o Options) (Memory, error) {
	if err := ctx.Err(); err != nil {
		return Memory{}, err
	}
	if o.Short {
		f.chains = 16
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	idx, chains, err := f.index(o.Index, o.Seed)
	if err != nil {
		return Memory{}, err
	}
	own := 0
	for _, c := range chains {
		own += 8 * cap(c)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	st := idx.Stats()
	m := Memory{Workload: f.String(), Holders: f.holders, Blocks: st.Blocks, Memberships: st.Memberships, Purpose: map[string]float64{}}
	for p, n := range st.Bytes {
		name := shard.Purpose(p)
		m.Purpose[name.String()] = float64(n) / float64(st.Memberships)
		if name != shard.PurposeFree {
			m.PerMember += float64(n) / float64(st.Memberships)
			m.PerBlock += float64(n) / float64(st.Blocks)
		}
	}
	m.Heap = max(0, (float64(after.HeapAlloc)-float64(before.HeapAlloc)-float64(own))/float64(st.Memberships))
	runtime.KeepAlive(chains)
	runtime.KeepAlive(idx)
	return m, nil
}

// clock measures two readings of the clock.
func clock(repeats int) trial.Spread {
	var out []float64
	for range repeats {
		times := make([]int64, 10_000)
		for i := range times {
			began := time.Now()
			times[i] = time.Since(began).Nanoseconds()
		}
		slices.Sort(times)
		out = append(out, float64(trial.Quantile(times, 0.5)))
	}
	return spread(out)
}

// spread is one measured quantity over all repeats.
func spread(samples []float64) trial.Spread {
	return trial.SpreadOf(samples, func(x float64) float64 { return x })
}
