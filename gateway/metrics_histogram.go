// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"math/bits"
	"strconv"
	"sync/atomic"
	"time"
)

// maxBuckets are the bounds that a histogram may have.
const maxBuckets = 24

// histogramStripes: observers spread over so many, so that parallel requests seldom
// share a cache line.
const histogramStripes = 8

// histogram counts durations in buckets whose bounds double.
//
// Concurrency: any goroutine, lock-free. A scrape may miss what is being observed
// meanwhile, by one bucket against the sum.
type histogram struct {
	base    int64 // ns: the first bound
	bounds  int
	stripes [histogramStripes]histogramStripe
}

type histogramStripe struct {
	buckets [maxBuckets + 1]atomic.Uint64 // not cumulative; the last one in use: above all bounds
	sum     atomic.Int64                  // ns
	_       [64]byte
}

// newHistogram returns a histogram whose bounds are base, twice base and so on.
func newHistogram(base time.Duration, bounds int) *histogram {
	return &histogram{base: int64(base), bounds: min(bounds, maxBuckets)}
}

// observe counts ns, which is no bound's less than 0.
func (h *histogram) observe(ns int64) {
	ns = max(ns, 0)
	s := &h.stripes[uint64(ns)*0x9E37_79B9_7F4A_7C15>>61]
	s.buckets[h.bucket(ns)].Add(1)
	s.sum.Add(ns)
}

// bucket returns which bucket ns falls into: the first whose bound is not below it.
func (h *histogram) bucket(ns int64) int {
	if ns == 0 {
		return 0
	}
	return min(bits.Len64(uint64((ns-1)/h.base)), h.bounds)
}

// write appends the series of h, whose name and labels (`{a="b",` or `{`) are given.
func (h *histogram) write(e *exposition, name, labels string) {
	var sum int64
	var n uint64
	for i := range h.bounds + 1 {
		for s := range h.stripes {
			n += h.stripes[s].buckets[i].Load()
		}
		bound := "+Inf"
		if i < h.bounds {
			bound = strconv.FormatFloat(time.Duration(h.base<<i).Seconds(), 'g', -1, 64)
		}
		e.b = append(e.b, name...)
		e.b = append(e.b, "_bucket"...)
		e.b = append(e.b, labels...)
		e.b = append(e.b, `le="`...)
		e.b = append(e.b, bound...)
		e.b = append(e.b, `"} `...)
		e.b = strconv.AppendUint(e.b, n, 10)
		e.b = append(e.b, '\n')
	}
	for s := range h.stripes {
		sum += h.stripes[s].sum.Load()
	}
	labels = closed(labels)
	e.b = append(append(append(append(e.b, name...), "_sum"...), labels...), ' ')
	e.b = strconv.AppendFloat(e.b, time.Duration(sum).Seconds(), 'g', -1, 64)
	e.b = append(append(append(append(append(e.b, '\n'), name...), "_count"...), labels...), ' ')
	e.b = append(strconv.AppendUint(e.b, n, 10), '\n')
}

// closed makes labels that more may follow those of a whole series.
func closed(labels string) string {
	if labels == "{" {
		return ""
	}
	return labels[:len(labels)-1] + "}"
}
