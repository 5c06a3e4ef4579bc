// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"errors"
	"testing"
	"time"
)

// A live batch under a number that was given up is of another life only if the
// publisher is not the same any more.
func TestStraggler(t *testing.T) {
	p := make([][]byte, 7)
	for i := range p {
		p[i] = payload(storeOf(0, uint64(i+1)))
	}
	// Batches 2 and 3 are given up; 4 and 5 are there.
	begin := func(t *testing.T) *feedTest {
		f := newFeedTest(t, true, nil).connect()
		f.answer(f.asked(0), 0)
		for _, seq := range []uint64{0, 1, 4} {
			f.Live(seq, p[seq], f.now)
		}
		f.answer(f.asked(1), 4, p[4], p[5])
		f.want(1, 2, 5, 6)
		if st := f.Status(); st.Lost != 2 || st.LastSeq != 5 {
			t.Fatalf("got %s; want 2 lost, at 5", statusLine(st))
		}
		return f
	}
	t.Run("the same publisher", func(t *testing.T) {
		f := begin(t)
		f.Live(2, p[2], f.now)
		f.Live(3, p[3], f.now)
		f.Live(2, p[2], f.now)
		f.Live(6, p[6], f.now) // waits until it is known whose it is
		f.want(1, 2, 5, 6)
		f.answer(f.asked(5), 5, p[5], p[6])
		f.want(1, 2, 5, 6, 7)
		if st := f.Status(); st.Restarts != 0 || st.Duplicates != 3 || st.LastSeq != 6 || st.Lost != 2 {
			t.Errorf("got %s; want no restart, 3 duplicates, at 6, 2 lost", statusLine(st))
		}
	})
	t.Run("another one", func(t *testing.T) {
		f := begin(t)
		q := [][]byte{payload(storeOf(0, 501)), payload(storeOf(0, 502)), payload(storeOf(0, 503))}
		f.Live(2, q[2], f.now)
		f.want(1, 2, 5, 6)
		f.answer(f.asked(5), 5) // it has not come so far
		f.want()
		f.answer(f.asked(0), 0, q...)
		f.want(501, 502, 503)
		f.wantState(StateActive)
		if st := f.Status(); st.Restarts != 1 || st.Epoch != 2 || st.LastSeq != 2 {
			t.Errorf("got %s; want 1 restart, epoch 2, at 2", statusLine(st))
		}
	})
	t.Run("nobody answers", func(t *testing.T) {
		f := begin(t)
		f.Live(2, p[2], f.now)
		for range 2 {
			f.ReplayFailed(f.later(), errors.New("no answer for 5s"), f.now)
		}
		if st := f.Status(); st.Restarts != 1 || st.Epoch != 2 || st.HeldBatches != 1 {
			t.Errorf("got %s; want 1 restart, epoch 2, the batch held", statusLine(st))
		}
	})
	t.Run("the counter's first numbers", func(t *testing.T) {
		f := newFeedTest(t, true, nil).connect()
		f.answer(f.asked(0), 4, p[4], p[5])
		f.want(5, 6)
		f.Live(1, p[1], f.now)
		if st := f.Status(); st.Restarts != 1 || st.Epoch != 2 {
			t.Errorf("got %s; want 1 restart at once", statusLine(st))
		}
	})
	t.Run("too many", func(t *testing.T) {
		f := newFeedTest(t, true, nil).connect()
		f.answer(f.asked(0), 1_000, p[4], p[5])
		for seq := range uint64(maxSuspects + 1) {
			f.live(2+seq, storeOf(0, 600+seq))
		}
		if st := f.Status(); st.Restarts != 1 || st.Epoch != 2 {
			t.Errorf("got %s; want 1 restart", statusLine(st))
		}
	})
}

// After a restart a batch of the older life may still come. It is held, and let go
// as soon as the publisher turns out not to have said it.
func TestStragglerOfAnOlderLife(t *testing.T) {
	f := newFeedTest(t, true, nil).connect()
	f.answer(f.asked(0), 0)
	for seq := range uint64(9) {
		f.live(seq, storeOf(0, seq+1))
	}
	q := [][]byte{payload(storeOf(0, 501)), payload(storeOf(0, 502)), payload(storeOf(0, 503))}
	f.Live(0, q[0], f.now)
	f.want(501)
	f.live(9, storeOf(0, 10))
	for range 3 { // the first brings something
		f.answer(f.later(), 0, q[:2]...)
	}
	f.Live(2, q[2], f.now)
	f.want(501, 502, 503)
	f.wantState(StateActive)
	if st := f.Status(); st.Restarts != 1 || st.Lost != 0 || st.HeldBatches != 0 || st.LastSeq != 2 {
		t.Errorf("got %s; want 1 restart, none lost, nothing held, at 2", statusLine(st))
	}
}

// thorough returns a feed with a relay's limits, joined to a publisher of p.
func thorough(t *testing.T, p ...[]byte) *feedTest {
	f := newFeedTest(t, true, func(c *Config) { c.Limits = c.Limits.Thorough() }).connect()
	f.answer(f.asked(0), 0, p...)
	f.wantState(StateActive)
	return f
}

