// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"errors"
	"testing"
	"time"
)

// A late joiner without a replay socket has lost what came before; with one it
// asks from 0, also of a silent engine.
func TestJoin(t *testing.T) {
	t.Run("no replay", func(t *testing.T) {
		f := newFeedTest(t, false, nil)
		f.wantState(StatePending)
		f.connect()
		f.wantState(StatePending) // the subscription is on its way
		_, _, f.now = f.Next(f.now)
		f.notAsked()
		f.wantState(StateActive)
		f.live(5, storeOf(0, 1))
		f.wantState(StateDegraded)
		if st := f.Status(); st.Lost != 5 || st.Gaps != 1 || st.LastSeq != 5 || st.Repairing {
			t.Errorf("got %s; want 5 lost in 1 gap", statusLine(st))
		}
		f.want(1)
		f.live(6, clearAll(), storeOf(0, 2))
		f.wantState(StateActive)
		f.want(2)
	})
	t.Run("silent engine", func(t *testing.T) {
		f := newFeedTest(t, true, nil)
		f.notAsked()
		f.connect().wantState(StateDegraded)
		if !f.Status().Repairing {
			t.Error("joining: got not repairing")
		}
		id := f.asked(0)
		f.notAsked()
		f.answer(id, 0, payload(storeOf(0, 1)), payload(storeOf(1, 2)))
		f.wantState(StateActive)
		f.want(1, 2)
		if st := f.Status(); st.Recovered != 2 || st.LastSeq != 1 || st.Epoch != 1 {
			t.Errorf("got %s; want 2 recovered, at 1 of epoch 1", statusLine(st))
		}
	})
	t.Run("fresh engine", func(t *testing.T) {
		f := newFeedTest(t, true, nil).connect()
		f.answer(f.asked(0), 0)
		f.wantState(StateActive)
		f.live(0, storeOf(0, 1))
		f.wantState(StateActive)
		f.want(1)
	})
	t.Run("live meanwhile", func(t *testing.T) {
		f := newFeedTest(t, true, nil).connect()
		id := f.asked(0)
		p := [][]byte{payload(storeOf(0, 1)), payload(removeOf(1)), payload(storeOf(0, 2))}
		f.Live(2, p[2], f.now)
		f.want()
		f.answer(id, 0, p...)
		f.wantState(StateActive)
		f.want(2)
		if st := f.Status(); st.Duplicates != 0 || st.HeldBatches != 0 {
			t.Errorf("got %s; want no duplicates, nothing held", statusLine(st))
		}
	})
	t.Run("buffer begins later", func(t *testing.T) {
		f := newFeedTest(t, true, nil).connect()
		p := [][]byte{payload(storeOf(0, 1)), payload(storeOf(1, 2))}
		f.answer(f.asked(0), 7, p...)
		f.wantState(StateDegraded)
		f.want(1, 2)
		if st := f.Status(); st.Lost != 7 || st.LastSeq != 8 || st.Repairing {
			t.Errorf("got %s; want 7 lost, at 8", statusLine(st))
		}
		f.now = f.now.Add(time.Hour)
		f.answer(f.asked(8), 8, p[1]) // it was silent: asked once more
		f.now = f.now.Add(time.Hour)
		f.notAsked() // the past will not come back
	})
	t.Run("silent, then asked once more", func(t *testing.T) {
		f := newFeedTest(t, true, nil).connect()
		f.answer(f.asked(0), 0)
		f.notAsked()
		f.now = f.now.Add(2 * time.Second)
		f.answer(f.asked(0), 0, payload(storeOf(0, 1)))
		f.want(1)
		f.now = f.now.Add(time.Hour)
		f.notAsked()
	})
}

