// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"errors"
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

// A live connection that lags may be further behind than the replay buffer reaches
// back: what only the replay has shown is not believed, and costs nothing, until live
// gets there; the answer's end may be missing.
func TestReplayAheadOfLive(t *testing.T) {
	for _, ends := range []string{"ends", "fails", "is overtaken"} {
		t.Run(ends, func(t *testing.T) {
			each(t, func(t *testing.T, relay bool) {
				f, p := joined(t, relay, 5)
				f.Live(6, p[6], f.now)
				id := f.later()
				kept := func(id, start uint64) {
					for seq := max(start, 20); seq < 30; seq++ {
						f.ReplayBatch(id, seq, p[seq], f.now)
					}
				}
				kept(id, 0)
				switch ends {
				case "ends":
					f.ReplayEnd(id, f.now)
				case "fails":
					f.ReplayFailed(id, errors.New("no answer for 5s"), f.now)
					for range f.limits.ReplayTries - 1 {
						id := f.later()
						kept(id, 0)
						f.ReplayFailed(id, errors.New("no answer for 5s"), f.now)
					}
				}
				for seq := uint64(7); seq < 30; seq++ {
					if seq != 19 {
						f.Live(seq, p[seq], f.now)
					}
				}
				if ends == "is overtaken" {
					f.ReplayEnd(id, f.now)
				}
				f.answerAll(30, kept)
				f.wantNoRestart()
				if st := f.Status(); st.Lost != 2 || st.LastSeq != 29 || len(f.sink.held()) != 28 || contains(st.LastError, "another engine's") {
					t.Errorf("got %s, %d blocks; want 2 lost, at 29, 28 blocks", statusLine(st), len(f.sink.held()))
				}
			})
		})
	}
}

// Answers without an end show where the buffer begins: what it has is not given up.
func TestShortAnswersFail(t *testing.T) {
	f, p := joined(t, true, 5)
	for seq := uint64(8); seq < 20; seq++ {
		if seq != 12 {
			f.Live(seq, p[seq], f.now)
		}
	}
	kept := func(id uint64, hole bool) {
		for seq := uint64(7); seq < 20; seq++ {
			if !hole || seq != 12 {
				f.ReplayBatch(id, seq, p[seq], f.now)
			}
		}
	}
	for range 4 {
		id := f.later()
		kept(id, true)
		f.ReplayFailed(id, errors.New("no answer for 5s"), f.now)
	}
	id := f.later()
	kept(id, false)
	f.ReplayEnd(id, f.now)
	f.wantNoRestart()
	if st := f.Status(); st.Lost != 2 || st.LastSeq != 19 {
		t.Errorf("got %s; want 2 lost, at 19", statusLine(st))
	}
	f.Live(6, p[6], f.now) // a straggler: the replay does answer, so that it is asked
	f.answerAll(9, func(id, _ uint64) { kept(id, false) })
	f.wantNoRestart()
}

// An answer that has what came live is the publisher's own, though a straggler of an
// older life came live, too.
func TestStragglerIsNoForeignReplay(t *testing.T) {
	other := func(f *feedTest) [][]byte {
		q := make([][]byte, 6)
		for i := range q {
			q[i] = payload(storeOf(0, uint64(i+501)))
		}
		f.Live(0, q[0], f.now)
		f.want(501)
		return q
	}
	t.Run("of the same number", func(t *testing.T) {
		each(t, func(t *testing.T, relay bool) {
			f, p := joined(t, relay, 5)
			q := other(f)
			f.Live(0, p[0], f.now)
			f.Live(2, q[2], f.now)
			f.answerAll(30, func(id, start uint64) {
				for seq := start; seq < 3; seq++ {
					f.ReplayBatch(id, seq, q[seq], f.now)
				}
			})
			f.want(501, 502, 503)
			f.wantState(StateActive)
		})
	})
	t.Run("of the next", func(t *testing.T) {
		for _, order := range [][]uint64{{0, 1, 2, 3, 4}, {1, 0, 2, 3, 4}} {
			f, p := joined(t, true, 5)
			q := other(f)
			f.Live(1, p[1], f.now)
			f.Live(2, q[2], f.now)
			f.Live(4, q[4], f.now)
			f.answerAll(30, func(id, start uint64) {
				for _, seq := range order {
					if seq >= start {
						f.ReplayBatch(id, seq, q[seq], f.now)
					}
				}
			})
			f.want(501, 502, 503, 504, 505)
			f.wantState(StateActive)
		}
	})
}

// The batch after a life's first, if it is missed and nothing comes behind it, is
// asked for as after any other.
func TestQuietAfterFirst(t *testing.T) {
	f, _ := joined(t, true, 5)
	q := [][]byte{payload(storeOf(0, 501)), payload(storeOf(0, 502))}
	f.Live(0, q[0], f.now)
	f.answer(f.later(), 0, q...)
	f.want(501, 502)
}
