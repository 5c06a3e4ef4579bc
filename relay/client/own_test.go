// SPDX-License-Identifier: Apache-2.0

package client

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	relayv1 "kindex/proto/kindex/relay/v1"
)

func wantSteps(t *testing.T, got []string, want ...string) {
	t.Helper()
	got = steps(got)
	same := len(got) == len(want)
	for i := 0; same && i < len(got); i++ {
		same = strings.HasPrefix(got[i], want[i])
	}
	if !same {
		t.Errorf("told:\n  %s\nwant lines that begin:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// TestOwnWholeHistory: a rank without a cursor gets all batches from 0 and stands
// exact.
func TestOwnWholeHistory(t *testing.T) {
	f := startFake(t, &fake{own: func(_ int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
		return hold(s, ownStanding(true, true, ""), ownBatch(5, 0, ownStore(1, 3, 0)), ownBatch(5, 1, ownStore(4, 2, 3)), ownBatch(5, 2, ownRemove(5)))
	}})
	c, recs := subscribe(t, f, Config{})
	r := recs[0]
	r.untilTold(t, "batch 2")
	lines := r.untilTold(t, "exact")
	wantSteps(t, lines, "connected kindex.relay.v1", "batch 0", "batch 1", "batch 2")
	if _, blocks, _, _ := r.snapshot(); blocks != 4 {
		t.Errorf("%d blocks are held, want 4", blocks)
	}
	st := c.Rank(0)
	if st.Epoch != 5 || st.Seq != 2 || !st.HasSeq || st.Batches != 3 || !st.Standing.Exact {
		t.Errorf("status is %+v", st)
	}
}

// TestOwnResumes: after the connection was lost each rank goes on from its cursor.
func TestOwnResumes(t *testing.T) {
	f := startFake(t, &fake{own: func(n int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
		if n == 0 {
			one := ownBatch(5, 0, ownStore(1, 1, 0))
			one.Rank = 1
			_ = send(s, ownBatch(5, 0, ownStore(1, 3, 0)), ownBatch(5, 1, ownStore(4, 2, 3)), one)
			return status.Error(codes.Unavailable, "going away")
		}
		return hold(s, ownBatch(5, 1, ownStore(4, 2, 3)), ownBatch(5, 2, ownRemove(5)))
	}})
	c, recs := subscribe(t, f, Config{}, 0, 1)
	lines := recs[0].untilTold(t, "batch 2")
	wantSteps(t, lines, "connected", "batch 0", "batch 1", "disconnected: going away", "connected", "batch 2")
	if got, want := f.log(), []string{"own", "own 0@5/1#101 1@5/0#100"}; !slices.Equal(got, want) {
		t.Errorf("subscribed with %q, want %q", got, want)
	}
	if st := c.Rank(0); st.Duplicates != 1 {
		t.Errorf("%d duplicates, want 1", st.Duplicates)
	}
	recs[0].until(t, "exact again", endsExact)
}

// TestOwnSnapshot: a reset in band and a snapshot replace what was held; a batch
// that follows the snapshot's cut goes on.
func TestOwnSnapshot(t *testing.T) {
	f := startFake(t, &fake{own: func(_ int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
		_ = send(s, ownBatch(5, 0, ownStore(100, 9, 0)), ownReset(6, "fell behind", 42))
		_ = send(s, ownChunks(6, 41, ownStore(1, 3, 0), ownStore(4, 2, 3), ownRemove(5))...)
		return hold(s, ownBatch(6, 42, ownStore(6, 1, 4)))
	}})
	c, recs := subscribe(t, f, Config{})
	r := recs[0]
	r.untilTold(t, "batch 42")
	lines := r.until(t, "exact", endsExact)
	wantSteps(t, lines, "connected", "batch 0", "reset: fell behind", "begin 10", "chunk", "chunk", "chunk", "end 41", "batch 42")
	if i := slices.Index(lines, "begin 10"); slices.Contains(lines[i:slices.Index(lines, "end 41")], "exact") {
		t.Errorf("stood exact within a snapshot:\n%s", strings.Join(lines, "\n"))
	}
	if _, blocks, _, _ := r.snapshot(); blocks != 5 {
		t.Errorf("%d blocks are held, want 5", blocks)
	}
	if st := c.Rank(0); st.Snapshots != 1 || st.Resets != 1 || st.Epoch != 6 {
		t.Errorf("status is %+v", st)
	}
}

// TestOwnBadSnapshots: a snapshot that ends early, in another order or with a
// digest that is not its content's is taken back, and the rank asked for anew.
func TestOwnBadSnapshots(t *testing.T) {
	good := func() []*relayv1.SubscribeResponse {
		return ownChunks(6, 41, ownStore(1, 3, 0), ownStore(4, 2, 3), ownRemove(5))
	}
	for _, tc := range []struct {
		name string
		bad  func(ms []*relayv1.SubscribeResponse) []*relayv1.SubscribeResponse
	}{
		{"ends early", func(ms []*relayv1.SubscribeResponse) []*relayv1.SubscribeResponse { return ms[:2] }},
		{"wrong digest", func(ms []*relayv1.SubscribeResponse) []*relayv1.SubscribeResponse {
			ms[2].GetSnapshot().Digest++
			return ms
		}},
		{"a chunk twice", func(ms []*relayv1.SubscribeResponse) []*relayv1.SubscribeResponse {
			return []*relayv1.SubscribeResponse{ms[0], ms[1], ms[1], ms[2]}
		}},
		{"a chunk left out", func(ms []*relayv1.SubscribeResponse) []*relayv1.SubscribeResponse {
			return []*relayv1.SubscribeResponse{ms[0], ms[2]}
		}},
		{"begins in the middle", func(ms []*relayv1.SubscribeResponse) []*relayv1.SubscribeResponse { return ms[1:] }},
		{"a batch within", func(ms []*relayv1.SubscribeResponse) []*relayv1.SubscribeResponse {
			return []*relayv1.SubscribeResponse{ms[0], ownBatch(6, 42)}
		}},
		{"no parent", func([]*relayv1.SubscribeResponse) []*relayv1.SubscribeResponse {
			return []*relayv1.SubscribeResponse{{Epoch: 6, Body: &relayv1.SubscribeResponse_Snapshot{Snapshot: &relayv1.SnapshotChunk{
				Count: 1, Events: []*relayv1.Event{ownStore(4, 2, 3)},
			}}}}
		}},
		{"too large", func(ms []*relayv1.SubscribeResponse) []*relayv1.SubscribeResponse {
			ms[0].GetSnapshot().Blocks = 1 << 40
			return ms
		}},
		{"count 0", func(ms []*relayv1.SubscribeResponse) []*relayv1.SubscribeResponse {
			ms[0].GetSnapshot().Count = 0
			return ms
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := startFake(t, &fake{own: func(n int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
				if n == 0 {
					_ = send(s, tc.bad(good())...)
					return status.Error(codes.Unavailable, "going away")
				}
				return hold(s, good()...)
			}})
			_, recs := subscribe(t, f, Config{})
			r := recs[0]
			r.untilTold(t, "disconnected")
			lines, _, _, s := r.snapshot()
			if i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "disconnected") }); told(lines[:i], "exact") > 0 {
				t.Errorf("stood exact (%+v):\n%s", s, strings.Join(lines, "\n"))
			}
			r.untilTold(t, "end 41")
			lines = r.until(t, "exact", endsExact)
			if _, blocks, _, _ := r.snapshot(); blocks != 4 {
				t.Errorf("%d blocks are held, want 4:\n%s", blocks, strings.Join(lines, "\n"))
			}
			if got := f.log(); got[1] != "own" {
				t.Errorf("asked for again with %q, want no cursor", got[1])
			}
		})
	}
}

