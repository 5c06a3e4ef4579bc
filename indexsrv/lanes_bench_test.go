// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"fmt"
	"sync"
	"syscall"
	"testing"

	"kindex/lanes"
	"kindex/relay/feed"
	"kindex/shard"
)

// fleetBench is streams that each have the same batches told to them, over one
// index of one shard or more.
type fleetBench struct {
	feeds   []*Feed
	workers []*lanes.Worker
	seqs    []uint64
	ps      [][]byte
	blocks  int // stored by one batch
}

const (
	benchStreams = 16
	benchKeep    = 40
)

func newFleetBench(b *testing.B, shards, nlanes, prompts int) *fleetBench {
	idx, err := shard.NewSharded("chain", make([]shard.Options, shards)...)
	if err != nil {
		b.Fatal(err)
	}
	p, err := lanes.New(lanes.Options{Queue: 8, Nodes: []lanes.Node{{Shards: shards, Lanes: nlanes}}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := p.Close(); err != nil {
			b.Error(err)
		}
	})
	w := NewPoolWriter(idx, p)
	fb := &fleetBench{ps: steadyBatchesOf(2000, benchKeep, prompts), blocks: prompts * 30}
	for range benchStreams {
		h, err := w.AddHolder(testModel)
		if err != nil {
			b.Fatal(err)
		}
		worker, err := w.Worker(h)
		if err != nil {
			b.Fatal(err)
		}
		f := NewFeed(StreamConfig{Model: testModel, BlockSize: testBlock}, w, h)
		f.Connected(epochTime)
		for i := range benchKeep * 3 {
			f.Live(uint64(i), fb.ps[i], epochTime)
		}
		fb.feeds = append(fb.feeds, f)
		fb.workers = append(fb.workers, worker)
		fb.seqs = append(fb.seqs, benchKeep*3)
	}
	return fb
}

// BenchmarkLanes compares a fleet's batches applied by one goroutine without lanes,
// by streams that wait for their own (as sockets do), and by submitters that keep
// queues full; CPU and elapsed time, both for one stored block (and one evicted).
func BenchmarkLanes(b *testing.B) {
	for _, prompts := range []int{1, 8} {
		for _, c := range []struct {
			how           string
			lanes, shards int
		}{{"direct", 1, 1}, {"do", 1, 1}, {"submit", 1, 1}, {"do", 2, 1}, {"submit", 2, 1}, {"submit", 2, 2}} {
			b.Run(fmt.Sprintf("blocks=%d/%s/lanes=%d/shards=%d", prompts*30, c.how, c.lanes, c.shards), func(b *testing.B) {
				fb := newFleetBench(b, c.shards, c.lanes, prompts)
				b.ReportAllocs()
				b.ResetTimer()
				cpu := processCPU(b)
				fb.run(b, c.how)
				cpu = processCPU(b) - cpu
				b.ReportMetric(float64(cpu)/float64(b.N*fb.blocks), "cpu-ns/block")
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*fb.blocks), "ns/block")
			})
		}
	}
}

// batch returns the next message of stream k.
func (fb *fleetBench) batch(k int) feed.Message {
	m := feed.Message{Seq: fb.seqs[k], Payload: fb.ps[int(fb.seqs[k])%len(fb.ps)]}
	fb.seqs[k]++
	return m
}

func (fb *fleetBench) run(b *testing.B, how string) {
	if how == "direct" {
		for i := range b.N {
			m := fb.batch(i % benchStreams)
			fb.feeds[i%benchStreams].Live(m.Seq, m.Payload, epochTime)
		}
		return
	}
	var wg sync.WaitGroup
	for k := range benchStreams {
		wg.Go(func() {
			bursts := make([]feed.Burst, 16)
			for i := range bursts {
				bursts[i] = feed.Burst{Feed: fb.feeds[k].Feed, Messages: make([]feed.Message, 1), Received: epochTime}
			}
			hand := fb.workers[k].Do
			if how == "submit" {
				hand = fb.workers[k].Submit
			}
			for i := k; i < b.N; i += benchStreams {
				burst := &bursts[i/benchStreams%len(bursts)]
				burst.Messages[0] = fb.batch(k)
				if err := hand(burst); err != nil {
					b.Error(err)
					return
				}
			}
			if err := fb.workers[k].Fence(); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
}

func processCPU(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
