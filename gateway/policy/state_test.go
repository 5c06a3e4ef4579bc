// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"sync"
	"testing"

	"kindex/gateway/fleet"
)

// TestFirstTurns: those who ask first of a new pool, all at once, have turns of their own.
func TestFirstTurns(t *testing.T) {
	for range 200 {
		pol := seeded(t, "round_robin", nil)
		pool := newPool(8, 1)
		var all sync.WaitGroup
		var mu sync.Mutex
		got := map[*fleet.Holder]int{}
		for range 8 {
			all.Go(func() {
				var d Decision
				if err := pol.Decide(ask(pool), &d); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				got[d.Holder]++
			})
		}
		all.Wait()
		if len(got) != 8 {
			t.Fatalf("8 first decisions named %d of 8 holders: %v", len(got), got)
		}
	}
}
