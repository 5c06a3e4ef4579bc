// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"kindex/internal/longtest"
	relayv1 "kindex/proto/kindex/relay/v1"
	"kindex/proto/peer/common"
	"kindex/proto/peer/vllm"
)

// TestNeverReads: a subscriber that never reads costs its windows and delays
// nobody, on its own connection or on another's.
func TestNeverReads(t *testing.T) {
	const batches = 3000
	g := newRig(t, EngineConfig{HistoryBatches: 100}, rigOptions(), &served{})
	ctx := testContext(t)
	// Windows that do not grow, so that the heap shows the server's part.
	fixed := func() *grpc.ClientConn {
		return g.dial(grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(8<<20))
	}
	g.conn = fixed()
	other := fixed()
	// A reader of the peer's contract on the same connection, one of the relay's
	// own on another.
	reads := g.peer(ctx, 0)
	own, err := relayv1.NewRelayServiceClient(other).Subscribe(ctx, &relayv1.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		stuck := g.peer(ctx, 0)
		if _, err := stuck.Header(); err != nil {
			t.Fatal(err)
		}
		s, err := relayv1.NewRelayServiceClient(g.conn).Subscribe(ctx, &relayv1.SubscribeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Header(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := reads.Header(); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var peerAt, ownAt uint64
	for seq := range uint64(batches) {
		g.publish(0, seq, seq, 20)
		b, err := reads.Recv()
		if err != nil {
			t.Fatalf("the reader on the same connection, batch %d: %v", seq, err)
		}
		peerAt = b.GetSequenceNumber()
		for {
			m, err := own.Recv()
			if err != nil {
				t.Fatalf("the reader on another connection, batch %d: %v", seq, err)
			}
			if m.GetBatch() != nil {
				ownAt = m.GetBatch().GetSequence()
				break
			}
		}
		if peerAt != seq || ownAt != seq {
			t.Fatalf("readers are at %d and %d, want %d", peerAt, ownAt, seq)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	st := g.e.engine.Ranks()[0].Stats()
	t.Logf("heap %d KiB more with 40 stuck subscribers after %d batches; live %d KiB, lag %d", (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>10, batches, st.Live.Bytes.Total()>>10, st.MaxLag)
	// Each has 64 KiB in the server's hands, 64 KiB in the client's, an item of the
	// history under way, and what the transport wraps them in.
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc) - int64(st.Live.Bytes.Total()); grown > 40*512<<10 {
		t.Errorf("the heap grew by %d KiB, over 512 KiB a stuck subscriber", grown>>10)
	}
	if st.Subscribers != 42 || st.MaxLag == 0 {
		t.Errorf("%d subscribers, the last %d batches behind: want 42, some behind", st.Subscribers, st.MaxLag)
	}
}

// TestThousandSubscribers: all of them get everything.
func TestThousandSubscribers(t *testing.T) {
	const subscribers, batches = 1000, 20
	g := newRig(t, EngineConfig{}, rigOptions(), &served{})
	ctx := testContext(t)
	conns := []*grpc.ClientConn{g.conn}
	for len(conns) < longtest.N(10, 100) {
		conns = append(conns, g.dial())
	}
	var got atomic.Int64
	var ready, done sync.WaitGroup
	ready.Add(subscribers)
	for i := range subscribers {
		done.Go(func() {
			s, err := vllm.NewVllmEngineClient(conns[i%len(conns)]).SubscribeKvEvents(ctx, &common.SubscribeKvEventsRequest{})
			if err == nil {
				_, err = s.Header()
			}
			ready.Done()
			for seq := uint64(0); err == nil && seq < batches; seq++ {
				var b *common.KvEventBatch
				if b, err = s.Recv(); err == nil {
					got.Add(1)
					if b.GetSequenceNumber() != seq {
						t.Errorf("subscriber %d: batch %d, want %d", i, b.GetSequenceNumber(), seq)
						return
					}
				}
			}
			if err != nil {
				t.Errorf("subscriber %d: %v", i, err)
			}
		})
	}
	ready.Wait()
	if n := g.e.stats.subscribers[contractPeer].Load(); n != subscribers {
		t.Errorf("%d subscriptions are counted, want %d", n, subscribers)
	}
	for seq := range uint64(batches) {
		g.publish(0, seq, seq, 4)
	}
	done.Wait()
	if got.Load() != subscribers*batches {
		t.Errorf("%d batches arrived, want %d", got.Load(), subscribers*batches)
	}
}

// TestGarbage: what is no gRPC, and what is gRPC with garbage in it, ends its own
// connection or RPC and nothing else.
func TestGarbage(t *testing.T) {
	g := newRig(t, EngineConfig{}, rigOptions(), &served{})
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 40 {
		c, err := net.Dial("tcp", g.e.listen)
		if err != nil {
			t.Fatal(err)
		}
		junk := make([]byte, 1+rng.IntN(4096))
		for j := range junk {
			junk[j] = byte(rng.Uint32())
		}
		switch i % 4 {
		case 1:
			junk = append([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), junk...)
		case 2:
			junk = append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), junk...)
		case 3:
			// A valid preface and settings, then a frame that claims 16 MiB.
			junk = append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\xff\xff\xff\x00\x00\x00\x00\x00\x01"), junk...)
		}
		_, _ = c.Write(junk)
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}
	// Requests that are no messages.
	desc := &grpc.StreamDesc{ServerStreams: true}
	for _, method := range []string{
		"/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", "/vllm.grpc.engine.VllmEngine/GetLoads",
		"/kindex.relay.v1.RelayService/Subscribe", "/kindex.relay.v1.RelayService/Describe",
	} {
		for range 10 {
			junk := bytes.Repeat([]byte{0xff}, 1+rng.IntN(100))
			s, err := g.conn.NewStream(testContext(t), desc, method, grpc.ForceCodecV2(newCodec()))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.SendMsg(joined(nil, junk, 0, nil)); err == nil {
				_ = s.CloseSend()
			}
			err = s.RecvMsg(&frame{})
			wantCode(t, method, err, codes.Internal)
		}
	}
	// Method names that are none.
	for _, method := range []string{"/", "//", "/a", "/vllm.grpc.engine.VllmEngine/", "/../..", "/kindex.relay.v1.RelayService/subscribe"} {
		err := g.conn.Invoke(testContext(t), method, &common.SubscribeKvEventsRequest{}, &common.KvEventBatch{})
		wantCode(t, method, err, codes.Unimplemented)
	}
	g.publish(0, 0, 3, 1)
	wantBatches(t, g.peer(testContext(t), 0), 0, 3, 1)
	if n := g.e.stats.panics.Load(); n != 0 {
		t.Errorf("%d panics", n)
	}
}

// TestConnectionLimit: a connection over the limit is closed at once and counted.
func TestConnectionLimit(t *testing.T) {
	o := rigOptions()
	o.maxConnections = 2
	g := newRig(t, EngineConfig{}, o, &served{})
	ctx := testContext(t)
	second := g.dial()
	for _, c := range []*grpc.ClientConn{g.conn, second} {
		if err := describe1(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	third := g.dial()
	wantCode(t, "the third connection", describe1(ctx, third), codes.Unavailable)
	if n := g.e.stats.turnedAway.Load(); n == 0 {
		t.Error("no refused connection is counted")
	}
	_ = second.Close()
	if _, err := relayv1.NewRelayServiceClient(third).Describe(ctx, &relayv1.DescribeRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("after one has left: %v", err)
	}
}

// TestPings: a client that pings every 10 seconds at the fastest, as gateways do,
// keeps its connection; the server's own limit is below that.
func TestPings(t *testing.T) {
	if minPingPeriod >= 10*time.Second {
		t.Errorf("pings every 10 s are refused: the limit is %v", minPingPeriod)
	}
	longtest.Skip(t)
	g := newRig(t, EngineConfig{}, rigOptions(), &served{})
	conn := g.dial(grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}))
	s, err := vllm.NewVllmEngineClient(conn).SubscribeKvEvents(t.Context(), &common.SubscribeKvEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
	defer cancel()
	<-ctx.Done()
	g.publish(0, 0, 0, 1)
	if _, err := s.Recv(); err != nil {
		t.Errorf("after four pings: %v", err)
	}
}
