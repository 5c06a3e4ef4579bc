// SPDX-License-Identifier: Apache-2.0

package relayindex

import (
	"testing"
	"time"

	"kindex/harness/link"
	"kindex/harness/publish"
	"kindex/internal/longtest"
	"kindex/relay"
)

// newestOfAll are the numbers that p, silent now, published last.
func newestOfAll(p *publish.Publisher) []*uint64 {
	newest := make([]*uint64, p.Ranks())
	for i := range newest {
		n := p.Newest(i) - 1
		newest[i] = &n
	}
	return newest
}

// TestCut: a link that lets nothing through, for less and for more than the relay's
// history. What is printed is how long after the heal the index was equal.
func TestCut(t *testing.T) {
	for name, tc := range map[string]struct {
		history int
		cut     time.Duration
	}{
		"within the history": {10_000, seconds(4, 15)},
		"beyond the history": {20, seconds(4, 45)},
		"not noticed":        {10_000, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, e := startPublisher(t, 100)
			addr, _ := startRelay(t, e, "127.0.0.1:0", func(c *relay.Config) { c.HistoryBatches = tc.history })
			l, err := link.Open(addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			want, got := direct(t, e), relayed(t, e, l.Addr())
			until(t, "some batches", func() string {
				if ls := got.listeners(); ls[0].Status != "active" || ls[1].Status != "active" || ls[1].Memberships < 50 {
					return "too few"
				}
				return ""
			})
			before := got.listeners()
			l.Cut()
			time.Sleep(tc.cut)
			p.SetRate(0)
			caughtUp(t, want, newestOfAll(p))
			l.Heal()
			healed := time.Now()
			until(t, "equal", func() string { return differs(want, got) })
			took := time.Since(healed)
			for i, a := range got.listeners() {
				b := before[i]
				t.Logf("rank %d: cut for %v, %d batches; exact %v after the heal, by %d snapshots and %d resets",
					i, tc.cut, *a.LastSeq-*b.LastSeq, took.Round(time.Millisecond), a.Snapshots-b.Snapshots, a.Resets-b.Resets)
				if snapshot := a.Snapshots > b.Snapshots; snapshot != (tc.history == 20) {
					t.Errorf("rank %d: snapshot is %v with a history of %d", i, snapshot, tc.history)
				}
			}
		})
	}
}

// TestKilled: a relay that ends and comes back at the same address, under load, with
// the engine's whole history and with the end of it only.
func TestKilled(t *testing.T) {
	p, e := startPublisher(t, 200)
	addr, stop := startRelay(t, e, "127.0.0.1:0", nil)
	want, got := direct(t, e), relayed(t, e, addr)
	for round := range 3 {
		until(t, "more batches", func() string {
			for _, l := range got.listeners() {
				if l.Status != "active" || l.LastSeq == nil || *l.LastSeq < uint64(100*(round+1)) {
					return l.Status
				}
			}
			return ""
		})
		stop()
		time.Sleep(300 * time.Millisecond)
		_, stop = startRelay(t, e, addr, func(c *relay.Config) { c.HistoryBatches = 10_000 - round*4_990 })
		up := time.Now()
		until(t, "exact", func() string {
			for _, l := range got.listeners() {
				if l.Status != "active" {
					return l.LastError
				}
			}
			return ""
		})
		t.Logf("round %d: exact %v after the relay was back", round, time.Since(up).Round(time.Millisecond))
	}
	p.SetRate(0)
	caughtUp(t, want, newestOfAll(p))
	until(t, "equal", func() string { return differs(want, got) })
	for i, l := range got.listeners() {
		t.Logf("rank %d: %d snapshots, %d resets, %d restarts", i, l.Snapshots, l.Resets, l.Restarts)
	}
}

// TestRestarts: the engine's publisher begins anew; what the old life held is gone.
func TestRestarts(t *testing.T) {
	p, e := startPublisher(t, 200)
	addr, _ := startRelay(t, e, "127.0.0.1:0", nil)
	want, got := direct(t, e), relayed(t, e, addr)
	for _, keep := range []bool{false, true} {
		until(t, "some batches", func() string {
			for _, l := range got.listeners() {
				if l.Status != "active" || l.Memberships < 200 {
					return l.LastError
				}
			}
			return ""
		})
		if err := p.Restart(t.Context(), keep, 200*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
	}
	p.SetRate(0)
	caughtUp(t, want, newestOfAll(p))
	until(t, "equal", func() string { return differs(want, got) })
	for i, l := range got.listeners() {
		if l.Restarts == 0 {
			t.Errorf("rank %d: no restart was counted: %+v", i, l)
		}
	}
}

func seconds(short, long int) time.Duration {
	return time.Duration(longtest.N(short, long)) * time.Second
}
