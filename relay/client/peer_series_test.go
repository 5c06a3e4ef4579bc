// SPDX-License-Identifier: Apache-2.0

package client

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/proto/peer/common"
)

// TestPeerSeries: a relay tells the ranks of an engine anew as one snapshot, whose
// chunks are counted over all of them: each rank has its own content and its own end,
// also where one of them is nobody's. Where each rank's chunks are counted from 0, they
// are snapshots of their own.
func TestPeerSeries(t *testing.T) {
	for name, chunks := range map[string][]*common.KvEventBatch{
		"one series": {
			peerChunk(0, 4, 8, peerClear(), peerStore(1, 3, 0)), peerChunk(1, 4, 9, peerStore(4, 2, 3)),
			ofRank(1, peerChunk(2, 4, 5, peerStore(1, 2, 0))), ofRank(2, peerChunk(3, 4, 7, peerStore(1, 1, 0))),
		},
		"one each": {
			peerChunk(0, 2, 8, peerClear(), peerStore(1, 3, 0)), peerChunk(1, 2, 9, peerStore(4, 2, 3)),
			ofRank(1, peerChunk(0, 1, 5, peerClear(), peerStore(1, 2, 0))), ofRank(2, peerChunk(0, 1, 7, peerClear(), peerStore(1, 1, 0))),
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, &fake{vllm: func(_ int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
				return hold(s, append(chunks, peerBatch(10), ofRank(1, peerBatch(6)), ofRank(2, peerBatch(8)))...)
			}})
			_, recs := subscribe(t, f, Config{}, 0, 1) // rank 2 is nobody's
			wantSteps(t, recs[0].until(t, "exact", endsExact), "connected", "begin", "chunk", "chunk", "end 9", "batch 10")
			wantSteps(t, recs[1].until(t, "exact", endsExact), "connected", "begin", "chunk", "end 5", "batch 6")
			for n, want := range map[uint32]int{0: 5, 1: 2} {
				if _, blocks, _, _ := recs[n].snapshot(); blocks != want {
					t.Errorf("rank %d holds %d blocks, want %d", n, blocks, want)
				}
			}
		})
	}
}

// TestPeerTornSeries: what breaks off in the second rank leaves the first one's content,
// and of the second nothing; one that begins in the middle is refused.
func TestPeerTornSeries(t *testing.T) {
	f := startFake(t, &fake{vllm: func(n int, _ *common.SubscribeKvEventsRequest, s grpc.ServerStream) error {
		switch n {
		case 0:
			_ = send(s, peerChunk(0, 3, 8, peerClear(), peerStore(1, 3, 0)), ofRank(1, peerChunk(1, 3, 4, peerStore(1, 2, 0))))
			return status.Error(codes.Unavailable, "going away")
		case 1:
			return hold(s, ofRank(1, peerChunk(2, 3, 5, peerStore(1, 2, 0))))
		}
		return hold(s, peerChunk(0, 2, 8, peerClear(), peerStore(1, 3, 0)), ofRank(1, peerChunk(1, 2, 5, peerStore(1, 2, 0))))
	}})
	c, recs := subscribe(t, f, Config{}, 0, 1)
	wantSteps(t, recs[0].until(t, "exact", endsExact), "connected", "begin", "chunk", "end 8", "disconnected: going",
		"connected", "disconnected: rank 1: chunk 2 of 3 without", "connected", "begin", "chunk", "end 8")
	wantSteps(t, recs[1].until(t, "exact", endsExact), "connected", "begin", "chunk", "reset: the snapshot did not end", "disconnected: going",
		"connected", "disconnected: rank 1: chunk 2 of 3 without", "connected", "begin", "chunk", "end 5")
	if st := c.Rank(1); st.Torn != 1 || st.Snapshots != 1 {
		t.Errorf("rank 1's status is %+v", st)
	}
}