// Missing batches come from the replay, in order, before what came live after
// them; and each once.
func TestGapFilledInOrder(t *testing.T) {
	f := newFeedTest(t, true, nil).connect()
	f.answer(f.asked(0), 0)
	p := [][]byte{payload(storeOf(0, 1)), payload(storeOf(0, 2)), payload(removeOf(1)), payload(storeOf(0, 3)), payload(removeOf(3))}
	f.Live(0, p[0], f.now)
	f.Live(3, p[3], f.now)
	f.want(1)
	f.wantState(StateDegraded)
	id := f.asked(0)
	f.Live(4, p[4], f.now)
	f.ReplayBatch(id, 0, p[0], f.now)
	f.ReplayBatch(id, 1, p[1], f.now)
	f.want(1, 2)
	f.ReplayBatch(id, 2, p[2], f.now)
	f.want(2)
	f.ReplayBatch(id, 3, p[3], f.now)
	f.ReplayBatch(id, 4, p[4], f.now)
	f.ReplayEnd(id, f.now)
	f.wantState(StateActive)
	if st := f.Status(); st.Gaps != 1 || st.Recovered != 2 || st.Lost != 0 || st.Batches != 5 || st.Duplicates != 0 {
		t.Errorf("got %s, %d batches; want 1 gap, 2 recovered, 0 lost, 5 batches, 0 duplicates", statusLine(st), st.Batches)
	}
}

// A hole inside an answer is asked for again, from what was reached.
func TestHoleInAnswer(t *testing.T) {
	f := newFeedTest(t, true, nil).connect()
	id := f.asked(0)
	p := [][]byte{payload(storeOf(0, 1)), payload(storeOf(0, 2)), payload(storeOf(0, 3)), payload(storeOf(0, 4))}
	f.ReplayBatch(id, 0, p[0], f.now)
	f.ReplayBatch(id, 1, p[1], f.now)
	f.ReplayBatch(id, 3, p[3], f.now)
	f.ReplayEnd(id, f.now)
	f.want(1, 2)
	f.wantState(StateDegraded)
	f.answer(f.asked(1), 1, p[1:]...)
	f.want(1, 2, 3, 4)
	f.wantState(StateActive)
	if st := f.Status(); st.Lost != 0 || st.Recovered != 4 {
		t.Errorf("got %s; want 4 recovered, 0 lost", statusLine(st))
	}
}

// An answer that brings each message twice, at once or as a whole, is not of two
// lives, and an undecodable one is not asked for twice by coming twice.
func TestAnswerTwice(t *testing.T) {
	p := [][]byte{payload(storeOf(0, 1)), payload(storeOf(0, 2)), payload(storeOf(0, 3)), payload(storeOf(0, 4))}
	for name, order := range map[string][]uint64{
		"each":        {0, 0, 1, 1, 2, 2, 3, 3},
		"whole":       {0, 1, 2, 3, 0, 1, 2, 3},
		"before hole": {0, 0, 3, 3},
	} {
		f := newFeedTest(t, true, nil).connect()
		id := f.asked(0)
		for _, seq := range order {
			f.ReplayBatch(id, seq, p[seq], f.now)
		}
		f.ReplayEnd(id, f.now)
		if name == "before hole" {
			f.wantState(StateDegraded)
			f.answer(f.asked(0), 0, p...)
		}
		f.want(1, 2, 3, 4)
		f.wantState(StateActive)
		if st := f.Status(); st.Recovered != 4 || st.Lost != 0 || st.Restarts != 0 || st.Duplicates != uint64(len(order)/2) {
			t.Errorf("%s: got %s; want 4 recovered, none lost, no restart, %d duplicates", name, statusLine(st), len(order)/2)
		}
	}

	f := newFeedTest(t, true, nil).connect()
	id := f.asked(0)
	f.ReplayBatch(id, 0, []byte("x"), f.now)
	f.ReplayBatch(id, 0, []byte("x"), f.now)
	f.ReplayEnd(id, f.now)
	f.now = f.now.Add(time.Second)
	f.answer(f.asked(0), 0, p...)
	f.want(1, 2, 3, 4)
	if st := f.Status(); st.Lost != 0 {
		t.Errorf("undecodable twice in one answer: got %s; want none lost", statusLine(st))
	}
}

// What the replay does not have is lost: counted, visible, and the newer batches
// go on.
func TestGapLost(t *testing.T) {
	f := newFeedTest(t, true, nil).connect()
	f.answer(f.asked(0), 0)
	p := [][]byte{payload(storeOf(0, 1)), nil, nil, payload(storeOf(0, 4))}
	f.Live(0, p[0], f.now)
	f.Live(3, p[3], f.now)
	f.answer(f.asked(0), 3, p[3])
	f.want(1, 4)
	f.wantState(StateDegraded)
	if st := f.Status(); st.Lost != 2 || st.Gaps != 1 || st.Repairing || st.LastError == "" {
		t.Errorf("got %s; want 2 lost in 1 gap, not repairing, and why", statusLine(st))
	}
	f.live(4, storeOf(0, 5))
	f.want(1, 4, 5)
	f.wantState(StateDegraded)
}