// What one answer lacks is asked for again before it is believed.
func TestAbsence(t *testing.T) {
	p := make([][]byte, 8)
	for i := range p {
		p[i] = payload(storeOf(0, uint64(i+1)))
	}
	t.Run("an answer without its first", func(t *testing.T) {
		f := newFeedTest(t, true, func(c *Config) { c.Limits = c.Limits.Thorough() }).connect()
		f.answer(f.asked(0), 2, p[2:5]...)
		f.want()
		f.answer(f.asked(0), 1, p[1:5]...)
		f.want()
		f.answer(f.asked(0), 0, p[:5]...)
		f.want(1, 2, 3, 4, 5)
		f.wantState(StateActive)
	})
	t.Run("a buffer that begins later", func(t *testing.T) {
		f := newFeedTest(t, true, func(c *Config) { c.Limits = c.Limits.Thorough() }).connect()
		f.answer(f.asked(0), 3, p[3:6]...)
		f.answer(f.asked(0), 2, p[2:6]...)
		f.want()
		f.answer(f.asked(0), 4, p[4:7]...)
		f.want(3, 4, 5, 6, 7)
		if st := f.Status(); st.Lost != 2 || st.State != StateDegraded || st.Repairing {
			t.Errorf("got %s; want 2 lost, degraded, not repairing", statusLine(st))
		}
	})
	t.Run("out of order", func(t *testing.T) {
		f := newFeedTest(t, true, func(c *Config) { c.Limits = c.Limits.Thorough() }).connect()
		id := f.asked(0)
		for _, seq := range []uint64{3, 0, 5, 1, 4, 2} {
			f.ReplayBatch(id, seq, p[seq], f.now)
		}
		f.want(1, 2, 3, 4, 5, 6)
		f.ReplayEnd(id, f.now)
		f.wantState(StateActive)
	})
	t.Run("the last admitted one", func(t *testing.T) {
		f := thorough(t, p[:4]...)
		f.Disconnected("test", f.now)
		f.Connected(f.now)
		f.answer(f.asked(1), 0)
		f.want(1, 2, 3, 4)
		f.answer(f.later(), 4, p[4:6]...) // proves nothing
		f.want(1, 2, 3, 4)
		f.answer(f.later(), 2, p[2:6]...)
		f.want(1, 2, 3, 4, 5, 6)
		f.wantState(StateActive)
		if st := f.Status(); st.Restarts != 0 || st.Lost != 0 {
			t.Errorf("got %s; want no restart, none lost", statusLine(st))
		}
	})
	t.Run("another publisher, silent", func(t *testing.T) {
		f := thorough(t, p[:4]...)
		f.Disconnected("test", f.now)
		f.Connected(f.now)
		for range 4 { // the last from 0
			f.want(1, 2, 3, 4)
			f.answer(f.later(), 0)
		}
		f.want()
		if st := f.Status(); st.Restarts != 1 {
			t.Errorf("got %s; want 1 restart", statusLine(st))
		}
	})
	t.Run("the whole history", func(t *testing.T) {
		f := thorough(t, p[:2]...)
		f.Live(3, p[3], f.now)
		for range 4 { // deaf
			f.ReplayFailed(f.later(), errors.New("no answer for 5s"), f.now)
		}
		f.want(1, 2, 4)
		f.wantState(StateDegraded)
		resync := func(from uint64, ps ...[]byte) {
			t.Helper()
			for {
				id := f.later()
				if f.repair.resyncing {
					f.answer(id, from, ps...)
					return
				}
				f.answer(id, 3, p[3])
			}
		}
		resync(1, p[1:4]...)
		f.wantState(StateDegraded)
		resync(0, p[0], p[1])
		f.want(1, 2, 4)
		resync(0, p[:4]...)
		f.want(1, 2, 3, 4)
		f.wantState(StateActive)
	})
}

// later returns the request that the feed makes next, now or when it wants to.
func (f *feedTest) later() uint64 {
	f.Helper()
	for range 10 {
		req, ask, wake := f.Next(f.now)
		if ask {
			return req.ID
		}
		if wake.IsZero() {
			break
		}
		f.now = wake
	}
	f.Fatal("no replay request, want one")
	return 0
}

// A stream that falls silent is asked for what was missed, a few times.
func TestQuiet(t *testing.T) {
	p := make([][]byte, 4)
	for i := range p {
		p[i] = payload(storeOf(0, uint64(i+1)))
	}
	f := thorough(t, p[0])
	f.now = f.now.Add(time.Millisecond)
	f.Live(1, p[1], f.now)
	for range 9 { // not silent
		f.now = f.now.Add(900 * time.Millisecond)
		f.notAsked()
		f.Live(1, p[1], f.now)
	}
	heard := f.now
	f.answer(f.later(), 0, p[:3]...)
	f.want(1, 2, 3)
	if got := f.now.Sub(heard); got != time.Second {
		t.Errorf("asked after %v of silence, want %v", got, time.Second)
	}
	for range 3 {
		f.answer(f.later(), 0, p[:3]...)
	}
	if _, ask, wake := f.Next(f.now); ask || !wake.IsZero() {
		t.Errorf("silent, and nothing new: got a request or %v, want none until it speaks", wake)
	}
}
