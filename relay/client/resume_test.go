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
	"kindex/relay/normal"

	relayv1 "kindex/proto/kindex/relay/v1"
)

// loaded is a cursor of rank 0 behind batch seq of ownBatch's or peerBatch's.
func loaded(c Contract, seq uint64, events ...*common.KvCacheEvent) Cursor {
	cur := Cursor{Contract: c, Epoch: 5, Sequence: seq, Check: 100 + seq}
	if c != ContractOwn {
		p := newPeerRank(&Config{})
		decodePeer(peerBatch(seq, events...), &p.batch)
		cur.Check, cur.Memory = sumOf(&p.batch), normal.New(normal.Config{BlockSize: 4}).AppendMemory(nil)
	}
	return cur
}

// TestOwnStart: a relay goes on from a content's cursor, or says that it cannot.
func TestOwnStart(t *testing.T) {
	for _, tc := range []struct {
		name string
		cur  Cursor
		say  []*relayv1.SubscribeResponse
		want []string
		asks string
	}{
		{
			"goes on", loaded(ContractOwn, 41),
			[]*relayv1.SubscribeResponse{ownStanding(true, true, ""), ownBatch(5, 42, ownStore(6, 1, 0))},
			[]string{"connected", "goes on", "batch 42"},
			"own 0@5/41#141",
		},
		{
			"another life of the relay", loaded(ContractOwn, 41),
			[]*relayv1.SubscribeResponse{ownBatch(9, 42, ownStore(6, 1, 0)), ownBatch(9, 43)},
			[]string{"connected", "goes on", "batch 42", "batch 43"},
			"own 0@5/41#141",
		},
		{
			"a hole", loaded(ContractOwn, 41),
			[]*relayv1.SubscribeResponse{ownHole(5, 42, 44), ownBatch(5, 45)},
			[]string{"connected", "goes on", "hole 42-44", "batch 45"},
			"own 0@5/41#141",
		},
		{
			"its history has rolled past", loaded(ContractOwn, 41), append([]*relayv1.SubscribeResponse{ownReset(5, "the history begins at 99", 120)}, ownChunks(5, 120, ownStore(1, 3, 0))...),
			[]string{"connected", "cold: the history begins at 99", "reset", "begin", "chunk", "end 120"},
			"own 0@5/41#141",
		},
		{
			"another life of the publisher", loaded(ContractOwn, 41),
			[]*relayv1.SubscribeResponse{ownReset(6, WhyRestarted, 0), ownBatch(6, 0)},
			[]string{"connected", "cold: " + WhyRestarted, "reset", "batch 0"},
			"own 0@5/41#141",
		},
		{
			"told whole", loaded(ContractOwn, 41), ownChunks(6, 50, ownStore(1, 3, 0)),
			[]string{"connected", "cold: the server told", "begin", "chunk", "end 50"},
			"own 0@5/41#141",
		},
		{
			"of another contract", loaded(ContractVLLM, 41),
			[]*relayv1.SubscribeResponse{ownBatch(5, 0, ownStore(6, 1, 0))},
			[]string{"connected", "cold: it was told under vllm", "reset", "batch 0"},
			"own",
		},
		{
			"it lacks batches",
			Cursor{Contract: ContractOwn, Epoch: 5, Sequence: 41, Check: 141, Missing: "batches 3 to 4 lost"},
			[]*relayv1.SubscribeResponse{ownBatch(5, 42)},
			[]string{"connected", "goes on", "batch 42"},
			"own 0@5/41#0",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := startFake(t, &fake{own: func(_ int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error { return hold(s, tc.say...) }})
			c, recs := subscribe(t, f, Config{Start: map[uint32]Cursor{0: tc.cur}})
			lines := recs[0].untilTold(t, tc.want[len(tc.want)-1])
			wantSteps(t, lines, tc.want...)
			if got := f.log(); !slices.Equal(got, []string{tc.asks}) {
				t.Errorf("subscribed with %q, want %q", got, tc.asks)
			}
			if st := c.Rank(0); (st.Resumed == 1) != slices.Contains(tc.want, "goes on") {
				t.Errorf("status is %+v", st)
			}
			if tc.cur.Missing != "" {
				if _, _, _, now := recs[0].snapshot(); now.Exact || now.Why != tc.cur.Missing {
					t.Errorf("stands %+v, want %q", now, tc.cur.Missing)
				}
			}
		})
	}
}

