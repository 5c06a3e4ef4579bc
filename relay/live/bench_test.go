// SPDX-License-Identifier: Apache-2.0

package live

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kindex/internal/kv"
	"kindex/relay/normal"
)

const (
	benchBlocks = 200_000
	benchTokens = 16
	benchVocab  = 150_000
	benchBatch  = 8 // blocks
	benchChain  = 64
	benchAtOnce = 32 // chains told in turns
)

// load is a stream of batches of 8 blocks of 16 tokens, of many chains in turns,
// and of removals, tails first, that keep so many blocks held.
type load struct {
	r      *rand.Rand
	norm   *normal.Normaliser
	chains [benchAtOnce][]kv.EngineHash
	done   [][]kv.EngineHash // chains to evict, oldest first
	batch  kv.Batch
	held   int
	keep   int
	next   int
}

func newLoad(keep int) *load {
	return &load{r: rand.New(rand.NewPCG(1, 2)), norm: normal.New(normal.Config{}), keep: keep}
}

// step returns the next batch and its operations.
func (l *load) step() (*kv.Batch, []normal.Op) {
	k := l.next % benchAtOnce
	l.next++
	chain := l.chains[k]
	if len(chain) >= benchChain {
		l.done = append(l.done, chain)
		chain = nil
	}
	ev := kv.Event{BlockSize: benchTokens, Medium: "GPU", HasGroup: true, Spec: kv.SpecFull, SpecName: "full_attention"}
	if len(chain) > 0 {
		ev.Parent, ev.HasParent = chain[len(chain)-1], true
	}
	for range benchBatch {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(l.r.Uint64()))
	}
	for range benchBatch * benchTokens {
		ev.Tokens = append(ev.Tokens, uint32(l.r.IntN(benchVocab)))
	}
	l.chains[k] = append(chain, ev.Hashes...)
	l.held += benchBatch
	l.batch = kv.Batch{Events: []kv.Event{ev}}
	if l.held > l.keep {
		old := l.done[0]
		out := kv.Event{Kind: kv.KindRemoved, Medium: "GPU", HasGroup: true}
		for i := range benchBatch {
			out.Hashes = append(out.Hashes, old[len(old)-1-i])
		}
		if l.done[0] = old[:len(old)-benchBatch]; len(l.done[0]) == 0 {
			l.done = l.done[1:]
		}
		l.held -= benchBatch
		l.batch.Events = []kv.Event{out, ev}
	}
	return &l.batch, l.norm.Batch(&l.batch)
}

// filled returns a state of 200,000 blocks and the load that goes on.
func filled(o Options) (*State, *load) {
	s, l := New(o), newLoad(benchBlocks)
	var fx Effects
	for l.held < benchBlocks {
		b, ops := l.step()
		s.Apply(b, ops, &fx)
	}
	return s, l
}

// threadCPU returns the CPU time of the calling thread, which a loaded machine
// falsifies least.
func threadCPU(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// BenchmarkBytes measures the memory of a live block, as counted and as the heap
// grows by it, after filling and after the content was replaced ten times over.
func BenchmarkBytes(b *testing.B) {
	for _, c := range []struct {
		name   string
		hashed bool
	}{{"tokens", false}, {"hashed", true}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				before := heap()
				s, l := filled(Options{HashTokens: c.hashed})
				total := func() float64 { st := s.Stats(); return float64(st.Bytes.Total()) / float64(st.Blocks) }
				b.ReportMetric(total(), "B/block")
				b.ReportMetric((heap()-before)/benchBlocks, "heap-B/block")
				var fx Effects
				for range 10 * benchBlocks / benchBatch {
					batch, ops := l.step()
					s.Apply(batch, ops, &fx)
				}
				b.ReportMetric(total(), "churned-B/block")
				runtime.KeepAlive(s)
			}
		})
	}
}