// TestOwnHole: a hole leaves the rank inexact, with a cursor that proves nothing,
// until the engine clears it or the relay says that it is exact.
func TestOwnHole(t *testing.T) {
	heal := map[string]*relayv1.SubscribeResponse{
		"clear":    ownBatch(5, 4, ownClear()),
		"standing": ownStanding(true, true, ""),
		"reset":    ownReset(6, "a new life", -1),
	}
	for name, m := range heal {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, &fake{own: func(n int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
				if n == 0 {
					_ = send(s, ownBatch(5, 0, ownStore(1, 3, 0)), ownHole(5, 1, 2), ownBatch(5, 3, ownStore(9, 1, 0)))
					return status.Error(codes.Unavailable, "going away")
				}
				return hold(s, m)
			}})
			_, recs := subscribe(t, f, Config{})
			lines := recs[0].until(t, "exact at the end", func(l []string) bool { return told(l, "disconnected") > 0 && l[len(l)-1] == "exact" })
			i := slices.Index(lines, "hole 1-2")
			if j := slices.Index(lines[i:], "inexact: batches 1 to 2 lost: gone"); j < 0 || slices.Contains(lines[i:i+j], "exact") {
				t.Errorf("not inexact after the hole:\n%s", strings.Join(lines, "\n"))
			}
			if got := f.log(); got[1] != "own 0@5/3#0" {
				t.Errorf("resumed with %q, want own 0@5/3#0", got[1])
			}
		})
	}
}

