// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// mantissa is how many bits of a value its bucket keeps: within 0.8 %.
const mantissa = 6

// histogram counts durations in buckets whose width grows with them.
//
// Concurrency: any goroutine.
type histogram struct {
	counts [64 << mantissa]atomic.Uint64
	n, sum atomic.Uint64
	most   atomic.Int64
}

func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	e := bits.Len64(v)
	if e <= mantissa+1 {
		return int(v)
	}
	shift := e - mantissa - 1
	return shift<<mantissa + int(v>>shift)
}

// value is the middle of a bucket.
func value(i int) time.Duration {
	if i < 2<<mantissa {
		return time.Duration(i)
	}
	shift := i>>mantissa - 1
	low := uint64(i-shift<<mantissa) << shift
	return time.Duration(low + 1<<shift/2)
}

func (h *histogram) add(d time.Duration) {
	h.counts[bucket(d)].Add(1)
	h.n.Add(1)
	h.sum.Add(uint64(max(d, 0)))
	for {
		old := h.most.Load()
		if int64(d) <= old || h.most.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

// quantile is by nearest rank; 0 of none.
func (h *histogram) quantile(p float64) time.Duration {
	n := h.n.Load()
	if n == 0 {
		return 0
	}
	rank := uint64(p*float64(n) + 0.999_999)
	rank = min(max(rank, 1), n)
	for i := range h.counts {
		if c := h.counts[i].Load(); c >= rank {
			return min(value(i), time.Duration(h.most.Load()))
		} else {
			rank -= c
		}
	}
	return time.Duration(h.most.Load())
}

func (h *histogram) mean() time.Duration {
	if n := h.n.Load(); n > 0 {
		return time.Duration(h.sum.Load() / n)
	}
	return 0
}
