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
	restMost  = time.Minute     // between two times that memory is given back
)

// active is how many requests are under way, of both kinds.
func (g *Gateway) active() int64 {
	n := g.front.stats.active.Load()
	if g.rpc != nil {
		n += g.rpc.Active()
	}
	return n
}

// rest gives back what the start, or a time with much to do, has left resident, once
// nothing has been asked for a while, and again at growing intervals, for what was still
// going on. While there are requests it does nothing.
func (g *Gateway) rest(ctx context.Context) {
	tick := time.NewTicker(restLook)
	defer tick.Stop()
	var last uint64
	var quiet, next time.Duration // after the start there is nothing to wait for
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if n := g.asked.Load(); n != last || g.active() > 0 {
			last, quiet, next = n, 0, restAfter
			continue
		}
		if quiet += restLook; quiet < next {
			continue
		}
		next = quiet + min(max(quiet, 2*restLook), restMost)
		if last > 0 { // a start leaves little to free, and collecting takes memory itself
			debug.FreeOSMemory()
		}
		if err := numa.ForgetCode(); err != nil {
			g.log.Debug("memory of the program's code is kept", "error", err)
		}
	}
}
