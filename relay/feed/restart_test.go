// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"errors"
	"testing"
)

// A number that was passed, with other bytes, is another life: everything of the
// old one goes at once.
func TestRestart(t *testing.T) {
	life := func(f *feedTest) {
		for seq := range uint64(100) {
			f.live(seq, storeOf(seq, seq+1))
		}
		if got := len(f.sink.blocks); got != 100 {
			t.Fatalf("old life: %d blocks, want 100", got)
		}
	}
	t.Run("in full view", func(t *testing.T) {
		f := newFeedTest(t, false, nil).connect()
		life(f)
		f.live(0, storeOf(0, 500))
		f.want(500)
		f.wantState(StateActive)
		if st := f.Status(); st.Restarts != 1 || st.Epoch != 2 || st.LastSeq != 0 || st.Lost != 0 {
			t.Errorf("got %s; want 1 restart, epoch 2, at 0", statusLine(st))
		}
	})
	t.Run("startup clear", func(t *testing.T) {
		f := newFeedTest(t, false, nil).connect()
		life(f)
		f.live(0, clearAll())
		f.want()
		if st := f.Status(); st.Restarts != 1 || st.Epoch != 2 {
			t.Errorf("got %s; want 1 restart, epoch 2", statusLine(st))
		}
	})
	t.Run("seen late without replay", func(t *testing.T) {
		f := newFeedTest(t, false, nil).connect()
		life(f)
		f.live(3, storeOf(0, 500))
		f.want(500)
		f.wantState(StateDegraded)
		if st := f.Status(); st.Restarts != 1 || st.Lost != 3 {
			t.Errorf("got %s; want 1 restart, 3 lost", statusLine(st))
		}
	})
	t.Run("seen late with replay", func(t *testing.T) {
		f := newFeedTest(t, true, nil).connect()
		f.answer(f.asked(0), 0)
		life(f)
		p := payload(storeOf(0, 500))
		f.Live(1, p, f.now)
		f.want()
		f.answer(f.asked(0), 0, payload(storeOf(0, 499)), p)
		f.want(499, 500)
		f.wantState(StateActive)
	})
	t.Run("older than the history", func(t *testing.T) {
		f := newFeedTest(t, false, nil).connect()
		p := payload(storeOf(0, 1))
		f.Live(0, p, f.now)
		for seq := uint64(1); seq <= HistoryLen; seq++ {
			f.live(seq)
		}
		f.Live(0, p, f.now) // its bytes are forgotten by now
		if st := f.Status(); st.Restarts != 1 {
			t.Errorf("got %s; want 1 restart", statusLine(st))
		}
	})
	t.Run("undecodable is none", func(t *testing.T) {
		f := newFeedTest(t, false, nil).connect()
		life(f)
		f.Live(0, []byte("garbage"), f.now)
		f.wantState(StateActive)
		if st := f.Status(); st.Restarts != 0 || st.Malformed != 1 || st.LastSeq != 99 {
			t.Errorf("got %s; want no restart, 1 malformed, at 99", statusLine(st))
		}
	})
	t.Run("held batches go too", func(t *testing.T) {
		f := newFeedTest(t, true, nil).connect()
		f.answer(f.asked(0), 0)
		f.live(0, storeOf(0, 1))
		f.live(7, storeOf(0, 2))
		f.live(0, storeOf(0, 500))
		f.want(500)
		if st := f.Status(); st.HeldBatches != 0 || st.Restarts != 1 {
			t.Errorf("got %s; want nothing held, 1 restart", statusLine(st))
		}
		f.wantState(StateActive)
	})
	t.Run("two batches of one number", func(t *testing.T) {
		f := newFeedTest(t, true, nil).connect()
		f.answer(f.asked(0), 0)
		f.live(0, storeOf(0, 1))
		f.live(7, storeOf(0, 2))
		f.live(7, storeOf(0, 3))
		f.want()
		if st := f.Status(); st.HeldBatches != 1 || st.Restarts != 1 {
			t.Errorf("got %s; want the newer one held, 1 restart", statusLine(st))
		}
	})
}

