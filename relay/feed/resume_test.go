// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"errors"
	"math"
	"testing"
)

// stopped returns the batches of a life of n, each of which stores one block, and
// the cursor behind batch at.
func stopped(n, at uint64) (ps [][]byte, c Position) {
	for seq := range n {
		ps = append(ps, payload(storeOf(0, seq+1)))
	}
	return ps, Position{Epoch: 3, HasSeq: true, LastSeq: at, LastSum: digest(ps[at])}
}

// resumedFeed returns a feed that begins at c, its sink with blocks.
func resumedFeed(t *testing.T, c *Position, edit func(*Config), blocks ...uint64) *feedTest {
	t.Helper()
	f := newFeedTest(t, true, func(cfg *Config) {
		cfg.Resume = c
		if edit != nil {
			edit(cfg)
		}
	})
	for _, b := range blocks {
		f.sink.blocks[b] = true
	}
	f.wantState(StatePending)
	return f.connect()
}

// wantCold fails unless the feed gave its content up for a reason with that word.
func (f *feedTest) wantCold(why string) {
	f.Helper()
	st := f.Status()
	if st.Resumed != 0 || !contains(st.Cold, why) || st.Epoch != 4 {
		f.Fatalf("resumed %d, epoch %d, cold %q; want cold in epoch 4 and %q", st.Resumed, st.Epoch, st.Cold, why)
	}
}

// A stream that begins with a content goes on behind it where the publisher proves
// that it is its own, and begins as a new one where it does not.
func TestResume(t *testing.T) {
	t.Run("the same life", func(t *testing.T) {
		ps, c := stopped(6, 2)
		f := resumedFeed(t, &c, nil, 1, 2, 3)
		f.wantState(StateDegraded)
		id := f.asked(2)
		f.Live(5, ps[5], f.now) // waits
		f.want(1, 2, 3)
		f.ReplayBatch(id, 2, ps[2], f.now)
		f.want(1, 2, 3)
		f.wantState(StateDegraded) // not caught up
		for seq := uint64(3); seq < 6; seq++ {
			f.ReplayBatch(id, seq, ps[seq], f.now)
			f.wantState(StateDegraded)
		}
		f.want(1, 2, 3, 4, 5, 6)
		f.ReplayEnd(id, f.now)
		f.wantState(StateActive)
		if st := f.Status(); st.Resumed != 1 || st.Cold != "" || st.Epoch != 3 || st.Gaps != 0 || st.Lost != 0 || st.Restarts != 0 || st.Duplicates != 0 || st.Batches != 3 {
			t.Errorf("resumed %d, cold %q; %s; want 3 batches of epoch 3 and no gap", st.Resumed, st.Cold, statusLine(st))
		}
	})
	t.Run("nothing said meanwhile", func(t *testing.T) {
		ps, c := stopped(3, 2)
		f := resumedFeed(t, &c, nil, 1, 2, 3)
		f.answer(f.asked(2), 2, ps[2])
		f.want(1, 2, 3)
		f.wantState(StateActive)
		f.Live(3, payload(storeOf(0, 4)), f.now)
		f.want(1, 2, 3, 4)
	})
	t.Run("cut off, then the rest", func(t *testing.T) {
		ps, c := stopped(6, 2)
		f := resumedFeed(t, &c, nil, 1, 2, 3)
		id := f.asked(2)
		f.ReplayBatch(id, 2, ps[2], f.now)
		f.ReplayBatch(id, 3, ps[3], f.now)
		f.ReplayFailed(id, errors.New("cut off"), f.now)
		f.wantState(StateDegraded)
		f.answer(f.later(), 3, ps[3:]...)
		f.want(1, 2, 3, 4, 5, 6)
		f.wantState(StateActive)
	})
	t.Run("proven, then deaf", func(t *testing.T) {
		ps, c := stopped(6, 2)
		f := resumedFeed(t, &c, func(cfg *Config) { cfg.Limits.ReplayTries = 1 }, 1, 2, 3)
		id := f.asked(2)
		f.ReplayBatch(id, 2, ps[2], f.now)
		f.ReplayFailed(id, errors.New("cut off"), f.now)
		f.want(1, 2, 3) // its own, but nobody can say what it lacks
		f.wantState(StateDegraded)
		if st := f.Status(); st.Repairing || st.Resumed != 1 {
			t.Errorf("got %s; want it resumed and given up", statusLine(st))
		}
	})
	t.Run("another life, further", func(t *testing.T) {
		_, c := stopped(3, 2)
		f := resumedFeed(t, &c, nil, 1, 2, 3)
		q := [][]byte{payload(storeOf(0, 501)), payload(storeOf(0, 502)), payload(storeOf(0, 503)), payload(storeOf(0, 504))}
		f.Live(3, q[3], f.now)
		f.answer(f.asked(2), 2, q[2:]...)
		f.want()
		f.answer(f.asked(0), 0, q...)
		f.want(501, 502, 503, 504)
		f.wantState(StateActive)
		f.wantCold("another life")
	})
	t.Run("another life, younger", func(t *testing.T) {
		_, c := stopped(30, 29)
		f := resumedFeed(t, &c, nil, 1, 2, 3)
		p := payload(storeOf(0, 501))
		f.answer(f.asked(29), 0)
		for range 3 {
			f.want(1, 2, 3) // it may be too young for what was asked, or its answers were cut
			f.answer(f.later(), 0, p)
		}
		f.want()
		f.answer(f.asked(0), 0, p)
		f.want(501)
		f.wantState(StateActive)
		f.wantCold("another life")
	})
	t.Run("another life, seen live", func(t *testing.T) {
		_, c := stopped(30, 29)
		f := resumedFeed(t, &c, nil, 1, 2, 3)
		id := f.asked(29)
		p := payload(storeOf(0, 501))
		f.Live(7, p, f.now) // below the cursor
		f.ReplayEnd(id, f.now)
		f.want(1, 2, 3)
		f.answer(f.asked(29), 0)
		f.want()
		f.wantCold("another life")
	})
	t.Run("a startup clear", func(t *testing.T) {
		_, c := stopped(30, 29)
		f := resumedFeed(t, &c, nil, 1, 2, 3)
		f.live(0, clearAll())
		f.want()
		f.wantCold("another life")
	})
}

