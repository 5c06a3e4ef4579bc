// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/internal/lookuppb"
	kindexv1 "kindex/proto/kindex/v1"
	"kindex/shard"
)

func (h *testHost) openCalls() int64 { return h.rpc.met.open.Load() }

// TestGRPCHugeMessage: a message over the limit is refused, and costs its sender.
func TestGRPCHugeMessage(t *testing.T) {
	h := startTestHost(t, withGRPC(nil))
	h.register(reg("1", "m", ""))
	c := dialRPC(t, h.Host)
	huge := &kindexv1.Query{ModelName: "m", TokenIds: make([]uint32, 3<<20)}
	_, err := c.index.Lookup(t.Context(), &kindexv1.LookupRequest{Query: huge}, grpc.MaxCallSendMsgSize(1<<30))
	wantStatus(t, "12 MiB", err, codes.ResourceExhausted, "grpc: received message larger than max")
	if _, err := c.index.Lookup(t.Context(), &kindexv1.LookupRequest{Query: &kindexv1.Query{ModelName: "m", TokenIds: make([]uint32, 1<<20)}}); err != nil {
		t.Errorf("4 MiB: %v", err)
	}
}

// TestGRPCGarbage: bytes that are no query are refused, alone and in a stream, which
// goes on.
func TestGRPCGarbage(t *testing.T) {
	h := startTestHost(t, withGRPC(nil))
	h.register(reg("1", "m", ""))
	c := dialRPC(t, h.Host)
	codec := grpc.ForceCodecV2(lookuppb.NewCodec())
	for _, b := range [][]byte{{0xff}, {0x0a, 3, 0x0a, 1, 0xff}, {0x0a, 5, 0x32, 3, 1, 2, 3}} {
		err := c.conn.Invoke(t.Context(), kindexv1.IndexService_Lookup_FullMethodName, &lookuppb.Raw{Bytes: b}, &lookuppb.Raw{}, codec)
		wantStatus(t, "garbage", err, codes.InvalidArgument, "message: must be a kindex.v1.LookupRequest")
	}
	s, err := c.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, kindexv1.IndexService_LookupStream_FullMethodName, codec)
	if err != nil {
		t.Fatal(err)
	}
	var reply lookuppb.Raw
	var r lookuppb.Response
	var names lookuppb.Names
	for i, b := range [][]byte{{0x08, 7, 0xff}, lookuppb.AppendStreamRequest(nil, 8, &lookup.Query{Model: "m"})} {
		if err := s.SendMsg(&lookuppb.Raw{Bytes: b}); err != nil {
			t.Fatal(err)
		}
		if err := s.RecvMsg(&reply); err != nil {
			t.Fatal(err)
		}
		if err := r.DecodeStream(reply.Bytes, &names); err != nil || r.ID != uint64(7+i) || r.Refused != (i == 0) {
			t.Errorf("reply %d: %+v, %v", i, r, err)
		}
	}
}

