// SPDX-License-Identifier: Apache-2.0

// Before: trace.go. After: run.go, which sends.

package openloop

import (
	"context"
	"math"
	"time"
)

// schedule says when each row is due, from the first one's: what passed in the trace,
// over the speedup. It saturates.
func schedule(rows []Row, speedup float64) []time.Duration {
	due := make([]time.Duration, len(rows))
	for i := range rows {
		since := rows[i].At - rows[0].At
		if since < 0 { // past the largest duration
			since = math.MaxInt64
		}
		due[i] = saturate(float64(since) / speedup)
	}
	return due
}

// pace calls send for each number at its time after began, in order and from this
// goroutine, until ctx ends; it returns how many it called for. What is late is sent at
// once.
func pace(ctx context.Context, began time.Time, due []time.Duration, send func(i int)) int {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i, at := range due {
		if wait := at - time.Since(began); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return i
			}
		} else if ctx.Err() != nil {
			return i
		}
		send(i)
	}
	return len(due)
}