// Where nothing proves whose content it is, nothing of it is kept: removals may have
// been missed.
func TestResumeUnproven(t *testing.T) {
	t.Run("the buffer has rolled past", func(t *testing.T) {
		ps, c := stopped(8, 2)
		f := resumedFeed(t, &c, nil, 1, 2, 3)
		f.Live(8, payload(storeOf(0, 9)), f.now)
		f.answer(f.asked(2), 5, ps[5:]...)
		f.want(1, 2, 3) // the first batches may have been lost on their way
		f.answer(f.later(), 5, ps[5:]...)
		f.want()
		f.answer(f.asked(0), 5, ps[5:]...)
		f.want(6, 7, 8, 9)
		f.wantState(StateDegraded)
		f.wantCold("begins at 5")
		if st := f.Status(); st.Lost != 5 || st.Restarts != 0 {
			t.Errorf("got %s; want 5 lost, no restart", statusLine(st))
		}
	})
	t.Run("no replay socket", func(t *testing.T) {
		_, c := stopped(3, 2)
		f := resumedFeed(t, &c, func(cfg *Config) { cfg.ReplayEndpoint = "" }, 1, 2, 3)
		f.want()
		f.wantCold("no replay socket")
		f.live(3, storeOf(0, 4)) // as a stream that joins
		f.want(4)
		f.wantState(StateDegraded)
	})
	t.Run("nobody answers", func(t *testing.T) {
		_, c := stopped(3, 2)
		f := resumedFeed(t, &c, nil, 1, 2, 3)
		f.live(3, storeOf(0, 4))
		f.ReplayFailed(f.asked(2), errors.New("no answer for 5s"), f.now)
		f.want(1, 2, 3)
		f.ReplayFailed(f.later(), errors.New("no answer for 5s"), f.now)
		f.want(4)
		f.wantState(StateDegraded)
		f.wantCold("no answer")
		f.answer(f.later(), 0, payload(storeOf(0, 1)), payload(storeOf(0, 2)), payload(storeOf(0, 3)))
		f.wantState(StateDegraded)
	})
	t.Run("no hash", func(t *testing.T) {
		ps, c := stopped(3, 2)
		c.LastSum = 0
		f := resumedFeed(t, &c, nil, 1, 2, 3)
		f.want()
		f.answer(f.asked(0), 0, ps...)
		f.want(1, 2, 3)
		f.wantState(StateActive)
		f.wantCold("nobody saw")
	})
	t.Run("a number that none is", func(t *testing.T) {
		ps, c := stopped(3, 2)
		c.LastSeq = math.MaxUint64
		f := resumedFeed(t, &c, nil, 1, 2, 3)
		f.answer(f.asked(0), 0, ps...)
		f.want(1, 2, 3)
		f.wantState(StateActive)
	})
	t.Run("more than may wait", func(t *testing.T) {
		ps, c := stopped(9, 2)
		f := resumedFeed(t, &c, func(cfg *Config) { cfg.Limits.HeldBatches = 4 }, 1, 2, 3)
		f.asked(2)
		for seq := 4; seq < 9; seq++ {
			f.Live(uint64(seq), ps[seq], f.now)
		}
		f.want(5, 6, 7, 8, 9)
		f.wantState(StateDegraded)
		f.wantCold("may wait")
	})
}