// TestOwnGaps: a number left out is asked for again on a new connection.
func TestOwnGaps(t *testing.T) {
	f := startFake(t, &fake{own: func(n int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
		if n == 0 {
			return hold(s, ownBatch(5, 0, ownStore(1, 3, 0)), ownBatch(5, 2, ownRemove(3)))
		}
		return hold(s, ownBatch(5, 1, ownStore(4, 1, 3)), ownBatch(5, 2, ownRemove(3)))
	}})
	c, recs := subscribe(t, f, Config{})
	lines := recs[0].untilTold(t, "batch 2")
	wantSteps(t, lines, "connected", "batch 0", "disconnected: rank 0: batch 2 came after batch 0", "connected", "batch 1", "batch 2")
	if st := c.Rank(0); st.Gaps != 1 {
		t.Errorf("%d gaps, want 1", st.Gaps)
	}
}

// TestOwnAnotherLife: batches of another epoch without a reset are refused, unless
// the relay takes up a cursor that proves itself.
func TestOwnAnotherLife(t *testing.T) {
	f := startFake(t, &fake{own: func(n int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
		switch n {
		case 0:
			_ = send(s, ownBatch(5, 0, ownStore(1, 3, 0)))
			return status.Error(codes.Unavailable, "restarting")
		case 1:
			return hold(s, ownBatch(6, 1, ownStore(4, 1, 3)), ownBatch(7, 2, ownStore(5, 1, 4)))
		}
		return hold(s, ownBatch(6, 2, ownStore(5, 1, 4)))
	}})
	_, recs := subscribe(t, f, Config{})
	lines := recs[0].untilTold(t, "batch 2")
	wantSteps(t, lines, "connected", "batch 0", "disconnected", "connected", "batch 1",
		"disconnected: rank 0: batch 2 of epoch 7 after batch 1 of epoch 6, without a reset", "connected", "reset", "batch 2")
}

// TestOwnCatchesUp: a rank is not exact before what the relay had has come.
func TestOwnCatchesUp(t *testing.T) {
	more := make(chan bool)
	f := startFake(t, &fake{
		describe: &relayv1.DescribeResponse{Engines: []*relayv1.Engine{{Ranks: []*relayv1.Rank{{Epoch: 5, Any: true, Sequence: 2}}}}},
		own: func(_ int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
			_ = send(s, ownStanding(true, true, ""), ownBatch(5, 0, ownStore(1, 3, 0)), ownBatch(5, 1))
			<-more
			return hold(s, ownBatch(5, 2))
		},
	})
	_, recs := subscribe(t, f, Config{})
	lines := recs[0].untilTold(t, "batch 1")
	if told(lines, "exact") > 0 {
		t.Errorf("exact before all had come:\n%s", strings.Join(lines, "\n"))
	}
	close(more)
	recs[0].untilTold(t, "exact")
}

// TestOwnRelayInexact: what the relay says of itself is the rank's standing.
func TestOwnRelayInexact(t *testing.T) {
	f := startFake(t, &fake{own: func(_ int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
		return hold(s, ownStanding(false, false, "no engine"), ownBatch(5, 0), ownStanding(true, false, "batches 3 to 4 lost"))
	}})
	_, recs := subscribe(t, f, Config{})
	lines := recs[0].untilTold(t, "inexact: the relay is not exact: batches 3 to 4 lost")
	if told(lines, "inexact: the relay is not primed: no engine") == 0 || told(lines, "exact") > 0 {
		t.Errorf("told:\n%s", strings.Join(lines, "\n"))
	}
}

// TestOwnBlockSize: blocks of another size are left out, and the rank says why it
// is not exact.
func TestOwnBlockSize(t *testing.T) {
	f := startFake(t, &fake{own: func(_ int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
		return hold(s, ownBatch(5, 0, ownStore(1, 3, 0)))
	}})
	c, recs := subscribe(t, f, Config{BlockSize: 16})
	recs[0].untilTold(t, "inexact: the relay's block size is 4, registered was 16")
	if _, blocks, _, _ := recs[0].snapshot(); blocks != 0 {
		t.Errorf("%d blocks are held, want none", blocks)
	}
	if n := c.Rank(0).Dropped["block_size"]; n != 1 {
		t.Errorf("%d dropped for block_size, want 1", n)
	}
}