// A replay socket that does not answer does not stop the stream for good, and
// when it answers later the history brings it back to exact.
func TestDeafReplay(t *testing.T) {
	f := newFeedTest(t, true, nil).connect()
	f.answer(f.asked(0), 0)
	p := [][]byte{payload(storeOf(0, 1)), payload(storeOf(0, 2)), payload(removeOf(1)), payload(storeOf(0, 3))}
	f.Live(0, p[0], f.now)
	f.Live(2, p[2], f.now)
	f.ReplayFailed(f.asked(0), errors.New("no answer for 5s"), f.now)
	f.want(1)
	_, _, f.now = f.Next(f.now)
	f.ReplayFailed(f.asked(0), errors.New("no answer for 5s"), f.now)
	f.want()
	f.wantState(StateDegraded)
	if st := f.Status(); st.Lost != 1 || st.Repairing || !contains(st.LastError, "does not answer") {
		t.Errorf("got %s; want 1 lost, not repairing, and why", statusLine(st))
	}
	f.notAsked()
	_, _, wake := f.Next(f.now)
	if got := wake.Sub(f.now); got != f.limits.ResyncDelay {
		t.Fatalf("next try after %v, want %v", got, f.limits.ResyncDelay)
	}
	f.now = wake
	id := f.asked(0)
	f.Live(3, p[3], f.now) // waits for the whole
	f.want()
	f.answer(id, 0, p[:3]...)
	f.want(2, 3)
	f.wantState(StateActive)
	if st := f.Status(); st.Epoch != 1 || st.LastSeq != 3 || st.Restarts != 0 {
		t.Errorf("got %s; want epoch 1, at 3, no restart", statusLine(st))
	}
}

