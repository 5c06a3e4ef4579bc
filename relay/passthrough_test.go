// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"kindex/proto/peer/common"
	"kindex/proto/peer/vllm"
)

// fakeEngine is an engine's own gRPC server.
type fakeEngine struct {
	vllm.UnimplementedVllmEngineServer
	metadata  chan metadata.MD
	deadline  chan time.Time
	cancelled chan struct{}
}

// Generate sends a chunk for each token, and the end.
func (f *fakeEngine) Generate(req *vllm.GenerateRequest, s grpc.ServerStreamingServer[vllm.GenerateResponse]) error {
	if err := s.SendHeader(metadata.Pairs("x-engine", "e1")); err != nil {
		return err
	}
	s.SetTrailer(metadata.Pairs("x-tail", "t1", "x-bin-bin", "\x00\xff"))
	for _, id := range req.GetTokenized().GetInputIds() {
		if err := s.Send(&vllm.GenerateResponse{Response: &vllm.GenerateResponse_Chunk{Chunk: &vllm.GenerateStreamChunk{TokenIds: []uint32{id}}}}); err != nil {
			return err
		}
	}
	if req.GetRequestId() == "forever" {
		<-s.Context().Done()
		close(f.cancelled)
		return s.Context().Err()
	}
	return s.Send(&vllm.GenerateResponse{Response: &vllm.GenerateResponse_Complete{Complete: &vllm.GenerateComplete{FinishReason: "stop"}}})
}

func (f *fakeEngine) HealthCheck(ctx context.Context, _ *vllm.HealthCheckRequest) (*vllm.HealthCheckResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	f.metadata <- md
	at, _ := ctx.Deadline()
	f.deadline <- at
	return &vllm.HealthCheckResponse{Healthy: true, Message: "fine"}, nil
}

func (f *fakeEngine) Abort(context.Context, *vllm.AbortRequest) (*vllm.AbortResponse, error) {
	st, err := status.New(codes.ResourceExhausted, "too many aborts: ünïcode").WithDetails(wrapperspb.String("a detail"))
	if err != nil {
		return nil, err
	}
	return nil, st.Err()
}

func (f *fakeEngine) GetLoads(context.Context, *vllm.GetLoadsRequest) (*vllm.GetLoadsResponse, error) {
	return &vllm.GetLoadsResponse{Version: "the engine's"}, nil
}

// SubscribeKvEvents must never be reached.
func (f *fakeEngine) SubscribeKvEvents(*common.SubscribeKvEventsRequest, grpc.ServerStreamingServer[common.KvEventBatch]) error {
	return status.Error(codes.Internal, "the relay serves this itself")
}

// startFake serves an engine, with one more service of two-way streams.
func startFake(t *testing.T) (*fakeEngine, string) {
	t.Helper()
	f := &fakeEngine{metadata: make(chan metadata.MD, 1), deadline: make(chan time.Time, 1), cancelled: make(chan struct{})}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	vllm.RegisterVllmEngineServer(s, f)
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "other.Echo", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Echo", ClientStreams: true, ServerStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				m := &wrapperspb.StringValue{}
				if err := s.RecvMsg(m); errors.Is(err, io.EOF) {
					return s.SendMsg(wrapperspb.String("end"))
				} else if err != nil {
					return err
				}
				if err := s.SendMsg(m); err != nil {
					return err
				}
			}
		},
	}}}, f)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(s.Stop)
	return f, ln.Addr().String()
}

func newPassRig(t *testing.T, target string, o serverOptions) *rig {
	t.Helper()
	pass, err := newPassthrough(target, o.tokens != nil, o.log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pass.close() })
	return newRig(t, EngineConfig{}, o, &served{pass: pass, passLoads: true})
}

