// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	kindexv1 "kindex/proto/kindex/v1"
)

// rawCodec sends and takes bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("a message of type %T", v)
	}
	return *b, nil
}

func (rawCodec) Unmarshal(b []byte, v any) error {
	p, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("a message of type %T", v)
	}
	*p = slices.Clone(b)
	return nil
}

func (rawCodec) Name() string { return "proto" }

// callRaw sends messages to a method and returns all that comes back, how it ended
// included.
func (r *secretRig) callRaw(method string, messages ...[]byte) (replies [][]byte, end error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	if method == kindexv1.WorkersService_WatchWorkers_FullMethodName || method == kindexv1.WorkersService_WatchLoads_FullMethodName {
		ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond) // it does not end by itself
		defer cancel()
	}
	s, err := dialRPC(r.t, r.Host).conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodec(rawCodec{}))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, m := range messages {
		_ = s.SendMsg(&m) // how it ends is told by what comes back
	}
	_ = s.CloseSend()
	for {
		var reply []byte
		if err := s.RecvMsg(&reply); err != nil {
			fmt.Fprintf(&r.answers, "%s: %v %v\n", method, err, s.Trailer())
			return replies, err
		}
		r.answers.Write(append(reply, '\n'))
		replies = append(replies, reply)
	}
}

func (r *secretRig) message(m proto.Message) []byte {
	r.t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// sendCalls asks over gRPC, well and badly.
func (r *secretRig) sendCalls() {
	chain, fresh := secretTokens(testBlock, 4*testBlock), r.fresh(2)
	raw := make([]byte, 0, 4*len(fresh))
	for _, t := range fresh {
		raw = binary.LittleEndian.AppendUint32(raw, t)
	}
	good := []*kindexv1.Query{
		{ModelName: "m", TokenIds: chain},
		{ModelName: "m", TokenIds: fresh, LoraName: "adapter", CacheSalt: "s", Limit: 1},
		{ModelName: "m", TokenIds: fresh, Instances: &kindexv1.Instances{Ids: []string{"1", fmt.Sprint("other-", 7)}}},
	}
	bad := []*kindexv1.Query{
		{TokenIds: fresh},
		{ModelName: "zz", TokenIds: fresh},
		{ModelName: "m", TokenIds: fresh, BlockHashes: []uint64{1}},
		{ModelName: "m", TokenIds: fresh, ExtraKeys: [][]byte{raw, raw}},
		{ModelName: "m", TokenIds: fresh, ExtraKeys: [][]byte{nil, nil, nil, nil, raw}},
	}
	var streamed [][]byte
	ask := func(q *kindexv1.Query, well bool) {
		replies, end := r.callRaw(kindexv1.IndexService_Lookup_FullMethodName, r.message(&kindexv1.LookupRequest{Query: q}))
		if (len(replies) == 1) != well || well && end != io.EOF {
			r.t.Errorf("a lookup: %d replies, %v, want it answered: %v", len(replies), end, well)
		}
		r.callRaw(kindexv1.ExplainService_Explain_FullMethodName, r.message(&kindexv1.ExplainRequest{Query: q}))
		streamed = append(streamed, r.message(&kindexv1.LookupStreamRequest{Id: uint64(len(streamed)), Query: q}))
	}
	for _, q := range good {
		ask(q, true)
	}
	for _, q := range bad {
		ask(q, false)
	}
	if replies, end := r.callRaw(kindexv1.IndexService_LookupStream_FullMethodName, streamed...); len(replies) != len(streamed) || end != io.EOF {
		r.t.Errorf("a stream of lookups: %d replies, %v", len(replies), end)
	}
	whole := r.message(&kindexv1.LookupRequest{Query: good[1]})
	for _, garbage := range [][]byte{raw, whole[:len(whole)-5], append([]byte{0x32, 0x07}, raw[:7]...), append([]byte{0x0a, byte(len(raw))}, raw...)} {
		for method := range rpcAccess {
			r.callRaw(method, garbage)
		}
	}
}

// readCalls asks for all that gRPC gives out.
func (r *secretRig) readCalls(out map[string][]byte) {
	r.t.Helper()
	for method, m := range map[string]proto.Message{
		kindexv1.WorkersService_ListWorkers_FullMethodName:  &kindexv1.ListWorkersRequest{},
		kindexv1.WorkersService_WatchWorkers_FullMethodName: &kindexv1.WatchWorkersRequest{},
		kindexv1.WorkersService_WatchLoads_FullMethodName:   &kindexv1.WatchLoadsRequest{},
		kindexv1.ContentService_Dump_FullMethodName:         &kindexv1.DumpRequest{},
		kindexv1.ContentService_Digest_FullMethodName:       &kindexv1.DigestRequest{},
		kindexv1.StatsService_GetStats_FullMethodName:       &kindexv1.GetStatsRequest{},
	} {
		replies, _ := r.callRaw(method, r.message(m))
		out[method] = slices.Concat(replies...)
	}
}