// What waits behind a gap is bounded by count and by bytes; past it the gap is
// given up, in order.
func TestHeldBounded(t *testing.T) {
	for _, byBytes := range []bool{false, true} {
		p, bytes := [][]byte{}, 0
		for b := uint64(3); b < 13; b++ {
			p = append(p, payload(storeOf(0, b)))
			bytes += len(p[len(p)-1])
		}
		f := newFeedTest(t, true, func(c *Config) {
			if byBytes {
				c.Limits.HeldBytes = bytes
			} else {
				c.Limits.HeldBatches = len(p)
			}
		}).connect()
		f.answer(f.asked(0), 0)
		f.live(0, storeOf(0, 1))
		for i := range p {
			f.Live(uint64(2+i), p[i], f.now)
		}
		f.want(1)
		id := f.asked(0)
		f.live(12, storeOf(0, 13))
		f.want(1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
		f.wantState(StateDegraded)
		f.answer(id, 0, payload(storeOf(0, 1))) // too late, and ignored
		if st := f.Status(); st.Lost != 1 || st.HeldBatches != 0 || st.HeldBytes != 0 {
			t.Errorf("by bytes %v: got %s; want 1 lost, nothing held", byBytes, statusLine(st))
		}
	}
}

// The same bytes again are a duplicate, whatever their number.
func TestDuplicates(t *testing.T) {
	f := newFeedTest(t, false, nil).connect()
	p := [][]byte{payload(storeOf(0, 1)), payload(storeOf(0, 2)), payload(removeOf(1))}
	for seq, b := range p {
		f.Live(uint64(seq), b, f.now)
	}
	for seq, b := range p {
		f.Live(uint64(seq), b, f.now)
	}
	f.want(2)
	f.wantState(StateActive)
	if st := f.Status(); st.Duplicates != 3 || st.Restarts != 0 || st.LastSeq != 2 {
		t.Errorf("got %s; want 3 duplicates, no restart, at 2", statusLine(st))
	}
}

// Answers of an older request, or of the request before a restart, change nothing.
func TestStaleAnswers(t *testing.T) {
	f := newFeedTest(t, true, nil).connect()
	old := f.asked(0)
	f.Disconnected("test", f.now)
	f.Connected(f.now)
	id := f.asked(0)
	f.answer(old, 0, payload(storeOf(0, 1)))
	f.ReplayFailed(old, errors.New("test"), f.now)
	f.want()
	f.answer(id, 0, payload(storeOf(0, 2)))
	f.want(2)
	f.answer(id, 1, payload(storeOf(0, 3)))
	f.want(2)
}

// An undecodable payload is a gap at its number, repaired like one.
func TestUndecodable(t *testing.T) {
	bad := []byte{0x93, 0xc1}
	begin := func(t *testing.T, replay bool) *feedTest {
		f := newFeedTest(t, replay, nil).connect()
		if replay {
			f.answer(f.asked(0), 0)
		}
		f.live(0, storeOf(0, 1))
		f.Live(1, bad, f.now)
		f.wantState(StateDegraded)
		return f
	}
	t.Run("replay has it", func(t *testing.T) {
		f := begin(t, true)
		f.live(2, storeOf(0, 3))
		f.want(1)
		f.ReplayBatch(f.asked(0), 1, payload(storeOf(0, 2)), f.now)
		f.want(1, 2, 3)
		if st := f.Status(); st.Gaps != 1 || st.Recovered != 1 || st.Lost != 0 || st.Malformed != 1 {
			t.Errorf("got %s; want 1 gap, 1 recovered, 1 malformed", statusLine(st))
		}
	})
	t.Run("replay has the same", func(t *testing.T) {
		f := begin(t, true)
		p := payload(storeOf(0, 3))
		f.Live(2, p, f.now)
		f.answer(f.asked(0), 1, bad, p)
		f.want(1, 3)
		f.wantState(StateDegraded)
		if st := f.Status(); st.Gaps != 1 || st.Lost != 1 || st.Repairing {
			t.Errorf("got %s; want 1 gap, 1 lost", statusLine(st))
		}
	})
	t.Run("no replay", func(t *testing.T) {
		f := begin(t, false)
		f.live(2, storeOf(0, 3))
		f.want(1, 3)
		f.wantState(StateDegraded)
		if st := f.Status(); st.Gaps != 1 || st.Lost != 1 {
			t.Errorf("got %s; want 1 gap, 1 lost", statusLine(st))
		}
	})
	t.Run("no replay, and the good one after it", func(t *testing.T) {
		f := begin(t, false)
		f.live(1, storeOf(0, 2))
		f.want(1, 2)
		f.wantState(StateActive)
	})
	t.Run("a number that nobody knows", func(t *testing.T) {
		f := newFeedTest(t, true, nil).connect()
		p := payload(storeOf(0, 1))
		f.answer(f.asked(0), 0, p)
		f.Live(1<<60, bad, f.now)
		f.answer(f.asked(0), 0, p)
		_, _, f.now = f.Next(f.now)
		f.answer(f.asked(0), 0, p)
		f.wantState(StateActive)
		f.live(1, storeOf(0, 2))
		f.want(1, 2)
		if st := f.Status(); st.Lost != 0 || st.Restarts != 0 {
			t.Errorf("got %s; want nothing lost", statusLine(st))
		}
	})
	t.Run("the mark of a replay's end", func(t *testing.T) {
		f := newFeedTest(t, false, nil).connect()
		f.live(1<<64-1, storeOf(0, 1))
		f.live(0, storeOf(0, 2))
		f.want(2)
		f.wantState(StateActive)
	})
}

// A stream without a connection is pending, then failed, and says why.
func TestConnectionStates(t *testing.T) {
	f := newFeedTest(t, false, nil)
	_, _, wake := f.Next(f.now)
	if got := wake.Sub(f.now); got != f.limits.ConnectPeriod {
		t.Fatalf("woken after %v, want %v", got, f.limits.ConnectPeriod)
	}
	f.wantState(StatePending)
	f.Disconnected("connection refused", f.now)
	f.now = wake
	f.Next(f.now)
	f.wantState(StateFailed)
	if got := f.Status().LastError; !contains(got, "connection refused") || !contains(got, "tcp://127.0.0.1:1") {
		t.Errorf("last error: got %q, want the endpoint and the cause", got)
	}
	f.connect().wantState(StatePending)
	f.live(0, storeOf(0, 1))
	f.wantState(StateActive)
	if got := f.Status().LastError; got != "" {
		t.Errorf("last error: got %q, want none", got)
	}
	f.Disconnected("the peer closed it", f.now)
	f.wantState(StateDegraded)
	f.now = f.now.Add(f.limits.ConnectPeriod)
	f.Next(f.now)
	f.wantState(StateFailed)
	f.want(1)
}