// TestPassthrough: the relay's address is the whole engine.
func TestPassthrough(t *testing.T) {
	f, target := startFake(t)
	g := newPassRig(t, target, rigOptions())
	client := vllm.NewVllmEngineClient(g.conn)
	ctx := testContext(t)

	// Unary: deadline and metadata arrive, and nothing that was not sent.
	call, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	call = metadata.AppendToOutgoingContext(call, "x-request", "r1", "x-request", "r2", "x-raw-bin", "\x00\x01", "authorization", "Bearer of-the-engine")
	r, err := client.HealthCheck(call, &vllm.HealthCheckRequest{})
	if err != nil || !r.GetHealthy() || r.GetMessage() != "fine" {
		t.Fatalf("HealthCheck: %v, %v", r, err)
	}
	md := <-f.metadata
	if got := fmt.Sprint(md["x-request"], md["x-raw-bin"], md["authorization"]); got != fmt.Sprint([]string{"r1", "r2"}, []string{"\x00\x01"}, []string{"Bearer of-the-engine"}) {
		t.Errorf("metadata %v", md)
	}
	want, _ := call.Deadline()
	if got := <-f.deadline; got.Sub(want).Abs() > time.Second {
		t.Errorf("deadline %v, want %v", got, want)
	}

	// Server stream: header, messages in order, trailer.
	s, err := client.Generate(ctx, &vllm.GenerateRequest{Input: &vllm.GenerateRequest_Tokenized{Tokenized: &vllm.TokenizedInput{InputIds: []uint32{5, 6, 7}}}})
	if err != nil {
		t.Fatal(err)
	}
	header, err := s.Header()
	if err != nil || strings.Join(header.Get("x-engine"), "") != "e1" {
		t.Errorf("header %v, %v", header, err)
	}
	var got []uint32
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.GetChunk().GetTokenIds()...)
	}
	if fmt.Sprint(got) != "[5 6 7]" || fmt.Sprint(s.Trailer()["x-tail"], s.Trailer()["x-bin-bin"]) != fmt.Sprint([]string{"t1"}, []string{"\x00\xff"}) {
		t.Errorf("got %v, trailer %v", got, s.Trailer())
	}

	// Statuses with details; the engine's own answers, not the relay's.
	_, err = client.Abort(ctx, &vllm.AbortRequest{})
	wantCode(t, "Abort", err, codes.ResourceExhausted, "too many aborts: ünïcode")
	if len(status.Convert(err).Details()) != 1 {
		t.Errorf("details %v, want one", status.Convert(err).Details())
	}
	_, err = client.FlushCache(ctx, &common.FlushCacheRequest{})
	wantCode(t, "FlushCache, which the engine has not", err, codes.Unimplemented, "FlushCache")
	if l, err := client.GetLoads(ctx, &vllm.GetLoadsRequest{}); err != nil || l.GetVersion() != "the engine's" {
		t.Errorf("GetLoads: %v, %v", l, err)
	}
	// A subscription is the relay's.
	g.publish(0, 0, 1, 1)
	wantBatches(t, g.peer(ctx, 0), 0, 1, 1)
	if n := g.e.stats.passing.Load(); n != 0 {
		t.Errorf("%d RPCs are counted as under way", n)
	}
}

// TestPassthroughTwoWay: another service of that server, streams both ways at
// once, large and compressed messages.
func TestPassthroughTwoWay(t *testing.T) {
	_, target := startFake(t)
	o := rigOptions()
	o.maxMessage = 32 << 20
	g := newPassRig(t, target, o)
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	for _, opts := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
		s, err := g.conn.NewStream(testContext(t), desc, "/other.Echo/Echo", append(opts, grpc.MaxCallRecvMsgSize(32<<20))...)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			text := strings.Repeat(fmt.Sprint(i), 1+i*50_000)
			if err := s.SendMsg(wrapperspb.String(text)); err != nil {
				t.Fatal(err)
			}
			m := &wrapperspb.StringValue{}
			if err := s.RecvMsg(m); err != nil || m.GetValue() != text {
				t.Fatalf("message %d: %d bytes, %v, want %d", i, len(m.GetValue()), err, len(text))
			}
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		m := &wrapperspb.StringValue{}
		if err := s.RecvMsg(m); err != nil || m.GetValue() != "end" {
			t.Errorf("after the end: %v, %v", m, err)
		}
		if err := s.RecvMsg(m); !errors.Is(err, io.EOF) {
			t.Errorf("at the end: %v", err)
		}
	}
	s, err := g.conn.NewStream(testContext(t), desc, "/other.Echo/Echo")
	if err == nil {
		_ = s.SendMsg(wrapperspb.Bytes(make([]byte, 33<<20)))
		err = s.RecvMsg(&wrapperspb.StringValue{})
	}
	wantCode(t, "a message over the limit", err, codes.ResourceExhausted)
}

