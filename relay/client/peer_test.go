// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/proto/peer/common"
)

func endsExact(l []string) bool { return len(l) > 0 && l[len(l)-1] == "exact" }

// TestPeerWholeHistory: a history from 0 makes the rank exact, ranks apart.
func TestPeerWholeHistory(t *testing.T) {
	f := startFake(t, &fake{vllm: func(_ int, req *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		if !req.GetLoadRecordsBeforeFirstBatch() {
			t.Error("load records before the first batch were not asked for")
		}
		return hold(s, heartbeat(0, 7), peerBatch(0, peerStore(1, 3, 0)), ofRank(1, peerBatch(0, peerStore(1, 2, 0))), peerBatch(1, peerStore(4, 2, 3)), heartbeat(1, 8))
	}})
	c, recs := subscribe(t, f, Config{}, 0, 1)
	lines := recs[0].until(t, "exact", func(l []string) bool { return told(l, "batch 1") > 0 && told(l, "exact") > 0 })
	wantSteps(t, lines, "connected vllm.grpc.engine", "batch 0", "batch 1")
	recs[0].untilTold(t, "load 8")
	recs[1].until(t, "exact", endsExact)
	if _, blocks, _, _ := recs[0].snapshot(); blocks != 5 {
		t.Errorf("%d blocks are held, want 5", blocks)
	}
	if _, blocks, _, _ := recs[1].snapshot(); blocks != 2 {
		t.Errorf("rank 1 holds %d blocks, want 2", blocks)
	}
	if st := c.Status(); st.Contract != ContractVLLM || !st.Connected {
		t.Errorf("status is %+v", st)
	}
}

// TestContracts: the own contract is tried first, then vLLM's, then SGLang's; the
// one found is kept, and looked for again when it is not served any more.
func TestContracts(t *testing.T) {
	f := startFake(t, &fake{sglang: func(_ int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		return hold(s, peerBatch(0, peerStore(1, 3, 0)))
	}})
	c, recs := subscribe(t, f, Config{})
	recs[0].untilTold(t, "batch 0")
	if st := c.Status(); st.Contract != ContractSGLang || st.Connections != 1 {
		t.Errorf("status is %+v", st)
	}
	f.stop()
	f.sglang = nil
	f.vllm = func(_ int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		return hold(s, peerBatch(0, peerStore(1, 3, 0)), peerBatch(1))
	}
	f.start()
	recs[0].untilTold(t, "batch 1")
	if st := c.Status(); st.Contract != ContractVLLM {
		t.Errorf("status is %+v", st)
	}
}

// TestNoContract: a server that serves no stream is named with what was looked for.
func TestNoContract(t *testing.T) {
	f := startFake(t, &fake{})
	_, recs := subscribe(t, f, Config{})
	lines := recs[0].untilTold(t, "disconnected: "+f.addr+" serves no event stream: none of kindex.relay.v1.RelayService, vllm.grpc.engine.VllmEngine, sglang.grpc.scheduler.SglangScheduler")
	if told(lines, "connected") > 0 {
		t.Errorf("told:\n%s", strings.Join(lines, "\n"))
	}
}

// TestPeerResumes: the last batch is asked for again, known by its content and not
// applied twice.
func TestPeerResumes(t *testing.T) {
	f := startFake(t, &fake{vllm: func(n int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		all := []*common.KvEventBatch{peerBatch(0, peerStore(1, 1, 0)), peerBatch(1), peerBatch(2, peerStore(2, 1, 1)), peerBatch(3)}
		if n == 0 {
			_ = send(s, all[:3]...)
			return status.Error(codes.Unavailable, "going away")
		}
		return hold(s, all[2:]...)
	}})
	c, recs := subscribe(t, f, Config{})
	lines := recs[0].untilTold(t, "batch 3")
	wantSteps(t, lines, "connected", "batch 0", "batch 1", "batch 2", "disconnected", "connected", "batch 3")
	if got := f.log(); !slices.Equal(got, []string{"vllm 0", "vllm 1"}) {
		t.Errorf("subscribed with %q", got)
	}
	if st := c.Rank(0); st.Duplicates != 1 || st.Restarts != 0 {
		t.Errorf("status is %+v", st)
	}
}

// TestPeerOvertaken: a publisher that began anew and overtook the old numbers is
// noticed by its last batch's content.
func TestPeerOvertaken(t *testing.T) {
	f := startFake(t, &fake{vllm: func(n int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		switch n {
		case 0:
			_ = send(s, peerBatch(0, peerStore(1, 1, 0)), peerBatch(1), peerBatch(2, peerStore(2, 1, 1)))
			return status.Error(codes.Unavailable, "going away")
		case 1:
			_ = send(s, peerBatch(2, peerStore(9, 1, 0)), peerBatch(3))
			return errOutOfRange
		}
		return hold(s, peerBatch(0, peerStore(50, 4, 0)))
	}})
	c, recs := subscribe(t, f, Config{})
	recs[0].until(t, "the whole new life", func(l []string) bool { return told(l, "batch 0") == 2 && endsExact(l) })
	lines, blocks, _, _ := recs[0].snapshot()
	wantSteps(t, lines, "connected", "batch 0", "batch 1", "batch 2", "disconnected", "connected",
		"reset: the publisher restarted", "batch 2", "batch 3", "disconnected", "connected", "reset", "batch 0")
	if st := c.Rank(0); blocks != 4 || st.Restarts != 1 {
		t.Errorf("%d blocks, want 4; status is %+v", blocks, st)
	}
}