// What kept the stream from being exact still does.
func TestResumeFaults(t *testing.T) {
	ps, c := stopped(4, 2)
	c.Faults, c.Why = FaultOrphans|1<<7, "blocks were dropped"
	f := resumedFeed(t, &c, nil, 1, 2, 3)
	f.answer(f.asked(2), 2, ps[2:]...)
	f.want(1, 2, 3, 4)
	f.wantState(StateDegraded)
	if got := f.Status().LastError; got != "blocks were dropped" {
		t.Errorf("why: got %q", got)
	}
	want := Position{Epoch: 3, HasSeq: true, LastSeq: 3, LastSum: digest(ps[3]), Faults: FaultOrphans, Why: "blocks were dropped"}
	if got := f.Position(); got != want {
		t.Errorf("position: got %+v, want %+v", got, want)
	}
	f.live(4, clearAll())
	f.wantState(StateActive)
}

// A position can be taken while the proof is outstanding, and after the content went.
func TestResumePosition(t *testing.T) {
	ps, c := stopped(4, 2)
	f := resumedFeed(t, &c, nil, 1, 2, 3)
	if got := f.Position(); got != c {
		t.Errorf("before the proof: got %+v, want %+v", got, c)
	}
	f.Live(0, ps[1], f.now)
	if got, want := f.Position(), (Position{Epoch: 4, HasSeq: true, LastSum: digest(ps[1])}); got != want {
		t.Errorf("another life: got %+v, want %+v", got, want)
	}
	empty := newFeedTest(t, true, func(cfg *Config) { cfg.Resume = &Position{Epoch: 7} }).connect()
	empty.answer(empty.asked(0), 0, ps...)
	empty.wantState(StateActive)
	if st := empty.Status(); st.Epoch != 7 || st.Resumed != 0 || st.Cold != "" {
		t.Errorf("no content: got %s, want epoch 7", statusLine(st))
	}
}

// TestResumeTold: the owner is told once what became of the content.
func TestResumeTold(t *testing.T) {
	for _, tc := range []struct{ replay, want string }{{"", "no replay socket"}, {"tcp://127.0.0.1:2", ""}} {
		var told []string
		ps, c := stopped(1, 0)
		src := source{new(handSource)}
		s, err := Open(src, Config{Endpoint: "tcp://127.0.0.1:1", ReplayEndpoint: tc.replay, Resume: &c},
			&blockSink{blocks: map[uint64]bool{}}, Hooks{Resumed: func(why string) { told = append(told, why) }})
		if err != nil {
			t.Fatal(err)
		}
		now := epochTime
		s.Next(now)
		s.Connected(now)
		if req, ask, _ := s.Next(now); ask {
			s.Replayed(req.ID, []Message{{Seq: 0, Payload: ps[0]}}, true, nil, now)
		}
		s.Next(now)
		s.Next(now)
		if len(told) != 1 || !contains(told[0], tc.want) || tc.want == "" && told[0] != "" {
			t.Errorf("told %q, want once %q", told, tc.want)
		}
		s.Close()
	}
}