// After a reconnect the last admitted batch is read again: it tells whether the
// publisher is the same, also where its numbers have overtaken the old ones.
func TestReconnect(t *testing.T) {
	begin := func(t *testing.T) (*feedTest, [][]byte) {
		f := newFeedTest(t, true, nil).connect()
		f.answer(f.asked(0), 0)
		p := [][]byte{payload(storeOf(0, 1)), payload(storeOf(0, 2)), payload(storeOf(0, 3))}
		f.Live(0, p[0], f.now)
		f.Live(1, p[1], f.now)
		f.Disconnected("the peer closed it", f.now)
		f.wantState(StateDegraded)
		f.notAsked()
		f.Connected(f.now)
		return f, p
	}
	t.Run("the same publisher", func(t *testing.T) {
		f, p := begin(t)
		id := f.asked(1)
		f.Live(2, p[2], f.now) // waits for the proof
		f.want(1, 2)
		f.ReplayBatch(id, 1, p[1], f.now)
		f.want(1, 2, 3)
		f.ReplayEnd(id, f.now)
		f.wantState(StateActive)
		if st := f.Status(); st.Restarts != 0 || st.Gaps != 0 || st.Duplicates != 0 {
			t.Errorf("got %s; want no restart, gap or duplicate", statusLine(st))
		}
	})
	t.Run("missed meanwhile", func(t *testing.T) {
		f, p := begin(t)
		f.answer(f.asked(1), 1, p[1:]...)
		f.wantState(StateActive)
		f.want(1, 2, 3)
	})
	t.Run("another one, further", func(t *testing.T) {
		f, _ := begin(t)
		q := [][]byte{payload(storeOf(0, 501)), payload(storeOf(0, 502)), payload(storeOf(0, 503))}
		f.Live(2, q[2], f.now)
		f.answer(f.asked(1), 1, q[1:]...)
		f.want()
		if st := f.Status(); st.Restarts != 1 || st.Epoch != 2 {
			t.Errorf("got %s; want 1 restart, epoch 2", statusLine(st))
		}
		f.answer(f.asked(0), 0, q...)
		f.want(501, 502, 503)
		f.wantState(StateActive)
	})
	t.Run("another one, younger and silent", func(t *testing.T) {
		f, _ := begin(t)
		f.answer(f.asked(1), 1)
		f.want(1, 2) // it may be too young for what was asked
		f.answer(f.later(), 0, payload(storeOf(0, 501)))
		f.want()
		f.answer(f.asked(0), 0, payload(storeOf(0, 501)))
		f.want(501)
		f.wantState(StateActive)
		if st := f.Status(); st.Restarts != 1 || st.Epoch != 2 || st.LastSeq != 0 {
			t.Errorf("got %s; want 1 restart, epoch 2, at 0", statusLine(st))
		}
	})
	t.Run("nobody answers", func(t *testing.T) {
		f, p := begin(t)
		f.Live(2, p[2], f.now)
		f.ReplayFailed(f.asked(1), errors.New("no answer for 5s"), f.now)
		f.want(1, 2)
		_, _, f.now = f.Next(f.now)
		f.ReplayFailed(f.asked(1), errors.New("no answer for 5s"), f.now)
		f.want(1, 2, 3)
		f.wantState(StateDegraded)
		if f.Status().Repairing {
			t.Error("given up: got repairing")
		}
	})
	t.Run("no replay socket", func(t *testing.T) {
		f := newFeedTest(t, false, nil).connect()
		f.live(0, storeOf(0, 1))
		f.Disconnected("the peer closed it", f.now)
		f.Connected(f.now)
		f.wantState(StateDegraded)
		f.live(1, storeOf(0, 2))
		f.wantState(StateActive)
		f.want(1, 2)
	})
}
