// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// bucketBounds are the upper bounds of all our histograms, ascending: 1 us to
// 1 s, three a decade.
var bucketBounds = [...]time.Duration{
	1 * time.Microsecond, 2 * time.Microsecond, 5 * time.Microsecond,
	10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	1 * time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second,
}

// histogramStripes: queries of more goroutines than that share stripes.
const histogramStripes = 32

// histogram counts durations. Each observer writes to a stripe of its own, so
// that parallel lookups share no cache line; a scrape adds the stripes up.
//
// Concurrency: any goroutine, lock-free. A scrape may miss what is being
// observed meanwhile, by one bucket against the sum.
type histogram struct {
	stripes [histogramStripes]histogramStripe
}

type histogramStripe struct {
	buckets [len(bucketBounds) + 1]atomic.Uint64 // not cumulative; the last: above all bounds
	sum     atomic.Uint64                        // ns
	_       [64]byte                             // lines of 64 bytes: the next stripe begins on another
}

// observe counts d in one of the stripes.
func (h *histogram) observe(stripe int, d time.Duration) {
	s := &h.stripes[uint(stripe)%histogramStripes]
	i := 0
	for i < len(bucketBounds) && d > bucketBounds[i] {
		i++
	}
	s.buckets[i].Add(1)
	s.sum.Add(uint64(max(d, 0)))
}

// total returns how many durations were counted, and their sum.
func (h *histogram) total() (count uint64, sum time.Duration) {
	for s := range h.stripes {
		for b := range h.stripes[s].buckets {
			count += h.stripes[s].buckets[b].Load()
		}
		sum += time.Duration(h.stripes[s].sum.Load())
	}
	return count, sum
}

// counts returns how many durations fell between each bound and the one before it;
// the last is of those above all bounds.
func (h *histogram) counts() []uint64 {
	n := make([]uint64, len(bucketBounds)+1)
	for s := range h.stripes {
		for i := range n {
			n[i] += h.stripes[s].buckets[i].Load()
		}
	}
	return n
}

// metric returns h as it stands.
func (h *histogram) metric(desc *prometheus.Desc, labels ...string) prometheus.Metric {
	var sum, count uint64
	buckets := make(map[float64]uint64, len(bucketBounds))
	for i, bound := range bucketBounds {
		for s := range h.stripes {
			count += h.stripes[s].buckets[i].Load()
		}
		buckets[bound.Seconds()] = count
	}
	for s := range h.stripes {
		count += h.stripes[s].buckets[len(bucketBounds)].Load()
		sum += h.stripes[s].sum.Load()
	}
	return prometheus.MustNewConstHistogram(desc, count, time.Duration(sum).Seconds(), buckets, labels...)
}
