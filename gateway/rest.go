// SPDX-License-Identifier: Apache-2.0

// Before: nothing, for a while. After: the system, which gets memory back.

package gateway

import (
	"context"
	"runtime/debug"
	"time"

	"kindex/numa"
)

// Times of a gateway at rest. Chosen, not measured.
const (
	restLook  = time.Second
	restAfter = 5 * time.Second // without a request
)

// rest gives back what the start, or a time with much to do, has left resident, once
// nothing has been asked for a while. While there are requests it does nothing.
func (g *Gateway) rest(ctx context.Context) {
	tick := time.NewTicker(restLook)
	defer tick.Stop()
	last, quiet := uint64(0), time.Duration(0)
	rested := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n := g.front.stats.requests.Load()
		if n != last || g.front.stats.active.Load() > 0 {
			last, quiet, rested = n, 0, false
			continue
		}
		quiet += restLook
		// After the start there is nothing to wait for.
		if rested || quiet < restAfter && n > 0 {
			continue
		}
		rested = true
		debug.FreeOSMemory()
		if err := numa.ForgetCode(); err != nil {
			g.log.Debug("memory of the program's code is kept", "error", err)
		}
	}
}
