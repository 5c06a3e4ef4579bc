// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"kindex/internal/kv"
	"kindex/internal/livedigest"
	relayv1 "kindex/proto/kindex/relay/v1"
	"kindex/proto/peer/common"
	"kindex/relay/normal"
	"kindex/shard"
)

// content is what a holder holds: where each engine hash is, and its copies.
type content map[uint64]blockContent

type blockContent struct {
	position uint64
	copies   string
}

// digest computes the digest from scratch.
func (h *holder) digest() (sum uint64) {
	h.walk(func(position uint64, c shard.Copy) {
		sum += livedigest.Copies(c.Engine, position, c.Tier, c.Group, c.Count)
	})
	return sum
}

// holder is one holder of a reference index.
type holder struct {
	t   testing.TB
	idx *shard.Reference
	id  shard.Holder
}

var testModel = kv.MakeModelKey("", "m", "")

func newHolder(t testing.TB, o shard.Options) *holder {
	idx := shard.NewReference(o)
	id, err := idx.AddHolder(testModel)
	if err != nil {
		t.Fatal(err)
	}
	return &holder{t, idx, id}
}

func (h *holder) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// ops applies operations as they came.
func (h *holder) ops(ops []normal.Op) {
	for i := range ops {
		op := &ops[i]
		switch op.Kind {
		case normal.Store:
			h.must(h.idx.Store(h.id, &shard.Store{
				Tier: op.Tier, Group: op.Group, Namespace: testModel.Namespace(op.Seed), Stated: op.Stated,
				Parent: op.Parent, HasParent: op.HasParent, Engines: op.Engines, Contents: op.Contents, Blocks: op.Blocks,
			}))
		case normal.Remove:
			h.must(h.idx.Remove(h.id, &shard.Remove{Tier: op.Tier, Group: op.Group, Engines: op.Engines}))
		case normal.Clear:
			h.must(h.idx.Clear(h.id))
		case normal.Mismatch:
		}
	}
}

func engineHashes(hashes []uint64) []kv.EngineHash {
	out := make([]kv.EngineHash, len(hashes))
	for i, x := range hashes {
		out[i] = kv.EngineHash(x)
	}
	return out
}

// own applies events of the relay's own contract, and to book as well.
func (h *holder) own(events []*relayv1.Event, book *livedigest.Book) {
	h.t.Helper()
	for _, ev := range events {
		switch ev := ev.GetEvent().(type) {
		case *relayv1.Event_Stored:
			st := ev.Stored
			s := &shard.Store{
				Tier: kv.Tier(st.Tier) - 1, Group: uint8(st.Group), Namespace: testModel.Namespace(st.Seed), Stated: true,
				Parent: kv.EngineHash(st.GetParent()), HasParent: st.Parent != nil, Engines: engineHashes(st.Engines),
			}
			for _, c := range st.Contents {
				s.Contents = append(s.Contents, kv.ContentHash(c))
			}
			h.must(h.idx.Store(h.id, s))
			if !book.Store(&livedigest.Store{
				Tier: s.Tier, Group: s.Group, Parent: s.Parent, HasParent: s.HasParent, Seed: st.Seed, Engines: s.Engines, Contents: s.Contents,
			}) {
				h.t.Fatalf("the book refuses %v", st)
			}
		case *relayv1.Event_Removed:
			rm := &shard.Remove{Tier: kv.Tier(ev.Removed.Tier) - 1, Group: uint8(ev.Removed.Group), Engines: engineHashes(ev.Removed.Engines)}
			h.must(h.idx.Remove(h.id, rm))
			if !book.Remove(rm.Tier, rm.Group, rm.Engines) {
				h.t.Fatalf("the book refuses %v", ev.Removed)
			}
		case *relayv1.Event_Cleared:
			h.must(h.idx.Clear(h.id))
			book.Clear()
		default:
			h.t.Fatalf("an event without a body")
		}
	}
	h.complete()
}

// complete checks that every event was complete in itself.
func (h *holder) complete() {
	h.t.Helper()
	st, err := h.idx.HolderStats(h.id)
	h.must(err)
	if st.Orphans != 0 || st.RemoveUnknown != 0 || st.StoreUnknown != 0 || st.Contradictions != 0 {
		h.t.Fatalf("a subscriber needs more than it was told: %+v", st)
	}
}