// TestPeerGap plays the verified sequence of a gateway: snapshot, live, a gap, a
// cursor out of range, the beginning.
func TestPeerGap(t *testing.T) {
	f := startFake(t, &fake{vllm: func(n int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		switch n {
		case 0:
			return hold(s, heartbeat(0, 1), peerChunk(0, 2, 9, peerClear(), peerStore(1, 3, 0)), peerChunk(1, 2, 10, peerStore(4, 2, 3)), peerBatch(11, peerStore(6, 1, 5)), peerBatch(14))
		case 1:
			return errOutOfRange
		case 2:
			return status.Error(codes.DataLoss, "the publisher restarted")
		}
		return hold(s, peerBatch(0, peerStore(1, 1, 0)))
	}})
	_, recs := subscribe(t, f, Config{})
	recs[0].until(t, "the new life", func(l []string) bool { return told(l, "batch 0") == 1 && endsExact(l) })
	lines, blocks, _, _ := recs[0].snapshot()
	wantSteps(t, lines, "connected", "begin 10", "chunk", "chunk", "end 10", "batch 11",
		"disconnected: rank 0: batch 14 came after batch 11", "disconnected: OutOfRange", "reset: DataLoss", "disconnected: DataLoss", "connected", "batch 0")
	if got := f.log(); !slices.Equal(got, []string{"vllm 0", "vllm 11", "vllm 0", "vllm 0"}) {
		t.Errorf("subscribed with %q", got)
	}
	if blocks != 1 {
		t.Errorf("%d blocks, want 1", blocks)
	}
}

// TestPeerGapForGood: what does not come a second time either is lost.
func TestPeerGapForGood(t *testing.T) {
	for _, tc := range []struct {
		name string
		next uint64
		want []string
		kept int
	}{
		{"few", 5, []string{"hole 2-4", "batch 5"}, 4},
		{"many", 5_000, []string{"reset: batches 2 to 4999 are missing", "hole 2-4999", "batch 5000"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := startFake(t, &fake{vllm: func(n int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
				if n == 0 {
					_ = send(s, peerBatch(0, peerStore(1, 3, 0)), peerBatch(1))
				}
				return hold(s, peerBatch(tc.next, peerStore(50, 1, 0)), peerBatch(tc.next+1), heartbeat(tc.next+1, 3))
			}})
			_, recs := subscribe(t, f, Config{})
			lines := recs[0].untilTold(t, "load 3")
			want := append([]string{"connected", "batch 0", "batch 1", "disconnected", "connected"}, tc.want...)
			wantSteps(t, lines, append(want, fmt.Sprintf("batch %d", tc.next+1))...)
			_, blocks, _, s := recs[0].snapshot()
			if blocks != tc.kept || s.Exact {
				t.Errorf("%d blocks, want %d; %+v", blocks, tc.kept, s)
			}
		})
	}
}

// TestPeerRestarts: the rules by which a number that was passed is another life's.
func TestPeerRestarts(t *testing.T) {
	for _, tc := range []struct {
		name  string
		then  *common.KvEventBatch
		reset bool
	}{
		{"the same again", peerBatch(3), false},
		{"0 again, the same", peerBatch(0, peerStore(1, 3, 0)), false},
		{"0 again, another", peerBatch(0, peerStore(9, 3, 0)), true},
		{"a clear", peerBatch(2, peerClear()), true},
		{"another of a number", peerBatch(2, peerStore(9, 1, 0)), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := startFake(t, &fake{vllm: func(_ int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
				_ = send(s, peerBatch(0, peerStore(1, 3, 0)), peerBatch(1), peerBatch(2), peerBatch(3), tc.then)
				return hold(s, heartbeat(0, 9))
			}})
			_, recs := subscribe(t, f, Config{})
			lines := recs[0].untilTold(t, "load 9")
			if got := told(lines, "reset") > 0; got != tc.reset {
				t.Errorf("reset: %v, want %v:\n%s", got, tc.reset, strings.Join(lines, "\n"))
			}
		})
	}
}

// TestPeerJoinsLate: without the beginning nothing is exact until the engine clears
// its cache.
func TestPeerJoinsLate(t *testing.T) {
	clearing := make(chan bool)
	f := startFake(t, &fake{vllm: func(_ int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		_ = send(s, peerBatch(7, peerStore(1, 3, 0)), peerBatch(8), heartbeat(8, 1))
		<-clearing
		return hold(s, peerBatch(9, peerClear()))
	}})
	_, recs := subscribe(t, f, Config{})
	lines := recs[0].untilTold(t, "load 1")
	if told(lines, "inexact: batches before 7 are unknown") == 0 || told(lines, "exact") > 0 {
		t.Errorf("told:\n%s", strings.Join(lines, "\n"))
	}
	close(clearing)
	recs[0].untilTold(t, "exact")
}