// TestOwnStandingOfAnotherEpoch: a standing of an epoch whose reset is still to come
// makes nothing exact and fills no hole; the reset's content needs no other.
func TestOwnStandingOfAnotherEpoch(t *testing.T) {
	next := make(chan bool)
	stands := func(epoch uint64, exact bool) *relayv1.SubscribeResponse {
		m := ownStanding(true, exact, "")
		m.Epoch = epoch
		return m
	}
	f := startFake(t, &fake{own: func(_ int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
		_ = send(s, stands(5, true), ownBatch(5, 0, ownStore(1, 3, 0)))
		<-next
		_ = send(s, ownHole(5, 1, 2), stands(5, false), stands(6, true), ownBatch(5, 3))
		<-next
		return hold(s, ownReset(6, "it restarted", 0), ownBatch(6, 0, ownStore(9, 1, 0)))
	}})
	_, recs := subscribe(t, f, Config{})
	recs[0].until(t, "exact", endsExact)
	next <- true
	lines := recs[0].untilTold(t, "batch 3")
	at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "hole") })
	if told(lines[at:], "exact") > 0 {
		t.Errorf("exact by the standing of another epoch:\n%s", strings.Join(lines, "\n"))
	}
	close(next)
	recs[0].until(t, "exact after the reset", func(lines []string) bool { return told(lines, "reset") == 1 && endsExact(lines) })
}

// TestOwnQuietAfterRestart: where a relay that restarted takes up a proven cursor and
// has nothing new, its standing is enough.
func TestOwnQuietAfterRestart(t *testing.T) {
	f := startFake(t, &fake{
		describe: &relayv1.DescribeResponse{Engines: []*relayv1.Engine{{Ranks: []*relayv1.Rank{{Epoch: 6, Any: true, Check: 100}}}}},
		own: func(n int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
			if n == 0 {
				_ = send(s, ownBatch(5, 0, ownStore(1, 3, 0)))
				return status.Error(codes.Unavailable, "restarting")
			}
			m := ownStanding(true, true, "")
			m.Epoch = 6
			return hold(s, m)
		},
	})
	_, recs := subscribe(t, f, Config{})
	recs[0].until(t, "exact", endsExact)
	lines, _, _, _ := recs[0].snapshot()
	wantSteps(t, lines, "connected", "batch 0", "disconnected", "connected")
}

// TestOwnAbsentRanks: a rank that the relay has not is not asked for and told so;
// the others are served, and how many there are is known.
func TestOwnAbsentRanks(t *testing.T) {
	f := startFake(t, &fake{
		describe: &relayv1.DescribeResponse{Engines: []*relayv1.Engine{{Ranks: []*relayv1.Rank{{Epoch: 5}, {Rank: 1, Epoch: 5}}}}},
		own: func(_ int, req *relayv1.SubscribeRequest, s grpc.ServerStream) error {
			if !slices.Equal(req.GetRanks(), []uint32{1}) {
				return status.Errorf(codes.InvalidArgument, "ranks %v", req.GetRanks())
			}
			m := ownBatch(5, 0, ownStore(1, 3, 0))
			m.Rank = 1
			r := ownReset(6, WhyRestarted+": it is another life", 0)
			r.Rank = 1
			other := ownReset(7, "the cursor is not of this record", 0)
			other.Rank = 1
			return hold(s, m, r, other)
		},
	})
	c, recs := subscribe(t, f, Config{}, 1, 2)
	recs[1].untilTold(t, "reset: the cursor")
	lines := recs[2].untilTold(t, "disconnected: the relay at "+f.addr+" has no rank 2 of this engine: it has 2 ranks")
	if told(lines, "connected") > 0 {
		t.Errorf("rank 2 was told:\n%s", strings.Join(lines, "\n"))
	}
	if n := c.Status().RelayRanks; n != 2 {
		t.Errorf("the relay has %d ranks, want 2", n)
	}
	if st := c.Rank(1); st.Restarts > 1 || c.Rank(2).Connected {
		t.Errorf("rank 1 counts %d restarts, want 1 of 2 resets; rank 2 is connected: %v", st.Restarts, c.Rank(2).Connected)
	}
}
