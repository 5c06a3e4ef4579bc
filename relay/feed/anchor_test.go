// SPDX-License-Identifier: Apache-2.0

package feed

import "testing"

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
