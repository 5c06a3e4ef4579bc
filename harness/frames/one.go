// SPDX-License-Identifier: Apache-2.0

package frames

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"kindex/asm"
	"kindex/harness/bench"
	"kindex/harness/trial"
	"kindex/indexsrv"
	"kindex/internal/kv"
	"kindex/lanes"
	"kindex/numa"
	"kindex/relay/feed"
	"kindex/relay/wire"
	"kindex/shard"
)

// Costs are CPU nanoseconds for each stored block, what its removal takes included.
type Costs struct {
	Decode float64 `json:"decode"`
	Hash   float64 `json:"hash"`
	Copies float64 `json:"copies"`
	Apply  float64 `json:"apply"`
	Queue  float64 `json:"queue"`
	All    float64 `json:"all"`
}

// Result is what one trial measured.
type Result struct {
	trial.Report
	Level   string  `json:"cpu_features"`
	Lanes   int     `json:"lanes"`
	Shards  int     `json:"shards"`
	Streams int     `json:"streams"`
	Stored  int64   `json:"stored_blocks"`
	Removed int64   `json:"removed_blocks"`
	PerS    float64 `json:"stored_blocks_per_wall_s"`
	Costs   Costs   `json:"cpu_ns_per_stored_block"`
}

// fleet is streams and what they are told to.
type fleet struct {
	o       *Options
	streams []*bench.Stream
	stored  int64
	removed int64
}

var (
	model = kv.MakeModelKey("", bench.Model, "default")
	when  = time.Unix(1_796_010_953, 0)
)

// One measures once, in this process.
//
// Errors: the index's and the lanes'; a stream that is not exact at the end; ctx's.
func One(ctx context.Context, o Options, p *trial.Progress) (*Result, error) {
	if err := asm.SetLevel(o.Level); err != nil {
		return nil, err
	}
	f := &fleet{o: &o}
	messages := 0
	for i := range o.Streams {
		s := bench.MakeStream(o.Prompts, o.Cache, o.Seed*1_000_003+uint64(i))
		f.streams = append(f.streams, s)
		f.stored, f.removed, messages = f.stored+int64(s.Stored), f.removed+int64(s.Removed), messages+len(s.Frames)
	}
	r := &Result{Level: asm.Level(), Lanes: o.Lanes, Shards: o.Shards, Streams: o.Streams, Stored: f.stored, Removed: f.removed}
	r.Report = trial.Report{Command: "lanes", Corpus: "generated", Seed: o.Seed, Ops: int64(messages), BlockOps: f.stored + f.removed}
	var rounds []took
	for i := range o.Rounds {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p.Sayf("round %d of %d on %d lanes", i+1, o.Rounds, o.Lanes)
		t, err := f.round()
		if err != nil {
			return nil, err
		}
		rounds = append(rounds, t)
	}
	r.Costs = f.costs(rounds)
	r.Wall = trial.SpreadOf(rounds, func(t took) float64 { return t.wall }).Median
	r.PerS = float64(f.stored) / r.Wall
	r.SetCPU(int64(r.Costs.All*float64(f.stored)), r.BlockOps)
	return r, nil
}

// took is CPU nanoseconds of one round, of all messages.
type took struct {
	decode, hashed, prepare, direct, all int64   // hashed: decoding, too
	wall                                 float64 // seconds, of all
}

// round measures everything once.
func (f *fleet) round() (t took, err error) {
	if t.decode, err = f.decode(false); err != nil {
		return t, err
	}
	if t.hashed, err = f.decode(true); err != nil {
		return t, err
	}
	if t.prepare, err = f.direct(false); err != nil {
		return t, err
	}
	if t.direct, err = f.direct(true); err != nil {
		return t, err
	}
	t.all, t.wall, err = f.through()
	return t, err
}

// costs takes the least of each over rounds: what others do to the caches only adds.
func (f *fleet) costs(rounds []took) Costs {
	least := func(f func(took) int64) float64 {
		return trial.SpreadOf(rounds, func(t took) float64 { return float64(f(t)) }).Min
	}
	n := float64(f.stored)
	decode, hashed := least(func(t took) int64 { return t.decode })/n, least(func(t took) int64 { return t.hashed })/n
	prepare, direct := least(func(t took) int64 { return t.prepare })/n, least(func(t took) int64 { return t.direct })/n
	all := least(func(t took) int64 { return t.all }) / n
	return Costs{Decode: decode, Hash: hashed - decode, Copies: prepare - hashed, Apply: direct - prepare, Queue: all - direct, All: all}
}

// decode takes the frames apart, streams in turn as they come in, and hashes the tokens
// while they are in the cache if told to. It returns the CPU nanoseconds.
func (f *fleet) decode(hash bool) (int64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	decoders, batches := make([]wire.Decoder, f.o.Streams), make([]kv.Batch, f.o.Streams)
	var hashes []kv.ContentHash
	runtime.GC()
	began := numa.ThreadCPU()
	err := f.turns(func(k, from, to int) error {
		batch := &batches[k]
		for _, frame := range f.streams[k].Frames[from:to] {
			if err := decoders[k].Decode(frame, batch); err != nil {
				return err
			}
			for i := 0; hash && i < len(batch.Events); i++ {
				b := kv.Blocks{Tokens: batch.Events[i].Tokens, BlockSize: bench.BlockSize}
				hashes = b.AppendHashes(hashes[:0], kv.HashSeed)
			}
		}
		return nil
	})
	return numa.ThreadCPU() - began, err
}

