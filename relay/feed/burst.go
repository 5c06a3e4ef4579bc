// SPDX-License-Identifier: Apache-2.0

// Before: Stream (what a source received), or a benchmark. After: Feed.

package feed

import (
	"sync"
	"time"
)

// Job is work that a caller may run on lanes: [lanes.Job], which this package
// does not know.
type Job interface {
	// Prepare does what needs no turn and reports whether something is to be
	// applied. If so Apply comes next and then Prepare again; else the job ends.
	Prepare() bool
	// Apply applies what Prepare has made ready, within the turn.
	Apply()
}

// Message is one numbered payload as a source received it.
type Message struct {
	Seq     uint64
	Payload []byte // the feed may keep it: it must not change any more
	Bad     bool   // could not be taken apart
}

// Burst is a [Job]: messages that one feed takes in order. It may be handed
// over anew, with other messages, once it has ended.
//
// Concurrency: one goroutine at a time, and none meanwhile that uses the feed.
type Burst struct {
	Feed     *Feed
	Messages []Message
	Received time.Time // when
	Replay   uint64    // the request that they answer; 0: they came live

	// Applied is told how long a live message took since Received; nil: nobody is.
	Applied func(time.Duration)
	// Committed is told how long a message's Commit took.
	Committed func(time.Duration)

	at     int
	staged bool
	took   time.Duration // since Received, when the last message was applied
}

var _ Job = (*Burst)(nil)

// Prepare implements [Job]: admission and the sink's Stage.
func (b *Burst) Prepare() bool {
	if b.staged {
		b.Feed.finish(b.Received)
		b.staged = false
		b.applied()
	}
	for b.at < len(b.Messages) {
		m := &b.Messages[b.at]
		b.at++
		switch {
		case m.Bad:
			b.Feed.BadMessage()
			continue
		case b.Replay != 0:
			b.staged = b.Feed.stageReplay(b.Replay, m.Seq, m.Payload, b.Received)
		default:
			b.staged = b.Feed.stageLive(m.Seq, m.Payload, b.Received)
		}
		if b.staged {
			return true
		}
		b.took = 0
		b.applied()
	}
	b.at = 0
	return false
}

// Apply implements [Job]: the sink's Commit.
func (b *Burst) Apply() {
	if b.Committed == nil {
		b.Feed.commit()
		return
	}
	begun := time.Since(b.Received)
	b.Feed.commit()
	b.took = time.Since(b.Received)
	b.Committed(b.took - begun)
}

// applied tells that one message is done with.
func (b *Burst) applied() {
	if b.Applied == nil || b.Replay != 0 {
		return
	}
	if b.took == 0 {
		b.took = time.Since(b.Received)
	}
	b.Applied(b.took)
	b.took = 0
}

// Run does without lanes what they do with a burst. mu is held meanwhile; nil: none.
func (b *Burst) Run(mu sync.Locker) {
	if mu != nil {
		mu.Lock()
		defer mu.Unlock()
	}
	turner, _ := b.Feed.sink.(Turner)
	for b.Prepare() {
		if turner != nil {
			turner.InTurn(b.Apply)
		} else {
			b.Apply()
		}
	}
}