// peer applies events of the peer's contract.
func (h *holder) peer(events []*common.KvCacheEvent) {
	h.t.Helper()
	for _, ev := range events {
		switch ev := ev.GetData().(type) {
		case *common.KvCacheEvent_Stored:
			h.peerStored(ev.Stored)
		case *common.KvCacheEvent_Removed:
			rm := &shard.Remove{Tier: kv.Tier(ev.Removed.GetTier()) - 1, Group: uint8(ev.Removed.GetGroupIdx())}
			for _, e := range ev.Removed.BlockHashes {
				rm.Engines = append(rm.Engines, kv.EngineHash(e))
			}
			h.must(h.idx.Remove(h.id, rm))
		case *common.KvCacheEvent_Cleared:
			h.must(h.idx.Clear(h.id))
		default:
			h.t.Fatalf("an event without a body")
		}
	}
	h.complete()
}

func (h *holder) peerStored(st *common.KvBlocksStored) {
	h.t.Helper()
	seed := kv.ContentSeed(st.GetLoraName(), st.GetCacheSalt())
	s := &shard.Store{
		Tier: kv.Tier(st.GetTier()) - 1, Group: uint8(st.GetGroupIdx()), Namespace: testModel.Namespace(seed), Stated: true,
		Parent: kv.EngineHash(st.GetParentBlockHash()), HasParent: st.ParentBlockHash != nil,
	}
	for i, b := range st.Blocks {
		if int(b.BlockSize) != len(b.TokenIds) || b.GetCacheLevel() != int32(s.Tier) {
			h.t.Fatalf("a block of %d tokens, level %d in tier %v: %v", len(b.TokenIds), b.GetCacheLevel(), s.Tier, b)
		}
		var extra []byte
		for _, k := range b.ExtraKeys {
			switch k := k.GetKey().(type) {
			case *common.KvBlockExtraKey_Text:
				// Names and salts are the namespace's.
				if k.Text != st.GetLoraName() && (k.Text != st.GetCacheSalt() || i > 0 || s.HasParent) {
					extra = kv.AppendExtraKey(extra, kv.ExtraKey{Kind: kv.ExtraString, ID: k.Text})
				}
			case *common.KvBlockExtraKey_Blob:
				extra = kv.AppendExtraKey(extra, kv.ExtraKey{Kind: kv.ExtraBytes, ID: string(k.Blob)})
			case *common.KvBlockExtraKey_Multimodal:
				extra = kv.AppendExtraKey(extra, kv.ExtraKey{Kind: kv.ExtraItem, ID: k.Multimodal.Identifier, Offset: k.Multimodal.Offset})
			default:
				h.t.Fatalf("an extra key without a body")
			}
		}
		s.Engines = append(s.Engines, kv.EngineHash(b.BlockHash))
		s.Contents = append(s.Contents, kv.HashBlock(seed, b.TokenIds, extra))
	}
	h.must(h.idx.Store(h.id, s))
}

// walk calls fn for each copy with its position's hash.
func (h *holder) walk(fn func(position uint64, c shard.Copy)) {
	positions := map[uint64]uint64{}
	h.must(h.idx.Walk(h.id, func(n *shard.Node) bool {
		up, ok := positions[n.Parent]
		if !ok {
			up = livedigest.Root(testModel.Seed(n.Namespace))
		}
		p := livedigest.Child(up, n.Content)
		positions[n.ID] = p
		for _, c := range n.Copies {
			fn(p, c)
		}
		return true
	}))
}

func (h *holder) content() content {
	type at struct {
		tier  kv.Tier
		group uint8
	}
	places := map[uint64]map[at]uint32{}
	out := content{}
	h.walk(func(position uint64, c shard.Copy) {
		e := uint64(c.Engine)
		out[e] = blockContent{position: position}
		if places[e] == nil {
			places[e] = map[at]uint32{}
		}
		places[e][at{c.Tier, c.Group}] = c.Count
	})
	for e, b := range out {
		keys := slices.SortedFunc(maps.Keys(places[e]), func(a, b at) int {
			return int(placeOf(a.tier, a.group)) - int(placeOf(b.tier, b.group))
		})
		for _, k := range keys {
			b.copies += fmt.Sprintf(" %v/%d:%d", k.tier, k.group, places[e][k])
		}
		out[e] = b
	}
	return out
}

