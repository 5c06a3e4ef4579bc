// SPDX-License-Identifier: Apache-2.0

// Before: a state file, or another host. After: relay/feed, relay/client.

package indexsrv

import (
	"log/slog"

	"kindex/relay/feed"
)

// Resume is where a stream goes on whose holder has content already, loaded before
// the stream starts. That content is what the publisher had told up to the position
// and no further; nothing is yet known of whether it is still the same publisher.
// Until the first contact has shown it the stream is not active, so that answers say
// so; a publisher that turns out to be another takes the content away, as any
// restart does.
type Resume struct {
	feed.Position

	// Memory is what the normaliser of an engine's events remembers of them, as
	// [normal.Normaliser.AppendMemory] wrote it; empty where the source is a relay.
	Memory []byte

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
			at = &Resume{Position: pos, Memory: s.sink.norm.AppendMemory(nil)}
		}
		fn(s.sink.status(now), at)
	})
}

// resume has the sink take up the content that its holder has at at. Where it
// cannot the content goes, and cfg begins with nothing.
func (s *indexSink) resume(cfg *StreamConfig, tell func(why string)) {
	at := cfg.Resume
	if at == nil {
		return
	}
	if cfg.Relay == nil {
		if err := s.norm.Restore(at.Memory); err != nil {
			cfg.Resume = nil
			s.unload(err.Error(), tell)
			return
		}
	}
	s.InTurn(func() {
		idx, _ := s.idx.of(s.h)
		var f feed.Faults // of this content at.Faults has them
		s.refreshStats(idx, &f)
	})
}

// unload empties the holder: nothing can go on from what it has.
func (s *indexSink) unload(why string, tell func(string)) {
	var f feed.Faults // of an empty content there are none
	s.Forget(feed.ForgetRestart, &f)
	tell(why)
}

// tellResumed returns what logs, once, what became of the content that a stream
// began with.
func tellResumed(log *slog.Logger) func(why string) {
	return func(why string) {
		if why == "" {
			log.Info("stream goes on from the content loaded")
			return
		}
		log.Warn("stream begins cold: the content loaded is gone", "why", why)
	}
}
