// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"testing"
	"time"
)

// joined returns a feed with the limits of an index, or of a relay, that has heard
// the first n batches live, and those batches.
func joined(t *testing.T, relay bool, n uint64) (*feedTest, [][]byte) {
	f := newFeedTest(t, true, func(c *Config) {
		if relay {
			c.Limits = c.Limits.Thorough()
		}
	}).connect()
	f.answer(f.asked(0), 0)
	p := make([][]byte, 60)
	for i := range p {
		p[i] = payload(storeOf(0, uint64(i+1)))
	}
	for seq := range n {
		f.Live(seq, p[seq], f.now)
	}
	f.wantState(StateActive)
	return f, p
}

// each runs fn with the limits of an index and of a relay.
func each(t *testing.T, fn func(t *testing.T, relay bool)) {
	for _, relay := range []bool{false, true} {
		name := "index"
		if relay {
			name = "relay"
		}
		t.Run(name, func(t *testing.T) { fn(t, relay) })
	}
}

// answerAll answers up to n requests by fn's batches, as long as there are any.
func (f *feedTest) answerAll(n int, fn func(id, start uint64)) {
	f.Helper()
	for range n {
		req, ask, wake := f.Next(f.now)
		if ask {
			fn(req.ID, req.Start)
			f.ReplayEnd(req.ID, f.now)
			continue
		}
		if wake.IsZero() {
			return
		}
		f.now = wake
	}
}

func (f *feedTest) wantNoRestart() {
	f.Helper()
	if st := f.Status(); st.Restarts != 0 || st.Epoch != 1 {
		f.Fatalf("got %s; want no restart", statusLine(st))
	}
}

// A replay socket that keeps nothing is no proof of another life while the
// connection stands: what was missed stays missed, what came stays.
func TestReplayHasNothing(t *testing.T) {
	each(t, func(t *testing.T, relay bool) {
		f, p := joined(t, relay, 5)
		f.answerAll(30, func(uint64, uint64) {})
		f.wantState(StateActive) // nothing is missing
		for _, seq := range []uint64{6, 7, 8} {
			f.Live(seq, p[seq], f.now)
		}
		f.answerAll(60, func(uint64, uint64) {})
		f.wantNoRestart()
		f.want(1, 2, 3, 4, 5, 7, 8, 9)
		f.wantState(StateDegraded)
		if st := f.Status(); st.Lost != 1 || !contains(st.LastError, "nothing though batch 8 came live") {
			t.Errorf("got %s; want 1 lost and why", statusLine(st))
		}
	})
}

// Another engine's batches under the numbers that came live are no proof either.
func TestReplayContradictsLive(t *testing.T) {
	each(t, func(t *testing.T, relay bool) {
		f, p := joined(t, relay, 5)
		other := make([][]byte, 9)
		for i := range other {
			other[i] = payload(storeOf(0, uint64(i+501)))
		}
		for _, seq := range []uint64{6, 7, 8} {
			f.Live(seq, p[seq], f.now)
		}
		f.answerAll(60, func(id, start uint64) {
			for seq := start; seq < 5; seq++ {
				f.ReplayBatch(id, seq, other[seq], f.now)
			}
		})
		f.wantNoRestart()
		f.want(1, 2, 3, 4, 5, 7, 8, 9)
		f.wantState(StateDegraded)
	})
}

// Another engine's replay socket, whose numbers are far ahead, is not believed, and
// not asked for every batch.
func TestReplayOfAnotherEngine(t *testing.T) {
	each(t, func(t *testing.T, relay bool) {
		f, p := joined(t, relay, 5)
		asked := 0
		foreign := func(id, start uint64) {
			asked++
			for seq := uint64(5000); seq < 5020; seq++ {
				f.ReplayBatch(id, seq, payload(storeOf(0, seq)), f.now)
			}
		}
		for seq := uint64(6); seq < 60; seq++ {
			f.Live(seq, p[seq], f.now)
			f.answerAll(1, foreign)
		}
		f.answerAll(40, foreign)
		f.wantNoRestart()
		f.wantState(StateDegraded)
		if st := f.Status(); st.LastSeq != 59 || st.Lost != 1 || len(f.sink.held()) != 59 || !contains(st.LastError, "another engine's") {
			t.Errorf("got %s, %d blocks; want 1 lost, at 59, 59 blocks and why", statusLine(st), len(f.sink.held()))
		}
		if asked > 40 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// One payload that cannot be read, under a passed number or behind what is missing,
// costs nothing.
func TestReplayGarbled(t *testing.T) {
	each(t, func(t *testing.T, relay bool) {
		f, p := joined(t, relay, 5)
		f.Disconnected("test", f.now)
		f.Connected(f.now)
		f.answerAll(30, func(id, _ uint64) {
			f.ReplayBatch(id, 3, []byte("?"), f.now)
			f.ReplayBatch(id, 35, []byte("?"), f.now)
		})
		f.wantNoRestart()
		f.want(1, 2, 3, 4, 5)
		f.Live(5, p[5], f.now)
		f.Live(7, p[7], f.now)
		f.answerAll(30, func(id, start uint64) {
			f.ReplayBatch(id, 35, []byte("?"), f.now)
			for seq := start; seq < 8; seq++ {
				f.ReplayBatch(id, seq, p[seq], f.now)
			}
		})
		f.wantNoRestart()
		f.want(1, 2, 3, 4, 5, 6, 7, 8)
	})
}

// An answer out of order is taken by number.
func TestReplayShuffled(t *testing.T) {
	each(t, func(t *testing.T, relay bool) {
		f, p := joined(t, relay, 5)
		f.Live(9, p[9], f.now)
		f.answerAll(30, func(id, start uint64) {
			for _, seq := range []uint64{8, 5, 9, 4, 7, 6} {
				if seq >= start {
					f.ReplayBatch(id, seq, p[seq], f.now)
				}
			}
		})
		f.want(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
		f.wantState(StateActive)
		if st := f.Status(); st.Lost != 0 {
			t.Errorf("got %s; want none lost", statusLine(st))
		}
	})
}

// Answers that contradict what comes live, again and again, are not run after.
func TestRestartsBackOff(t *testing.T) {
	each(t, func(t *testing.T, relay bool) {
		f := newFeedTest(t, true, func(c *Config) {
			if relay {
				c.Limits = c.Limits.Thorough()
			}
		}).connect()
		end := f.now.Add(15 * time.Second)
		for seq := uint64(30); f.now.Before(end); seq++ {
			for range 50 {
				req, ask, _ := f.Next(f.now)
				if !ask {
					break
				}
				for q := req.Start; q < seq+10; q++ { // never the same twice
					f.ReplayBatch(req.ID, q, payload(storeOf(0, q+1_000*req.ID)), f.now)
				}
				f.ReplayEnd(req.ID, f.now)
			}
			f.live(seq, storeOf(0, seq))
			f.now = f.now.Add(5 * time.Millisecond)
		}
		if st := f.Status(); st.Restarts > 30 {
			t.Errorf("got %s; want few restarts", statusLine(st))
		}
	})
}