// BenchmarkApply applies batches of 8 new blocks, beside the removal of 8, at
// 200,000 blocks held; encoded in both forms. The figure is the median of rounds of
// 2,048 batches, in CPU time of the thread.
func BenchmarkApply(b *testing.B) {
	for _, c := range []struct {
		name   string
		encode bool
		hashed bool
		cut    bool
	}{{"apply", false, false, false}, {"apply+own+peer", true, false, false}, {"hashed/apply+own", true, true, false}, {"cut each round", false, false, true}} {
		b.Run(c.name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			s, l := filled(Options{HashTokens: c.hashed})
			const batches = 2048
			type step struct {
				b   kv.Batch
				ops []normal.Op
			}
			steps := make([]step, batches)
			var fx Effects
			var dst []byte
			var rounds []float64
			for b.Loop() {
				for i := range steps {
					batch, ops := l.step()
					steps[i] = step{*batch, nil}
					for _, op := range ops {
						op.Contents = append([]kv.ContentHash(nil), op.Contents...)
						steps[i].ops = append(steps[i].ops, op)
					}
				}
				var cut *Cut
				if c.cut {
					cut, _ = s.Cut()
				}
				from := threadCPU(b)
				for i := range steps {
					s.Apply(&steps[i].b, steps[i].ops, &fx)
					if c.encode {
						dst = AppendOwn(dst[:0], &fx)
						dst, _ = AppendPeer(dst[:0], &fx, 0)
					}
				}
				rounds = append(rounds, float64(threadCPU(b)-from)/batches)
				if cut != nil {
					cut.Close()
				}
			}
			slices.Sort(rounds)
			b.ReportMetric(rounds[len(rounds)/2], "cpu-ns/batch")
			b.ReportMetric(rounds[0], "least-cpu-ns/batch")
		})
	}
}

// BenchmarkCut cuts 200,000 blocks: as it is done, and by copying records, or records
// and blobs, under the lock.
func BenchmarkCut(b *testing.B) {
	s, _ := filled(Options{})
	b.Run("shared", func(b *testing.B) {
		for b.Loop() {
			c, err := s.Cut()
			if err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
	b.Run("records copied", func(b *testing.B) {
		for b.Loop() {
			dst := make([][slabLen]record, len(s.recs.chunks))
			for i, c := range s.recs.chunks {
				dst[i] = *c
			}
		}
	})
	b.Run("records and blobs copied", func(b *testing.B) {
		for b.Loop() {
			dst := make([][slabLen]record, len(s.recs.chunks))
			for i, c := range s.recs.chunks {
				dst[i] = *c
			}
			blobs := make([][blobChunk]byte, len(s.blobs.chunks))
			for i, c := range s.blobs.chunks {
				blobs[i] = *c
			}
		}
	})
}

// BenchmarkSnapshot lays 200,000 blocks out and encodes them.
func BenchmarkSnapshot(b *testing.B) {
	s, l := filled(Options{})
	var fx Effects
	for range 2 * benchBlocks / benchBatch {
		batch, ops := l.step()
		s.Apply(batch, ops, &fx)
	}
	run := func(b *testing.B, chunks func(*Cut) *Chunks) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var bytes, n int
		var rounds []float64
		for b.Loop() {
			from := threadCPU(b)
			c, err := s.Cut()
			if err != nil {
				b.Fatal(err)
			}
			ch := chunks(c)
			var dst []byte
			bytes, n = 0, ch.Len()
			for i := range n {
				dst = ch.Append(dst[:0], i)
				bytes += len(dst)
			}
			c.Close()
			rounds = append(rounds, float64(threadCPU(b)-from)/1e6)
		}
		slices.Sort(rounds)
		b.ReportMetric(rounds[len(rounds)/2], "cpu-ms")
		b.ReportMetric(float64(bytes)/1e6, "MB")
		b.ReportMetric(float64(n), "chunks")
	}
	b.Run("own", func(b *testing.B) { run(b, (*Cut).Own) })
	b.Run("peer", func(b *testing.B) { run(b, func(c *Cut) *Chunks { return c.Peer(1 << 20) }) })
	b.Run("digest", func(b *testing.B) {
		c, err := s.Cut()
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		for b.Loop() {
			c.Digest()
		}
	})
}
