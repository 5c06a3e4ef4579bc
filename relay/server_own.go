// SPDX-License-Identifier: Apache-2.0

// Before: subscribers of the relay's own contract. After: Subscription.

package relay

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	relayv1 "kindex/proto/kindex/relay/v1"
)

// Field numbers of kindex.relay.v1 that are written by hand.
const (
	responseRank     = 1
	responseEpoch    = 2
	responseBatch    = 3
	responseSnapshot = 4
	responseLoad     = 15

	ownBatchPeer = 5
	ownChunkPeer = 9
)

// ownService serves kindex.relay.v1.
type ownService struct {
	relayv1.UnimplementedRelayServiceServer
	server *server
}

// find returns the engine of that name, or the listener's own.
func (o *ownService) find(name string) (*served, error) {
	if name == "" {
		return o.server.own, nil
	}
	e := o.server.o.byName(name)
	if e == nil {
		return nil, describeEngine(name)
	}
	return e, nil
}

// Describe implements relayv1.RelayServiceServer.
func (o *ownService) Describe(_ context.Context, req *relayv1.DescribeRequest) (*relayv1.DescribeResponse, error) {
	engines := o.server.o.all()
	if req.GetEngine() != "" {
		e, err := o.find(req.GetEngine())
		if err != nil {
			return nil, err
		}
		engines = []*served{e}
	}
	reply := &relayv1.DescribeResponse{}
	for _, e := range engines {
		reply.Engines = append(reply.Engines, describe(e, time.Now()))
		reply.HashTokens = reply.HashTokens || e.engine.HashTokens()
	}
	return reply, nil
}

func describe(e *served, now time.Time) *relayv1.Engine {
	d := &relayv1.Engine{Name: e.engine.Name(), Kind: e.engine.Kind(), Listen: e.listen}
	for _, r := range e.engine.Ranks() {
		st := r.Info()
		d.Ranks = append(d.Ranks, &relayv1.Rank{
			Rank: uint32(st.Rank), Epoch: st.Epoch,
			Any: st.Has, Sequence: st.Sequence, Check: st.Check,
			Oldest: st.Oldest, LiveBlocks: st.LiveBlocks, BlockSize: uint32(st.BlockSize),
			Standing: standingOf(st.Standing, st.Has, st.Sequence, age(st.LastBatch, now)),
		})
	}
	return d
}

func standingOf(s Standing, told bool, last uint64, age time.Duration) *relayv1.Standing {
	return &relayv1.Standing{
		Primed: s.Primed, Exact: s.Exact, Why: s.Why,
		Any: told, Sequence: last, AgeMs: uint64(age.Milliseconds()),
	}
}

// age returns how long ago t was; 0 where it never was.
func age(t, now time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return max(now.Sub(t), 0)
}

// Subscribe implements relayv1.RelayServiceServer.
func (o *ownService) Subscribe(req *relayv1.SubscribeRequest, stream grpc.ServerStreamingServer[relayv1.SubscribeResponse]) error {
	s := o.server
	e, err := o.find(req.GetEngine())
	if err != nil {
		return err
	}
	want, err := ownRequest(req, len(e.engine.Ranks()))
	if err != nil {
		return err
	}
	if want.Form == FormPeer && e.engine.HashTokens() {
		return status.Error(codes.FailedPrecondition, "token_ids: this relay keeps token ids on its host (hash-tokens), leave it out and take content hashes")
	}
	leave, err := s.subscriptionRoom(e, contractOwn)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := s.subscriptionContext(stream)
	defer cancel()
	sub, err := e.engine.Subscribe(want)
	if err != nil {
		return s.ended(ctx, e, contractOwn, err)
	}
	defer sub.Close()
	if err := stream.SendHeader(nil); err != nil {
		return s.ended(ctx, e, contractOwn, err)
	}
	out := sink{stream, e, contractOwn}
	for {
		item, err := sub.Next(ctx)
		if err == nil {
			err = out.own(item, want.Form)
		}
		if err != nil {
			return s.ended(ctx, e, contractOwn, err)
		}
	}
}

