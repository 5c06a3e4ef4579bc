// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"kindex/indexsrv"
	"kindex/internal/kv"
	"kindex/numa"
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
	Machine Machine `json:"machine"`
	Index   string  `json:"index"`
	Seed    uint64  `json:"seed"`
	Repeats int     `json:"repeats"`

	Apply   []Apply  `json:"apply"`
	Lookups []Lookup `json:"lookups"`
	Memory  []Memory `json:"memory"`
	// Clock is what reading the clock twice takes: it is within every lookup.
	Clock Figure `json:"clock_ns"`
}

// Apply is CPU time from frame to index, in nanoseconds for each stored block;
// what its removal took is in it.
type Apply struct {
	Workload string  `json:"workload"`
	Stored   int     `json:"stored_blocks"`
	Removed  int     `json:"removed_blocks"`
	Frame    float64 `json:"frame_bytes_per_block"`
	Decode   Figure  `json:"decode_ns"` // payload to events
	Hash     Figure  `json:"hash_ns"`   // tokens to content hashes
	Index    Figure  `json:"index_ns"`  // stores and removals
	Total    Figure  `json:"total_ns"`  // all of a stream's pipeline, measured on its own
}

// Lookup is the time of one lookup, in nanoseconds.
type Lookup struct {
	Blocks  int    `json:"blocks"`
	Holders int    `json:"holders"`
	P50     Figure `json:"p50_ns"`
	P99     Figure `json:"p99_ns"`
}

// Memory is what memberships take.
type Memory struct {
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
	r := &Report{Machine: machine(), Index: o.Index, Seed: o.Seed, Repeats: o.Repeats, Clock: clock(o.Repeats)}
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
	for _, blocks := range []int{64, 512} {
		for _, holders := range []int{1, 16, 128} {
			l, err := lookups(ctx, blocks, holders, o)
			if err != nil {
				return nil, err
			}
			r.Lookups = append(r.Lookups, l)
		}
	}
	for _, holders := range []int{1, 16, 128} {
		m, err := memory(ctx, holders, o)
		if err != nil {
			return nil, err
		}
		r.Memory = append(r.Memory, m)
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
		Decode: figure(decode), Hash: figure(hash), Index: figure(index), Total: figure(total),
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
			if st := fd.Status(); st.State != indexsrv.StateActive || st.Memberships != uint64(w.stored-w.removed) {
				return fmt.Errorf("the stream is %s with %d memberships, not active with %d: %s", st.State, st.Memberships, w.stored-w.removed, st.LastError)
			}
			return nil
		}
	}
}

// lookups measures lookups of whole chains that all holders hold.
func lookups(ctx context.Context, blocks, holders int, o Options) (Lookup, error) {
	chains, rounds := 64, 20_000
	if o.Short {
		chains, rounds = 4, 200
	}
	var p50, p99 []float64
	for i := range o.Repeats {
		if err := ctx.Err(); err != nil {
			return Lookup{}, err
		}
		idx, asked, err := filled(o.Index, o.Seed+uint64(i), chains, blocks, holders)
		if err != nil {
			return Lookup{}, err
		}
		ns := model.Namespace(kv.HashSeed)
		rng := rand.New(rand.NewPCG(o.Seed, uint64(i))) //nolint:gosec // seeded on purpose
		times := make([]int64, rounds)
		var dst []kv.Match
		for n := range rounds + rounds/10 {
			c := asked[rng.IntN(len(asked))]
			began := time.Now()
			dst = idx.Lookup(ns, c, dst[:0])
			took := time.Since(began)
			if len(dst) != holders || int(dst[0].Device) != blocks {
				return Lookup{}, fmt.Errorf("lookup of %d blocks and %d holders: %d answers, the first of depth %d", blocks, holders, len(dst), dst[0].Device)
			}
			if n >= rounds/10 { // the first warm the caches up
				times[n-rounds/10] = took.Nanoseconds()
			}
		}
		slices.Sort(times)
		p50, p99 = append(p50, quantile(times, 0.50)), append(p99, quantile(times, 0.99))
	}
	return Lookup{Blocks: blocks, Holders: holders, P50: figure(p50), P99: figure(p99)}, nil
}

// filled returns an index where every holder holds all of so many chains, and
// the chains. A holder's engine hashes are its own.
func filled(kind string, seed uint64, chains, blocks, holders int) (shard.Index, [][]kv.ContentHash, error) {
	idx, err := shard.New(kind, shard.Options{})
	if err != nil {
		return nil, nil, err
	}
	rng := rand.New(rand.NewPCG(seed, 0x6c6b)) //nolint:gosec // seeded on purpose
	ns := model.Namespace(kv.HashSeed)
	asked := make([][]kv.ContentHash, chains)
	engines := make([][]kv.EngineHash, chains)
	for i := range asked {
		for range blocks {
			asked[i] = append(asked[i], kv.ContentHash(rng.Uint64()))
			engines[i] = append(engines[i], kv.EngineHash(rng.Uint64()))
		}
	}
	for range holders {
		h, err := idx.AddHolder(model)
		if err != nil {
			return nil, nil, err
		}
		for i := range asked {
			// Engines of one model and seed name equal blocks alike.
			if err := idx.Store(h, &shard.Store{Namespace: ns, Engines: engines[i], Contents: asked[i]}); err != nil {
				return nil, nil, err
			}
		}
	}
	return idx, asked, nil
}

// memory measures what holders that all hold the same take.
func memory(ctx context.Context, holders int, o Options) (Memory, error) {
	if err := ctx.Err(); err != nil {
		return Memory{}, err
	}
	chains := 4_096
	if o.Short {
		chains = 16
	}
	const blocks = 64
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	idx, asked, err := filled(o.Index, o.Seed, chains, blocks, holders)
	if err != nil {
		return Memory{}, err
	}
	own := 0
	for _, c := range asked {
		own += 16 * cap(c)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	st := idx.Stats()
	m := Memory{Holders: holders, Blocks: st.Blocks, Memberships: st.Memberships, Purpose: map[string]float64{}}
	for p, n := range st.Bytes {
		name := shard.Purpose(p)
		m.Purpose[name.String()] = float64(n) / float64(st.Memberships)
		if name != shard.PurposeFree {
			m.PerMember += float64(n) / float64(st.Memberships)
			m.PerBlock += float64(n) / float64(st.Blocks)
		}
	}
	m.Heap = max(0, (float64(after.HeapAlloc)-float64(before.HeapAlloc)-float64(own))/float64(st.Memberships))
	runtime.KeepAlive(asked)
	runtime.KeepAlive(idx)
	return m, nil
}

// clock measures two readings of the clock.
func clock(repeats int) Figure {
	var out []float64
	for range repeats {
		times := make([]int64, 10_000)
		for i := range times {
			began := time.Now()
			times[i] = time.Since(began).Nanoseconds()
		}
		slices.Sort(times)
		out = append(out, quantile(times, 0.5))
	}
	return figure(out)
}
