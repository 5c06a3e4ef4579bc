// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// More subscribers or RPCs get more processors at once, fewer only after a while.
func TestProcessorsFollowTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards got
		var got []int
		p := newProcessors(ranksPerProcessor, 4, func(n int) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, n)
		})
		defer p.close()
		steps := func(what string, want ...int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(got, want) {
				t.Errorf("%s: processors were set to %v, want %v", what, got, want)
			}
			got = nil
		}
		times := func(n int, fn func(int), d int) {
			for range n {
				fn(d)
			}
		}
		times(subsPerProcessor-1, p.subscribed, 1)
		times(rpcsPerProcessor-1, p.passing, 1)
		steps("little to do", 1)
		p.subscribed(1)
		p.passing(1)
		steps("more of both", 2, 3)
		times(1000, p.subscribed, 1)
		steps("very much", 4)
		times(1000, p.subscribed, -1)
		for range 20 {
			p.passing(-1)
			p.passing(1)
		}
		steps("at once")
		time.Sleep(quietTime + time.Second)
		steps("a while later", 3)
		times(subsPerProcessor, p.subscribed, -1)
		times(rpcsPerProcessor, p.passing, -1)
		time.Sleep(quietTime + time.Second)
		steps("nothing to do", 1)
		var none *processors
		none.subscribed(1)
		none.close()
	})
}
