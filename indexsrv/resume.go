// SPDX-License-Identifier: Apache-2.0

// Before: a state file, or another host. After: relay/feed, relay/client.

package indexsrv

import "kindex/relay/feed"

// Resume is where a stream goes on whose holder has content already, loaded before
// the stream starts. That content is what the publisher had told up to the position
// and no further; nothing is yet known of whether it is still the same publisher.
// Until the first contact has shown it the stream is not active, so that answers say
// so; a publisher that turns out to be another takes the content away, as any
// restart does.
type Resume struct {
	feed.Position

	// Relay is the cursor by which a relay's subscriber goes on, as relay/client
	// writes and reads it; empty where the source is no relay.
	Relay []byte
}

// freeze calls fn while nothing of s is admitted: what the index holds of s then is
// what its status says, and at is where another stream can go on from it; nil where
// none could, because nothing is known yet or the content is being replaced. Only s
// waits meanwhile, and its source: status and current do not.
func (s *stream) freeze(fn func(st StreamStatus, at *Resume)) {
	if s.relayed != nil {
		s.relayed.freeze(func(now feed.Status, at *Resume) {
			st := s.sink.status(now)
			s.relayed.extra(&st)
			fn(st, at)
		})
		return
	}
	s.admission.Freeze(func(now feed.Status, pos feed.Position) {
		var at *Resume
		if pos.HasSeq {
			at = &Resume{Position: pos}
		}
		fn(s.sink.status(now), at)
	})
}
