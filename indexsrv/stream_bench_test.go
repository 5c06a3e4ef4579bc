// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/shard"
)

// TestIdleStreams prints what idle streams cost. It runs on demand:
// KINDEX_IDLE_STREAMS=1000 go test -run IdleStreams -v ./indexsrv
func TestIdleStreams(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("KINDEX_IDLE_STREAMS"))
	if err != nil {
		t.Skip("KINDEX_IDLE_STREAMS is not set")
	}
	e := startEngine(t, nil, func(e *engine) { e.noReplay = true })
	src, w := newSource(t, feed.ZMQOptions{}), newIndex(t)
	rss, files := residentBytes(t), openFiles(t)
	begun := time.Now()
	var all []*streamTest
	for range n {
		all = append(all, subscribeTo(t, src, w, StreamConfig{Endpoint: e.live}))
	}
	for _, s := range all {
		s.state(feed.StateActive)
	}
	t.Logf("%d streams connected after %v; each: %.1f goroutines, %d bytes resident, %.1f descriptors, one of them the publisher's", n, time.Since(begun),
		float64(runtime.NumGoroutine())/float64(n), (residentBytes(t)-rss)/n, float64(openFiles(t)-files)/float64(n))
	cpu := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := cpu()
	time.Sleep(5 * time.Second)
	t.Logf("idle: %v of CPU in 5 s", cpu()-before)
	before, begun = cpu(), time.Now()
	const batches = 20
	for b := range uint64(batches) {
		e.publish(storeOf(0, b+1))
	}
	for _, s := range all {
		s.at(1, batches-1)
	}
	t.Logf("%d batches to each: %v of CPU a batch, %v in all", batches, (cpu()-before)/time.Duration(n*batches), time.Since(begun))
	begun = time.Now()
	for _, s := range all {
		s.stop()
	}
	t.Logf("stopped after %v", time.Since(begun))
}

func openFiles(t *testing.T) int {
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(dir)
}

// BenchmarkFeed measures one stream from payload to index: batches of ten stores
// of 20 blocks of 16 tokens, and the removals that keep the content constant.
func BenchmarkFeed(b *testing.B) {
	for _, kind := range append([]string{"none"}, shard.Kinds...) {
		b.Run(kind, func(b *testing.B) {
			var idx shard.Index = nullIndex{}
			h := shard.Holder(0)
			if kind != "none" {
				var err error
				if idx, err = shard.New(kind, shard.Options{}); err != nil {
					b.Fatal(err)
				}
				if h, err = idx.AddHolder(testModel); err != nil {
					b.Fatal(err)
				}
			}
			f := NewFeed(StreamConfig{Model: testModel, BlockSize: testBlock}, NewWriter(idx), h)
			f.Connected(epochTime)
			const chains, length, keep = 10, 20, 50
			var ps [][]byte
			next := uint64(1)
			for range 200 {
				var evs []kv.Event
				for range chains {
					if old := next - keep*chains*length; next > keep*chains*length {
						var gone []uint64
						for i := range uint64(length) {
							gone = append(gone, old+i)
						}
						evs = append(evs, removeOf(gone...))
					}
					var blocks []uint64
					for range length {
						blocks = append(blocks, next)
						next++
					}
					evs = append(evs, storeOf(0, blocks...))
				}
				ps = append(ps, payload(evs...))
			}
			seq := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				f.Live(seq, ps[seq%uint64(len(ps))], epochTime)
				seq++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(chains*length), "ns/block")
		})
	}
}