// TestPeerTornSnapshot: a snapshot that does not end is taken back and its numbers
// are no cursor.
func TestPeerTornSnapshot(t *testing.T) {
	f := startFake(t, &fake{vllm: func(n int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		if n == 0 {
			_ = send(s, peerChunk(0, 3, 8, peerClear(), peerStore(1, 3, 0)), peerChunk(1, 3, 9, peerStore(4, 2, 3)))
			return status.Error(codes.Unavailable, "going away")
		}
		return hold(s, peerChunk(0, 1, 12, peerClear(), peerStore(1, 3, 0)))
	}})
	c, recs := subscribe(t, f, Config{})
	lines := recs[0].until(t, "exact", endsExact)
	wantSteps(t, lines, "connected", "begin", "chunk", "chunk", "reset: the snapshot did not end", "disconnected", "connected", "begin", "chunk", "end 12")
	if got := f.log(); !slices.Equal(got, []string{"vllm 0", "vllm 0"}) {
		t.Errorf("subscribed with %q", got)
	}
	if st := c.Rank(0); st.Torn != 1 || st.Snapshots != 1 {
		t.Errorf("status is %+v", st)
	}
}

// TestPeerUnknownBefore: a snapshot of a record that lacks batches is not exact.
func TestPeerUnknownBefore(t *testing.T) {
	f := startFake(t, &fake{vllm: func(_ int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		ch := peerChunk(0, 1, 12, peerClear(), peerStore(1, 3, 0))
		ch.Snapshot.UnknownBefore = 4
		return hold(s, ch, heartbeat(12, 5))
	}})
	_, recs := subscribe(t, f, Config{})
	lines := recs[0].untilTold(t, "load 5")
	if told(lines, "inexact: 4 batches before the snapshot are unknown") == 0 || told(lines, "exact") > 0 {
		t.Errorf("told:\n%s", strings.Join(lines, "\n"))
	}
}

// TestPeerHeartbeatShowsGap: a record alone names the last batch, so that one that
// was lost before a silence is noticed.
func TestPeerHeartbeatShowsGap(t *testing.T) {
	f := startFake(t, &fake{vllm: func(n int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		if n == 0 {
			return hold(s, peerBatch(0, peerStore(1, 3, 0)), heartbeat(1, 1))
		}
		return hold(s, peerBatch(0, peerStore(1, 3, 0)), peerBatch(1))
	}})
	_, recs := subscribe(t, f, Config{})
	recs[0].untilTold(t, "batch 1")
}

// TestPeerFields: whatever a peer says of a block counts as if the engine had said
// it.
func TestPeerFields(t *testing.T) {
	host := common.KvCacheTier_KV_CACHE_TIER_HOST
	external := common.KvCacheTier_KV_CACHE_TIER_EXTERNAL
	window, salt := "sliding_window", "tenant"
	group := uint32(1)
	edit := func(f func(*common.KvBlocksStored)) *common.KvCacheEvent {
		e := peerStore(1, 1, 0)
		f(e.GetStored())
		return e
	}
	f := startFake(t, &fake{vllm: func(_ int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		return hold(s,
			peerBatch(0, edit(func(s *common.KvBlocksStored) { s.Tier = &host })),
			peerBatch(1, edit(func(s *common.KvBlocksStored) { s.Tier = &external })),
			peerBatch(2, edit(func(s *common.KvBlocksStored) { s.GroupIdx, s.KvCacheSpecKind = &group, &window })),
			peerBatch(3, edit(func(s *common.KvBlocksStored) { s.CacheSalt = &salt })),
			peerBatch(4, edit(func(s *common.KvBlocksStored) {
				s.Blocks[0].ExtraKeys = []*common.KvBlockExtraKey{{Key: &common.KvBlockExtraKey_Text{Text: "tenant"}}}
			})),
			peerBatch(5, edit(func(s *common.KvBlocksStored) { s.Blocks[0].BlockSize = 5 })),
			peerBatch(6, edit(func(s *common.KvBlocksStored) { s.Blocks = nil })),
			peerBatch(7),
		)
	}})
	c, recs := subscribe(t, f, Config{})
	recs[0].untilTold(t, "batch 7")
	d := c.Rank(0).Dropped
	for reason, want := range map[string]uint64{"remote_tier": 1, "non_main_group": 1, "no_hashes": 1} {
		if d[reason] != want {
			t.Errorf("%d dropped for %s, want %d", d[reason], reason, want)
		}
	}
	if n := d["misaligned"] + d["block_size"]; n != 1 {
		t.Errorf("%d dropped for size, want 1: %v", n, d)
	}
}