// TestPassthroughCancel: a caller that goes away is known to the engine at once.
func TestPassthroughCancel(t *testing.T) {
	f, target := startFake(t)
	g := newPassRig(t, target, rigOptions())
	ctx, cancel := context.WithCancel(testContext(t))
	s, err := vllm.NewVllmEngineClient(g.conn).Generate(ctx, &vllm.GenerateRequest{
		RequestId: "forever", Input: &vllm.GenerateRequest_Tokenized{Tokenized: &vllm.TokenizedInput{InputIds: []uint32{1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case <-f.cancelled:
	case <-time.After(testTime):
		t.Fatal("the engine was not told")
	}
}

// TestPassthroughNoEngine: an engine that is not there, and one that was not
// named.
func TestPassthroughNoEngine(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := ln.Addr().String()
	_ = ln.Close()
	g := newPassRig(t, target, rigOptions())
	_, err = vllm.NewVllmEngineClient(g.conn).HealthCheck(testContext(t), &vllm.HealthCheckRequest{})
	wantCode(t, "the engine's server is down", err, codes.Unavailable)

	bare := newRig(t, EngineConfig{}, rigOptions(), &served{})
	_, err = vllm.NewVllmEngineClient(bare.conn).HealthCheck(testContext(t), &vllm.HealthCheckRequest{})
	wantCode(t, "no grpc=", err, codes.Unimplemented, "/vllm.grpc.engine.VllmEngine/HealthCheck", "grpc=host:port", "w0")
	err = bare.conn.Invoke(testContext(t), "/no.Such/Thing", &vllm.HealthCheckRequest{}, &vllm.HealthCheckResponse{})
	wantCode(t, "another service", err, codes.Unimplemented, "/no.Such/Thing")
}

// TestPassthroughToken: a token that is the relay's own stays with it.
func TestPassthroughToken(t *testing.T) {
	f, target := startFake(t)
	o := rigOptions()
	o.tokens = testTokens(t, "relay-token-1")
	g := newPassRig(t, target, o)
	ctx := metadata.AppendToOutgoingContext(testContext(t), "authorization", "Bearer relay-token-1", "x-more", "yes")
	if _, err := vllm.NewVllmEngineClient(g.conn).HealthCheck(ctx, &vllm.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	<-f.deadline
	if md := <-f.metadata; len(md["authorization"]) != 0 || len(md["x-more"]) != 1 {
		t.Errorf("the engine saw %v", md)
	}
	_, err := vllm.NewVllmEngineClient(g.conn).HealthCheck(testContext(t), &vllm.HealthCheckRequest{})
	wantCode(t, "no token", err, codes.Unauthenticated, "Bearer")
}

// TestJoined: however a message is put together, its bytes are the same.
func TestJoined(t *testing.T) {
	for _, size := range []int{0, 1, 100, 1 << 10, 4 << 10, joinBelow - 10, joinBelow + 1, 1 << 20} {
		body := bytes.Repeat([]byte{7}, size)
		for _, tail := range [][]byte{nil, []byte("load")} {
			var got []byte
			m := joined([]byte("head"), body, batchLoad, tail)
			for _, b := range m {
				got = append(got, b.ReadOnlyData()...)
			}
			want := append([]byte("head"), body...)
			if tail != nil {
				want = append(want, batchLoad<<3|2, 4, 'l', 'o', 'a', 'd')
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes, tail %q: %d bytes that differ from the %d wanted", size, tail, len(got), len(want))
			}
		}
	}
	// The load in a batch that has one: the last counts, field by field.
	b, err := proto.Marshal(&common.KvEventBatch{SequenceNumber: 3})
	if err != nil {
		t.Fatal(err)
	}
	l, err := proto.Marshal(&common.EngineLoad{RunningRequests: 9})
	if err != nil {
		t.Fatal(err)
	}
	m, err := newCodec().Marshal(joined(nil, b, batchLoad, l))
	if err != nil {
		t.Fatal(err)
	}
	var got common.KvEventBatch
	if err := newCodec().Unmarshal(m, &got); err != nil || got.GetSequenceNumber() != 3 || got.GetLoad().GetRunningRequests() != 9 {
		t.Errorf("got %v, %v", &got, err)
	}
}