// TestGRPCCanceled: a lookup that its caller ended is counted as that, and as no fault.
func TestGRPCCanceled(t *testing.T) {
	h := startTestHost(t, withGRPC(nil))
	h.register(reg("1", "m", ""))
	c := newRPCCall(h.rpc)
	c.in.Bytes = lookuppb.AppendRequest(nil, &lookup.Query{Model: "m"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.rpc.lookup(ctx, c); status.Code(err) != codes.Canceled {
		t.Errorf("ended with %v", err)
	}
	for i, result := range results {
		want := uint64(0)
		if result == "canceled" {
			want = 1
		}
		if got := h.rpc.met.lookups[i].Load(); got != want {
			t.Errorf("%d counted as %s, want %d", got, result, want)
		}
	}
}

// TestGRPCStall: a client that reads nothing is not read from, and is let go.
func TestGRPCStall(t *testing.T) {
	h := startTestHost(t, withGRPC(func(c *Config) { c.WriteStallTimeout = 300 * time.Millisecond }))
	h.register(reg("1", "m", ""))
	h.put(h.rank("m", "", "1", 0), kv.TierDevice, "", "", 1, tokens(1, 40), nil)
	c := dialRPC(t, h.Host)
	s, err := c.index.LookupStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := &kindexv1.LookupStreamRequest{Id: 1, Query: &kindexv1.Query{ModelName: "m", TokenIds: tokens(1, 40)}}
	var sent atomic.Int64
	go func() { // blocked, for nobody reads it, until the stream is gone
		for s.Send(m) == nil {
			sent.Add(1)
		}
	}()
	waitFor(t, "its end", func() bool { return h.rpc.met.stalled.Load() == 1 && h.openCalls() == 0 })
	read := int64(0)
	for ; err == nil; read++ { // what was on the way
		_, err = s.Recv()
	}
	wantStatus(t, "a client that took nothing", err, codes.Unavailable, "the client takes nothing of its answers")
	if read < 100 || read > sent.Load()+1 {
		t.Errorf("%d answers of %d lookups", read, sent.Load())
	}
}

// TestGRPCManyStreams: a thousand streams are as many as are allowed; more are
// refused, and all are gone with their clients.
func TestGRPCManyStreams(t *testing.T) {
	h := startTestHost(t, withGRPC(func(c *Config) { c.GRPCStreams, c.GRPCCalls = 200, 250 }))
	h.register(reg("1", "m", ""))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1000)
	var clients []*rpcClient
	for range 10 {
		clients = append(clients, dialRPC(t, h.Host))
	}
	for i := range 1000 {
		go func() {
			s, err := clients[i%len(clients)].index.LookupStream(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			ended <- err
		}()
	}
	waitFor(t, "as many as are allowed", func() bool { return h.openCalls() >= 250 })
	refused := 0
	for range 500 {
		if err := <-ended; status.Code(err) == codes.Unavailable && strings.HasPrefix(status.Convert(err).Message(), "busy: ") {
			refused++
		} else {
			t.Fatalf("ended with %v", err)
		}
	}
	if _, err := clients[0].health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("health: %v", err)
	}
	cancel()
	waitFor(t, "all streams' ends", func() bool { return h.openCalls() == 0 })
	if _, err := clients[0].index.Lookup(t.Context(), &kindexv1.LookupRequest{Query: &kindexv1.Query{ModelName: "m"}}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// faultyIndex meets a fault in each lookup.
type faultyIndex struct{ shard.Index }

func (faultyIndex) Lookup(kv.Namespace, []kv.ContentHash, []kv.Match) []kv.Match { panic("a fault") }

// TestGRPCPanic: a fault costs the call that meets it.
func TestGRPCPanic(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Listen, cfg.GRPCListen = "127.0.0.1:0", "127.0.0.1:0"
	src := &fakeSource{}
	host, err := newHost(cfg, src, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	host.idx.idx = faultyIndex{host.idx.idx}
	h := serveTestHost(t, host, src)
	h.register(reg("1", "m", ""))
	c := dialRPC(t, h.Host)
	q := &kindexv1.Query{ModelName: "m", TokenIds: tokens(1, 4)}
	_, err = c.index.Lookup(t.Context(), &kindexv1.LookupRequest{Query: q})
	wantStatus(t, "a call", err, codes.Internal, "internal error: this host's log has it")
	s, err := c.index.LookupStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&kindexv1.LookupStreamRequest{Id: 1, Query: q}); err != nil {
		t.Fatal(err)
	}
	_, err = s.Recv()
	wantStatus(t, "a stream", err, codes.Internal, "internal error: this host's log has it")
	if got := h.rpc.met.panics.Load(); got != 2 {
		t.Errorf("%d panics counted, want 2", got)
	}
	if _, err := c.workers.ListWorkers(t.Context(), &kindexv1.ListWorkersRequest{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestGRPCDrain: what waits is told and ends.
func TestGRPCDrain(t *testing.T) {
	h := startTestHost(t, withGRPC(nil))
	h.register(reg("1", "m", ""))
	c := dialRPC(t, h.Host)
	s, err := c.index.LookupStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&kindexv1.LookupStreamRequest{Id: 1, Query: &kindexv1.Query{ModelName: "m"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	w, err := c.workers.WatchWorkers(t.Context(), &kindexv1.WatchWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := w.Recv(); err != nil || len(m.GetWorkers()) != 1 {
		t.Fatalf("%v, %v", m, err)
	}
	if err := h.stop(); err != nil {
		t.Fatal(err)
	}
	_, err = s.Recv()
	wantStatus(t, "a stream", err, codes.Unavailable, "this host shuts down")
	m, err := w.Recv()
	wantStatus(t, "a watch", err, codes.Unavailable, "this host shuts down")
	if m != nil {
		t.Errorf("a watch was told %v of the shutdown", m)
	}
}

// FuzzGRPCLookup: whatever comes is answered or refused.
func FuzzGRPCLookup(f *testing.F) {
	f.Add(lookuppb.AppendRequest(nil, &lookup.Query{Model: "m", Tokens: tokens(1, 9), Limit: 3, Only: []string{"1"}}))
	f.Add(lookuppb.AppendRequest(nil, &lookup.Query{Model: "m", Hashes: []kv.ContentHash{1, 2}, Extra: [][]byte{nil, {2, 1, 0, 0, 0, 'x'}}}))
	cfg := DefaultConfig()
	cfg.GRPCListen = "127.0.0.1:0"
	h, err := newHost(cfg, &fakeSource{}, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = h.Close() })
	if err := h.Register(f.Context(), Registration{Instance: NumberID(1), Model: "m", Endpoint: "tcp://127.0.0.1:21001", BlockSize: 4}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newRPCCall(h.rpc)
		c.in.Bytes = b
		if _, err := h.rpc.lookup(t.Context(), c); err != nil {
			if code := status.Code(err); code != codes.InvalidArgument && code != codes.NotFound {
				t.Fatalf("%x: %v", b, err)
			}
			if strings.ContainsAny(status.Convert(err).Message(), "\n\r") {
				t.Fatalf("%x: %q is not one line", b, err)
			}
		}
	})
}
