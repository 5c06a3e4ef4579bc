// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"kindex/internal/kv"
	"kindex/proto/peer/common"
	"kindex/proto/peer/vllm"
	"kindex/relay/feed"
	"kindex/relay/wire"
)

// testTime bounds everything that a test waits for.
const testTime = 30 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTime)
	t.Cleanup(cancel)
	return ctx
}

// rig is an engine without sockets behind a real gRPC server: a test hands its
// ranks what a feed would.
type rig struct {
	t      testing.TB
	e      *served
	server *server
	conn   *grpc.ClientConn
	faults feed.Faults
	layout *wire.Layout
	next   uint64 // hash of the next block
}

func rigOptions() serverOptions {
	return serverOptions{
		maxMessage: 4 << 20, maxStreams: 4096, maxConnections: 4096, maxSubscriptions: 4096,
		log: slog.New(slog.DiscardHandler),
	}
}

// newRig serves an engine of cfg under the given options.
func newRig(t testing.TB, cfg EngineConfig, o serverOptions, e *served) *rig {
	t.Helper()
	if cfg.Kind == "" {
		cfg.Kind = "vllm"
	}
	cfg.Name = "w0"
	cfg.Load = e.meter
	engine, err := newEngine(cfg)
	if err != nil {
		t.Fatal(err)
	}
	layout, err := wire.LayoutFor(cfg.Kind, "99")
	if err != nil {
		t.Fatal(err)
	}
	e.engine = engine
	o.all = func() []*served { return []*served{e} }
	o.byName = func(name string) *served {
		if name == "w0" {
			return e
		}
		return nil
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.listen = ln.Addr().String()
	g := &rig{t: t, e: e, server: newServer(&o, e), layout: layout, next: 1}
	done := make(chan error, 1)
	go func() { done <- g.server.serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTime)
		defer cancel()
		g.server.drain(ctx)
		engine.Close()
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	g.conn = g.dial()
	return g
}

func (g *rig) dial(o ...grpc.DialOption) *grpc.ClientConn {
	g.t.Helper()
	if len(o) == 0 {
		o = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	conn, err := grpc.NewClient(g.e.listen, o...)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// stored returns a payload that stores so many new blocks.
func (g *rig) stored(rank, blocks int) []byte {
	ev := kv.Event{Kind: kv.KindStored, BlockSize: 16}
	for range blocks {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(g.next))
		for i := range 16 {
			ev.Tokens = append(ev.Tokens, uint32(g.next)*16+uint32(i))
		}
		g.next++
	}
	return wire.AppendBatch(nil, &kv.Batch{Timestamp: 1, Rank: rank, HasRank: true, Events: []kv.Event{ev}}, g.layout)
}

// publish hands the rank batches from to to, each of so many new blocks.
func (g *rig) publish(rank int, from, to uint64, blocks int) {
	g.t.Helper()
	r := g.e.engine.Ranks()[rank]
	for seq := from; seq <= to; seq++ {
		if !r.Stage(&feed.Batch{Seq: seq, Payload: g.stored(rank, blocks), Sum: 1000 + seq}) {
			g.t.Fatalf("batch %d is none", seq)
		}
		r.Commit(&g.faults)
	}
	r.stands(feed.Standing{State: feed.StateActive, Epoch: 1}, "")
}

func (g *rig) peer(ctx context.Context, start uint64) grpc.ServerStreamingClient[common.KvEventBatch] {
	g.t.Helper()
	s, err := vllm.NewVllmEngineClient(g.conn).SubscribeKvEvents(ctx, &common.SubscribeKvEventsRequest{StartSequenceNumber: start})
	if err != nil {
		g.t.Fatal(err)
	}
	return s
}

func wantCode(t *testing.T, what string, err error, code codes.Code, words ...string) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != code {
		t.Errorf("%s: got %v, want %v", what, err, code)
	}
	if strings.Contains(st.Message(), "\n") {
		t.Errorf("%s: %q is not one line", what, st.Message())
	}
	for _, w := range words {
		if !strings.Contains(st.Message(), w) {
			t.Errorf("%s: %q does not say %q", what, st.Message(), w)
		}
	}
}

// wantBatches reads batches from to to, in order.
func wantBatches(t *testing.T, s grpc.ServerStreamingClient[common.KvEventBatch], from, to uint64, blocks int) {
	t.Helper()
	for seq := from; seq <= to; seq++ {
		b, err := s.Recv()
		if err != nil {
			t.Fatalf("batch %d: %v", seq, err)
		}
		n := 0
		for _, ev := range b.GetEvents() {
			n += len(ev.GetStored().GetBlocks())
		}
		if b.GetSequenceNumber() != seq || n != blocks {
			t.Fatalf("got batch %d with %d blocks, want %d with %d", b.GetSequenceNumber(), n, seq, blocks)
		}
	}
}
