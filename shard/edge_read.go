// SPDX-License-Identifier: Apache-2.0

// Hop before: a lookup that wants the run below the one it has passed.
// Hop after: that run's header.

package shard

import "sync/atomic"

// edgeCursor is where a lookup's search in the edge table goes on.
type edgeCursor struct {
	tag  uint32
	home uint32 // the tag's home line when the search began
	l    uint32 // line of the table
	k    int    // next slot of the line
}

// seek begins the search for tag.
func (t *edges) seek(tag uint32) edgeCursor {
	home := edgeHome(t.desc.Load(), tag)
	return edgeCursor{tag: tag, home: home, l: home, k: 1}
}

// probe returns the line of the next run under the tag, which the caller verifies,
// or false when there was none at some moment of the call.
func (t *edges) probe(at *edgeCursor) (line uint32, ok bool) {
	for {
		for ; at.k <= edgeSlots; at.k++ {
			if slot := atomic.LoadUint64(t.w(at.l, at.k)); uint32(slot>>32) == at.tag {
				at.k++
				return uint32(slot), true
			}
		}
		if atomic.LoadUint64(t.w(at.l, 0)) != 0 {
			at.l++
			at.k = 1
			continue
		}
		// The entry may have moved to another home behind this back.
		again := t.seek(at.tag)
		if again.home == at.home {
			return 0, false
		}
		*at = again
	}
}