// ownRequest reads a request for an engine of so many ranks.
func ownRequest(req *relayv1.SubscribeRequest, ranks int) (SubscribeRequest, error) {
	want := SubscribeRequest{Form: FormOwn, Rules: RulesOwn, LoadFirst: true}
	if req.GetTokenIds() {
		want.Form = FormPeer
	}
	if len(req.GetCursors()) > ranks {
		return want, status.Errorf(codes.InvalidArgument, "cursors: %d of them, the engine has %d ranks", len(req.GetCursors()), ranks)
	}
	if len(req.GetRanks()) > ranks {
		return want, status.Errorf(codes.InvalidArgument, "ranks: %d of them, the engine has %d", len(req.GetRanks()), ranks)
	}
	seen := make([]bool, ranks)
	for _, c := range req.GetCursors() {
		if int64(c.GetRank()) >= int64(ranks) {
			return want, status.Errorf(codes.InvalidArgument, "cursors: rank %d, the engine has ranks 0 to %d", c.GetRank(), ranks-1)
		}
		if seen[c.GetRank()] {
			return want, status.Errorf(codes.InvalidArgument, "cursors: rank %d is given twice", c.GetRank())
		}
		seen[c.GetRank()] = true
		want.Cursors = append(want.Cursors, Cursor{Rank: int(c.GetRank()), Epoch: c.GetEpoch(), Sequence: c.GetSequence(), Check: c.GetCheck()})
	}
	clear(seen)
	for _, r := range req.GetRanks() {
		if int64(r) >= int64(ranks) {
			return want, status.Errorf(codes.InvalidArgument, "ranks: %d, the engine has ranks 0 to %d", r, ranks-1)
		}
		if seen[r] {
			return want, status.Errorf(codes.InvalidArgument, "ranks: rank %d is given twice", r)
		}
		seen[r] = true
		want.Ranks = append(want.Ranks, int(r))
	}
	return want, nil
}

// own writes an item as kindex.relay.v1.SubscribeResponse.
func (k sink) own(it *Item, form Form) error {
	var room [64]byte
	start := appendResponse(room[:0], it)
	switch it.Kind {
	case ItemBatches:
		for i := range it.Batches {
			b := &it.Batches[i]
			var inner []byte
			if form == FormPeer {
				inner = appendTokenBatch(nil, b)
			}
			if err := k.send(joined(appendHead(start, responseBatch, inner, len(b.Body)), b.Body, responseLoad, it.Load)); err != nil {
				return err
			}
		}
		return nil
	case ItemChunk:
		k.chunk(&it.Chunk)
		var inner []byte
		if form == FormPeer {
			inner = appendTokenChunk(nil, &it.Chunk)
		}
		return k.send(joined(appendHead(start, responseSnapshot, inner, len(it.Chunk.Body)), it.Chunk.Body, responseLoad, it.Load))
	case ItemLoad:
		return k.send(joined(start, nil, responseLoad, it.Load))
	case ItemHole:
		return k.told(it, &relayv1.SubscribeResponse{Body: &relayv1.SubscribeResponse_Hole{
			Hole: &relayv1.Hole{From: it.Hole.From, To: it.Hole.To, Why: it.Hole.Why},
		}})
	case ItemReset:
		return k.told(it, &relayv1.SubscribeResponse{Body: &relayv1.SubscribeResponse_Reset_{
			Reset_: &relayv1.Reset{Why: it.Why, Any: it.Any, Newest: it.Newest},
		}})
	case ItemStanding:
		last := k.e.engine.Ranks()[it.Rank].Info().LastBatch
		return k.told(it, &relayv1.SubscribeResponse{Body: &relayv1.SubscribeResponse_Standing{
			Standing: standingOf(it.Standing, it.Told, it.LastSequence, age(last, time.Now())),
		}})
	}
	return nil
}

// told writes an item that is rare and small.
func (k sink) told(it *Item, m *relayv1.SubscribeResponse) error {
	m.Rank, m.Epoch = uint32(it.Rank), it.Epoch
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return k.send(rawMessage{mem.SliceBuffer(appendField(b, responseLoad, it.Load))})
}

// appendResponse appends the fields that every response begins with.
func appendResponse(b []byte, it *Item) []byte {
	if it.Rank != 0 {
		b = appendVarint(b, responseRank, uint64(it.Rank))
	}
	if it.Epoch != 0 {
		b = appendFixed64(b, responseEpoch, it.Epoch)
	}
	return b
}

// appendHead appends the beginning of a field of inner and of so many bytes that
// follow. start's spare room is written to, so that one response's head must be
// used before the next is made.
func appendHead(start []byte, field protowire.Number, inner []byte, follow int) []byte {
	b := protowire.AppendTag(start, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(inner)+follow))
	return append(b, inner...)
}

// appendTokenBatch appends a kindex.relay.v1.Batch up to the bytes of its field
// peer.
func appendTokenBatch(b []byte, batch *Batch) []byte {
	b = appendOwnBatch(b, batch.Sequence, batch.Check, batch.Timestamp)
	b = protowire.AppendTag(b, ownBatchPeer, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(len(batch.Body)))
}

// appendTokenChunk appends a kindex.relay.v1.SnapshotChunk up to the bytes of its
// field peer.
func appendTokenChunk(b []byte, c *Chunk) []byte {
	m := &relayv1.SnapshotChunk{
		Index: c.Index, Count: c.Count, Blocks: c.Blocks, UnknownBefore: c.UnknownBefore,
		Any: true, Through: c.Through, Check: c.Check, Digest: c.Digest,
	}
	// Numbers only: it cannot fail.
	b, _ = proto.MarshalOptions{}.MarshalAppend(b, m)
	b = protowire.AppendTag(b, ownChunkPeer, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(len(c.Body)))
}