// turns goes over all messages, a burst of each stream in turn.
func (f *fleet) turns(fn func(stream, from, to int) error) error {
	for from := 0; ; from += f.o.Burst {
		more := false
		for k, s := range f.streams {
			if from < len(s.Frames) {
				more = true
				if err := fn(k, from, min(from+f.o.Burst, len(s.Frames))); err != nil {
					return err
				}
			}
		}
		if !more {
			return nil
		}
	}
}

// begin makes an index and a feed for each stream, on lanes where there is a pool.
func (f *fleet) begin(pool *lanes.Pool) ([]*indexsrv.Feed, []*lanes.Worker, error) {
	idx, err := shard.NewSharded("chain", make([]shard.Options, f.o.Shards)...)
	if err != nil {
		return nil, nil, err
	}
	w := indexsrv.NewWriter(idx)
	if pool != nil {
		w = indexsrv.NewPoolWriter(idx, pool)
	}
	var feeds []*indexsrv.Feed
	var workers []*lanes.Worker
	for range f.o.Streams {
		h, err := w.AddHolder(model)
		if err != nil {
			return nil, nil, err
		}
		worker, err := w.Worker(h)
		if err != nil {
			return nil, nil, err
		}
		fd := indexsrv.NewFeed(indexsrv.StreamConfig{Model: model, BlockSize: bench.BlockSize, Engine: "vllm"}, w, h)
		fd.Connected(when)
		feeds, workers = append(feeds, fd), append(workers, worker)
	}
	return feeds, workers, nil
}

// burst returns a burst as the host makes them, told of times as its metrics are.
func burst(fd *indexsrv.Feed) *feed.Burst {
	ignore := func(time.Duration) {}
	return &feed.Burst{Feed: fd.Feed, Applied: ignore, Committed: ignore}
}

// messages makes the messages of every stream.
func (f *fleet) messages() [][]feed.Message {
	out := make([][]feed.Message, len(f.streams))
	for k, s := range f.streams {
		for i, frame := range s.Frames {
			out[k] = append(out[k], feed.Message{Seq: uint64(i), Payload: frame})
		}
	}
	return out
}

// direct prepares bursts on this thread, and applies them if told to. It returns the
// CPU nanoseconds.
func (f *fleet) direct(apply bool) (int64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	feeds, _, err := f.begin(nil)
	if err != nil {
		return 0, err
	}
	messages := f.messages()
	bursts := make([]*feed.Burst, len(feeds))
	for k, fd := range feeds {
		bursts[k] = burst(fd)
	}
	runtime.GC()
	began := numa.ThreadCPU()
	err = f.turns(func(k, from, to int) error {
		b := bursts[k]
		b.Messages, b.Received = messages[k][from:to], time.Now()
		for b.Prepare() {
			if apply {
				b.Apply()
			}
		}
		return nil
	})
	cpu := numa.ThreadCPU() - began
	return cpu, errors.Join(err, f.check(feeds, apply))
}

// through hands the bursts to lanes. It returns the CPU nanoseconds of the whole process
// and the seconds that it took.
func (f *fleet) through() (cpu int64, wall float64, err error) {
	pool, err := lanes.New(f.o.pool())
	if err != nil {
		return 0, 0, err
	}
	feeds, workers, err := f.begin(pool)
	if err != nil {
		return 0, 0, errors.Join(err, pool.Close())
	}
	messages := f.messages()
	runtime.GC()
	errs := make([]error, len(feeds))
	var wg sync.WaitGroup
	start := make(chan struct{})
	for k := range feeds {
		wg.Go(func() {
			b, all := burst(feeds[k]), messages[k]
			<-start
			for len(all) > 0 && errs[k] == nil {
				n := min(f.o.Burst, len(all))
				b.Messages, b.Received = all[:n], time.Now()
				errs[k] = workers[k].Do(b)
				all = all[n:]
			}
		})
	}
	before, began := numa.ProcessCPU(), time.Now()
	close(start)
	wg.Wait()
	wall = time.Since(began).Seconds()
	cpu = numa.ProcessCPU() - before
	return cpu, wall, errors.Join(append(errs, pool.Close(), f.check(feeds, true))...)
}

// check holds what the streams say against what was told.
func (f *fleet) check(feeds []*indexsrv.Feed, applied bool) error {
	for k, fd := range feeds {
		fd.Next(when)
		want := uint64(0)
		if applied {
			want = uint64(f.streams[k].Stored - f.streams[k].Removed)
		}
		if st := fd.Status(); st.State != feed.StateActive || st.Memberships != want {
			return fmt.Errorf("stream %d is %s with %d memberships, not active with %d: %s", k, st.State, st.Memberships, want, st.LastError)
		}
	}
	return nil
}