// TestOwnStartSilent: a relay that is as far as the content says so by Describe and
// its standing alone.
func TestOwnStartSilent(t *testing.T) {
	f := startFake(t, &fake{
		own: func(_ int, _ *relayv1.SubscribeRequest, s grpc.ServerStream) error {
			return hold(s, ownStanding(true, true, ""))
		},
		describe: &relayv1.DescribeResponse{Engines: []*relayv1.Engine{{Ranks: []*relayv1.Rank{
			{Epoch: 9, Any: true, Sequence: 41, Check: 141},
		}}}},
	})
	c, recs := subscribe(t, f, Config{Start: map[uint32]Cursor{0: loaded(ContractOwn, 41)}})
	lines := recs[0].untilTold(t, "exact")
	wantSteps(t, lines, "connected", "goes on")
	c.Hold(0, func(cur Cursor, has bool) {
		if !has || cur.Sequence != 41 || cur.Check != 141 {
			t.Errorf("stands at %+v, %v", cur, has)
		}
	})
}

// TestPeerStart: the last batch of a content is asked for again, and proves it, or
// all is told anew.
func TestPeerStart(t *testing.T) {
	batch := func(seq uint64) *common.KvEventBatch { return peerBatch(seq, peerStore(10+seq, 1, 0)) }
	for _, tc := range []struct {
		name  string
		cur   Cursor
		say   map[int][]*common.KvEventBatch // by where it was asked to begin
		want  []string
		asks  []string
		exact bool
	}{
		{
			"goes on", loaded(ContractVLLM, 7, peerStore(17, 1, 0)),
			map[int][]*common.KvEventBatch{6: {batch(7), batch(8)}},
			[]string{"connected", "goes on", "batch 8"},
			[]string{"vllm 6"},
			true,
		},
		{
			"from the number asked for", loaded(ContractVLLM, 7, peerStore(17, 1, 0)),
			map[int][]*common.KvEventBatch{6: {batch(6), batch(7), batch(8)}},
			[]string{"connected", "goes on", "batch 8"},
			[]string{"vllm 6"},
			true,
		},
		{
			"another life, further", loaded(ContractVLLM, 7, peerStore(17, 1, 0)),
			map[int][]*common.KvEventBatch{6: {peerBatch(7, peerStore(99, 1, 0)), batch(8)}, 0: {peerChunk(0, 1, 9, peerClear(), peerStore(5, 1, 0))}},
			[]string{"connected", "disconnected", "connected", "cold: the publisher has begun another life", "begin", "chunk", "end 9"},
			[]string{"vllm 6", "vllm 0"},
			true,
		},
		{
			"another life, younger", loaded(ContractVLLM, 7, peerStore(17, 1, 0)),
			map[int][]*common.KvEventBatch{6: nil, 0: {batch(0), batch(1)}},
			[]string{"disconnected: OutOfRange", "connected", "cold: OutOfRange", "reset", "batch 0", "batch 1"},
			[]string{"vllm 6", "vllm 0"},
			true,
		},
		{
			"the proof left out", loaded(ContractVLLM, 7, peerStore(17, 1, 0)),
			map[int][]*common.KvEventBatch{6: {batch(8)}, 0: {batch(0), batch(1)}},
			[]string{"connected", "disconnected", "connected", "cold: the server told batch 8 without batch 7", "reset", "batch 0", "batch 1"},
			[]string{"vllm 6", "vllm 0"},
			true,
		},
		{
			"silence", loaded(ContractVLLM, 7, peerStore(17, 1, 0)),
			map[int][]*common.KvEventBatch{6: {heartbeat(7, 1)}, 0: {batch(0), batch(1)}},
			[]string{"connected", "disconnected", "connected", "cold: the server did not tell", "reset", "batch 0", "batch 1"},
			[]string{"vllm 6", "vllm 0"},
			true,
		},
		{
			"no check",
			Cursor{Contract: ContractVLLM, Sequence: 7, Memory: normal.New(normal.Config{BlockSize: 4}).AppendMemory(nil)},
			map[int][]*common.KvEventBatch{0: {batch(0), batch(1)}},
			[]string{"connected", "cold: nothing is known of batch 7", "reset", "batch 0", "batch 1"},
			[]string{"vllm 0"},
			true,
		},
		{
			"no memory",
			Cursor{Contract: ContractVLLM, Sequence: 7, Check: 5},
			map[int][]*common.KvEventBatch{0: {batch(0), batch(1)}},
			[]string{"connected", "cold: a normaliser's memory", "reset", "batch 0", "batch 1"},
			[]string{"vllm 0"},
			true,
		},
		{
			"the first batch alone", loaded(ContractVLLM, 0, peerStore(10, 1, 0)),
			map[int][]*common.KvEventBatch{0: {batch(0), batch(1)}},
			[]string{"connected", "goes on", "batch 1"},
			[]string{"vllm 0"},
			true,
		},
		{
			"the first batch of another life", loaded(ContractVLLM, 0, peerStore(99, 1, 0)),
			map[int][]*common.KvEventBatch{0: {batch(0), batch(1)}},
			[]string{"connected", "cold: the publisher restarted", "reset", "batch 0", "batch 1"},
			[]string{"vllm 0"},
			true,
		},
		{
			"of another contract", loaded(ContractOwn, 7),
			map[int][]*common.KvEventBatch{0: {batch(0), batch(1)}},
			[]string{"connected", "cold: it was told under kindex", "reset", "batch 0", "batch 1"},
			[]string{"vllm 0"},
			true,
		},
		{
			"of another contract, begun late", loaded(ContractOwn, 7),
			map[int][]*common.KvEventBatch{0: {batch(8), batch(9)}},
			[]string{"connected", "disconnected", "connected", "cold: it was told under kindex", "reset", "batch 8", "batch 9"},
			[]string{"vllm 0", "vllm 0"},
			false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := startFake(t, &fake{vllm: func(_ int, req *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
				say := tc.say[int(req.GetStartSequenceNumber())]
				if say == nil {
					return status.Error(codes.OutOfRange, "beyond the newest")
				}
				return hold(s, say...)
			}})
			_, recs := subscribe(t, f, Config{BlockSize: 4, Start: map[uint32]Cursor{0: tc.cur}})
			recs[0].untilTold(t, tc.want[len(tc.want)-1])
			lines := recs[0].until(t, "its standing", func(l []string) bool {
				return told(l, "exact") > 0 || told(l, "inexact: batches before") > 0
			})
			wantSteps(t, lines, tc.want...)
			if got := f.log(); !slices.Equal(got, tc.asks) {
				t.Errorf("subscribed with %q, want %q", got, tc.asks)
			}
			if got := told(lines, "exact") > 0; got != tc.exact {
				t.Errorf("exact is %v, want %v:\n%s", got, tc.exact, strings.Join(lines, "\n"))
			}
			known := slices.IndexFunc(lines, func(l string) bool { return l == "goes on" || strings.HasPrefix(l, "cold") })
			if i := slices.Index(lines, "exact"); i >= 0 && i < known {
				t.Errorf("exact too early:\n%s", strings.Join(lines, "\n"))
			}
		})
	}
}

