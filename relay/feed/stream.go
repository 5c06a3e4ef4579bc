// SPDX-License-Identifier: Apache-2.0

// Before: Source. After: Feed, on a lane where there are any.

package feed

import (
	"sync"
	"sync/atomic"
	"time"
)

// Stream is one running stream: a feed, its lock, and its tap at a source.
//
// The tap hands over a burst of messages and waits until it is applied: that is
// the push-back, the socket fills meanwhile, and the tap learns of gaps as soon as
// they are known. So the feed sees what the tap saw, in that order.
//
// Concurrency: Status, State, Between and Freeze may be called from any goroutine at
// any time; Close once. The other methods are the tap's, one call at a time.
type Stream struct {
	hooks Hooks

	gate sync.Mutex // the tap's while it hands over, else Freeze's; taken before mu and before any lane
	mu   sync.Mutex // guards feed
	feed *Feed

	tap   Tap
	burst Burst // the one handed over
	begun bool  // it is being run: mu is held

	// state publishes feed.State() to readers, who take no lock.
	state  atomic.Uint32
	stands Standing // as told last
	known  bool     // Hooks.Resumed was called, or has nothing to say
}

// Standing is where a stream stands and whether that will change by itself.
type Standing struct {
	State     State
	Repairing bool   // as [Status] has it
	Epoch     uint64 // the publisher's life, from 1
}

// Hooks are what the owner of a stream does for it, or wants told. Any may be nil.
type Hooks struct {
	// Run runs j to its end on the owner's lanes: Prepare and Apply by turns until
	// Prepare returns false, or not at all where the owner has stopped. nil: it
	// runs where it is, on the tap's goroutine.
	Run func(j Job)
	// Applied is called with how long one live message took from socket to sink.
	Applied func(time.Duration)
	// Committed is called with how long one message's Commit took.
	Committed func(time.Duration)
	// Changed is called, under the stream's lock, when the state is another one;
	// why is "" where it is active.
	Changed func(before, now State, why string)
	// Resumed is called, under the stream's lock, once it is known whether the stream
	// goes on from [Config].Resume; why it does not, "" where it does.
	Resumed func(why string)
	// Stands is called, under the stream's lock, with where the stream stands at
	// first and whenever that is another place; why as above.
	Stands func(now Standing, why string)
}

// Open begins the stream that cfg describes. It returns at once, with an error
// only where cfg can never work, or ErrNoSockets; everything that may take long or
// fail for a while happens behind it and shows in Status.
func Open(src Source, cfg Config, sink Sink, hooks Hooks) (*Stream, error) {
	if err := CheckEndpoint(cfg.Endpoint, false); err != nil {
		return nil, err
	}
	if cfg.ReplayEndpoint != "" {
		if err := CheckEndpoint(cfg.ReplayEndpoint, true); err != nil {
			return nil, err
		}
	}
	s := &Stream{hooks: hooks, feed: New(cfg, sink), known: cfg.Resume == nil || hooks.Resumed == nil}
	s.burst = Burst{Feed: s.feed, Applied: hooks.Applied, Committed: hooks.Committed}
	s.state.Store(uint32(StatePending))
	t, err := src.Open(&cfg, s)
	if err != nil {
		return nil, err
	}
	s.tap = t
	return s, nil
}

// Close ends the stream, also while it connects, subscribes or replays. When it
// returns nothing of the stream can touch the sink any more.
func (s *Stream) Close() { s.tap.Close() }

// Status returns a copy of the stream's counters.
func (s *Stream) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.feed.Status()
}

// State returns where the stream stands, without a lock.
func (s *Stream) State() State { return State(s.state.Load()) }

// Between calls fn between two batches: what the sink holds then is what the
// status says. The stream waits meanwhile.
func (s *Stream) Between(fn func(Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(s.feed.Status())
}

// Connected and Disconnected pass on what became of the live connection.
func (s *Stream) Connected(now time.Time) {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feed.Connected(now)
}

// Disconnected is Connected's counterpart; why says what was seen of the cause.
func (s *Stream) Disconnected(why string, now time.Time) {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feed.Disconnected(why, now)
}

// Unbound passes on that the live endpoint cannot be bound, and why.
func (s *Stream) Unbound(why string, now time.Time) {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feed.Unbound(why, now)
}

// Live passes on messages in the order they came; now is when they were received.
func (s *Stream) Live(msgs []Message, now time.Time) {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.burst.Replay, s.burst.Messages, s.burst.Received = 0, msgs, now
	s.run()
}

// Replayed passes on part of the answer to request id, and whether it is whole
// now or has failed.
func (s *Stream) Replayed(id uint64, msgs []Message, end bool, err error, now time.Time) {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.burst.Replay, s.burst.Messages, s.burst.Received = id, msgs, now
	s.run()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.feed.ReplayFailed(id, err, now)
	case end:
		s.feed.ReplayEnd(id, now)
	}
}

// run has the burst run and waits until it is applied.
func (s *Stream) run() {
	if len(s.burst.Messages) == 0 {
		return
	}
	if s.hooks.Run == nil {
		s.burst.Run(&s.mu)
	} else {
		s.hooks.Run(s)
	}
	s.burst.Messages = nil
}

// Prepare implements [Job]. The stream's lock is held from the burst's first
// message to its last, so that nobody sees a batch half admitted.
func (s *Stream) Prepare() bool {
	if !s.begun {
		s.mu.Lock()
		s.begun = true
	}
	if s.burst.Prepare() {
		return true
	}
	s.begun = false
	s.mu.Unlock()
	return false
}

// Apply implements [Job].
func (s *Stream) Apply() { s.burst.Apply() }

// Next is called after any of the above. It returns what [Feed.Next] does, and
// makes the new state known.
func (s *Stream) Next(now time.Time) (req ReplayRequest, ask bool, wake time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	req, ask, wake = s.feed.Next(now)
	if !s.known && !s.feed.resume.open {
		s.known = true
		s.hooks.Resumed(s.feed.resume.why)
	}
	state := s.feed.State()
	if before := State(s.state.Swap(uint32(state))); before != state && s.hooks.Changed != nil {
		s.hooks.Changed(before, state, s.feed.lastError())
	}
	if now := s.feed.standing(); now != s.stands {
		s.stands = now
		if s.hooks.Stands != nil {
			s.hooks.Stands(now, s.feed.lastError())
		}
	}
	return req, ask, wake
}
