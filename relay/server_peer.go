// SPDX-License-Identifier: Apache-2.0

// Before: gateways that speak the peer's contract. After: Subscription.

package relay

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/proto/peer/common"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// batchLoad is the field number of load in smg.grpc.common.KvEventBatch.
const batchLoad = 8

// errTokensStay answers who asks a relay that hashes tokens for token ids.
var errTokensStay = status.Error(codes.FailedPrecondition,
	"this relay keeps token ids on its host (hash-tokens): SubscribeKvEvents carries them; subscribe to kindex.relay.v1.RelayService, which carries content hashes")

// peerService returns the service of engines of that kind.
func peerService(kind string) *grpc.ServiceDesc {
	if kind == "sglang" {
		return &sglang.SglangScheduler_ServiceDesc
	}
	return &vllm.VllmEngine_ServiceDesc
}

// registerPeer registers those RPCs of the engine's service that the relay serves
// itself. All others of the service are unknown to the server, so that they reach
// the handler of what is unknown.
func (s *server) registerPeer() {
	service := peerService(s.own.engine.Kind())
	desc := grpc.ServiceDesc{
		ServiceName: service.ServiceName, Metadata: service.Metadata,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName:    "SubscribeKvEvents",
			ServerStreams: true,
			Handler:       func(_ any, stream grpc.ServerStream) error { return s.subscribePeer(stream) },
		}},
	}
	loads := grpc.MethodDesc{MethodName: "GetLoads"}
	switch s.own.engine.Kind() {
	case "sglang":
		loads.Handler = unaryHandler("/"+desc.ServiceName+"/GetLoads", s.sglangLoads)
	default:
		loads.Handler = unaryHandler("/"+desc.ServiceName+"/GetLoads", s.vllmLoads)
	}
	if !s.own.passLoads {
		desc.Methods = append(desc.Methods, loads)
	}
	s.grpc.RegisterService(&desc, s)
}

// unaryHandler is what generated code does for one unary RPC.
func unaryHandler[Req, Reply any](method string, serve func(context.Context, *Req) (*Reply, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		in := new(Req)
		if err := dec(in); err != nil {
			return nil, err
		}
		next := func(ctx context.Context, req any) (any, error) {
			in, ok := req.(*Req)
			if !ok {
				return nil, status.Errorf(codes.Internal, "a request of type %T", req)
			}
			return serve(ctx, in)
		}
		if intercept == nil {
			return next(ctx, in)
		}
		return intercept(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: method}, next)
	}
}

// subscribePeer serves one SubscribeKvEvents.
func (s *server) subscribePeer(stream grpc.ServerStream) error {
	var req common.SubscribeKvEventsRequest
	if err := stream.RecvMsg(&req); err != nil {
		return err
	}
	e := s.own
	if e.engine.HashTokens() {
		return errTokensStay
	}
	leave, err := s.subscriptionRoom(e, contractPeer)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := s.subscriptionContext(stream)
	defer cancel()
	want := SubscribeRequest{Form: FormPeer, Rules: RulesPeer, LoadFirst: req.GetLoadRecordsBeforeFirstBatch()}
	// Where the relay is a whole worker, those who subscribe are gateways.
	want.Pooled = e.pass != nil
	if seq := req.GetStartSequenceNumber(); seq != 0 {
		want.Cursors = []Cursor{{Rank: 0, Sequence: seq}}
	}
	sub, err := e.engine.Subscribe(want)
	if err != nil {
		return s.ended(ctx, e, contractPeer, err)
	}
	defer sub.Close()
	// A caller may wait for the header with a deadline; the first batch may be
	// hours away.
	if err := stream.SendHeader(nil); err != nil {
		return s.ended(ctx, e, contractPeer, err)
	}
	out := sink{stream, e, contractPeer}
	for {
		item, err := sub.Next(ctx)
		if err == nil {
			err = out.peer(item)
		}
		if err != nil {
			return s.ended(ctx, e, contractPeer, err)
		}
	}
}

// sink writes one subscription's messages.
type sink struct {
	stream grpc.ServerStream
	e      *served
	c      contract
}

func (k sink) send(m rawMessage) error {
	n := 0
	for _, b := range m {
		n += b.Len()
	}
	if err := k.stream.SendMsg(m); err != nil {
		return err
	}
	k.e.stats.messages[k.c].Add(1)
	k.e.stats.bytes[k.c].Add(uint64(n))
	return nil
}

// chunk counts a part of a snapshot.
func (k sink) chunk(c *Chunk) {
	k.e.stats.chunks[k.c].Add(1)
	if c.Index+1 == c.Count {
		k.e.stats.snapshots[k.c].Add(1)
	}
}

// peer writes an item as smg.grpc.common.KvEventBatch.
func (k sink) peer(it *Item) error {
	switch it.Kind {
	case ItemBatches:
		for i := range it.Batches {
			if err := k.send(joined(nil, it.Batches[i].Body, batchLoad, it.Load)); err != nil {
				return err
			}
		}
	case ItemChunk:
		k.chunk(&it.Chunk)
		return k.send(joined(it.Chunk.Head, it.Chunk.Body, batchLoad, it.Load))
	case ItemLoad:
		return k.send(joined(loadOnly(it.Rank, it.LastSequence, time.Now()), nil, batchLoad, it.Load))
	case ItemHole, ItemReset, ItemStanding:
		// Not told under these rules.
	}
	return nil
}

// loadOnly returns the batch that carries nothing but a load record.
func loadOnly(rank int, last uint64, now time.Time) []byte {
	return appendPeerBatch(make([]byte, 0, 32), last, float64(now.UnixNano())/1e9, rank)
}