// same fails unless got and want are equal.
func same(t testing.TB, what string, got, want content) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	for e, b := range want {
		if got[e] != b {
			t.Errorf("%s: %x is %v, want %v", what, e, got[e], b)
		}
	}
	for e, b := range got {
		if _, ok := want[e]; !ok {
			t.Errorf("%s: %x is %v, want it gone", what, e, b)
		}
	}
	t.FailNow()
}

// ownEvents decodes a batch's own form.
func ownEvents(t testing.TB, b []byte) []*relayv1.Event {
	t.Helper()
	var batch relayv1.Batch
	if err := proto.Unmarshal(b, &batch); err != nil {
		t.Fatal(err)
	}
	if len(batch.ProtoReflect().GetUnknown()) != 0 {
		t.Fatal("unknown fields in the own form")
	}
	return batch.Events
}

// peerEvents decodes a batch's or chunk's peer form.
func peerEvents(t testing.TB, b []byte) []*common.KvCacheEvent {
	t.Helper()
	var batch common.KvEventBatch
	if err := proto.Unmarshal(b, &batch); err != nil {
		t.Fatal(err)
	}
	if len(batch.ProtoReflect().GetUnknown()) != 0 {
		t.Fatal("unknown fields in the peer's form")
	}
	return batch.Events
}

// checkOwn applies an own snapshot of c and compares.
func checkOwn(t testing.TB, c *Cut, want content, digest uint64) {
	t.Helper()
	h, book := newHolder(t, shard.Options{}), livedigest.Book{}
	chunks := c.Own()
	for i := range chunks.Len() {
		b := chunks.Append(nil, i)
		var chunk relayv1.SnapshotChunk
		if err := proto.Unmarshal(b, &chunk); err != nil {
			t.Fatal(err)
		}
		if i == 0 != (len(chunk.Events) > 0 && chunk.Events[0].GetCleared() != nil) {
			t.Fatalf("chunk %d of %d: a clear where none belongs, or none where one does", i, chunks.Len())
		}
		blocks := 0
		for _, ev := range chunk.Events {
			blocks += len(ev.GetStored().GetEngines()) + len(ev.GetRemoved().GetEngines())
		}
		if blocks > chunkBlocks || len(b) > chunkBytes {
			t.Fatalf("chunk %d has %d blocks in %d bytes", i, blocks, len(b))
		}
		h.own(chunk.Events, &book)
	}
	same(t, "own snapshot", h.content(), want)
	if got := c.Digest(); got != digest || book.Sum() != digest || book.Blocks() != len(want) {
		t.Fatalf("the cut's digest is %x, the book's %x of %d blocks, want %x of %d", got, book.Sum(), book.Blocks(), digest, len(want))
	}
}

// manyNumbers are enough for the chunks of every test.
const manyNumbers = 1 << 20

// checkPeer applies a peer's snapshot of c and compares.
func checkPeer(t testing.TB, c *Cut, through uint64, want content) {
	t.Helper()
	h := newHolder(t, shard.Options{})
	chunks := c.Peer(through)
	if n := chunks.Len(); uint64(n-1) > through {
		t.Fatalf("%d chunks for the numbers up to %d", n, through)
	}
	for i := range chunks.Len() {
		b := chunks.Append(nil, i)
		events := peerEvents(t, b)
		blocks := 0
		for k, ev := range events {
			if ev.EventId != 0 || (ev.GetCleared() != nil) != (i == 0 && k == 0) {
				t.Fatalf("chunk %d event %d is %v", i, k, ev)
			}
			blocks += len(ev.GetStored().GetBlocks()) + len(ev.GetRemoved().GetBlockHashes())
		}
		if through >= manyNumbers && (blocks > chunkBlocks || len(b) > chunkBytes) {
			t.Fatalf("chunk %d has %d blocks in %d bytes", i, blocks, len(b))
		}
		h.peer(events)
	}
	same(t, "peer's snapshot", h.content(), want)
}