// TestPeerStartRanks: the contract has a cursor for rank 0 alone, so that with others
// all are told from the beginning.
func TestPeerStartRanks(t *testing.T) {
	f := startFake(t, &fake{vllm: func(_ int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		return hold(s, peerBatch(0, peerStore(1, 1, 0)), ofRank(1, peerBatch(0, peerStore(2, 1, 0))))
	}})
	_, recs := subscribe(t, f, Config{Start: map[uint32]Cursor{
		0: loaded(ContractVLLM, 7, peerStore(17, 1, 0)), 1: loaded(ContractVLLM, 7, peerStore(17, 1, 0)),
	}}, 0, 1)
	wantSteps(t, recs[1].untilTold(t, "batch 0"), "connected", "cold: the server can be asked", "reset", "batch 0")
	wantSteps(t, recs[0].untilTold(t, "batch 0"), "connected", "cold: the publisher restarted", "reset", "batch 0")
	if got := f.log(); !slices.Equal(got, []string{"vllm 0"}) {
		t.Errorf("subscribed with %q", got)
	}
}

// TestCursorEncoding: what was appended is read; what was cut, or is another thing, is
// refused.
func TestCursorEncoding(t *testing.T) {
	for _, c := range []Cursor{
		{Contract: ContractOwn, Epoch: 1 << 63, Sequence: 7, Check: 9, Missing: "lost", Mismatch: 32},
		{Contract: ContractSGLang, Memory: []byte("memory")},
	} {
		b := c.Append(nil)
		got, err := ParseCursor(b)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(c) {
			t.Errorf("got %+v, %v, want %+v", got, err, c)
		}
		for cut := range len(b) - len(c.Memory) {
			if _, err := ParseCursor(b[:cut]); err == nil {
				t.Errorf("cut at %d of %d: no error", cut, len(b))
			}
		}
		for _, at := range []int{0, 1} {
			bad := slices.Clone(b)
			bad[at] = 99
			if _, err := ParseCursor(bad); err == nil {
				t.Errorf("byte %d changed: no error", at)
			}
		}
	}
	long := Cursor{Contract: ContractOwn, Missing: strings.Repeat("é", 2*maxMissing)}
	if got, err := ParseCursor(long.Append(nil)); err != nil || len(got.Missing) > maxMissing || len(got.Missing) < maxMissing-2 {
		t.Errorf("a long reason: %d bytes, %v", len(got.Missing), err)
	}
}
