// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/internal/kv"
	"kindex/internal/livedigest"
	"kindex/proto/peer/common"
	"kindex/relay/normal"

	relayv1 "kindex/proto/kindex/relay/v1"
)

// ownScript and peerScript answer one subscription; n counts them from 0.
type (
	ownScript  func(n int, req *relayv1.SubscribeRequest, s grpc.ServerStream) error
	peerScript func(n int, req *common.SubscribeKvEventsRequest, s grpc.ServerStream) error
)

// fake is a server of event streams that does what its scripts say. A nil script's
// service is not served.
type fake struct {
	own          ownScript
	vllm, sglang peerScript
	describe     *relayv1.DescribeResponse // nil: nothing is known of any rank
	options      []grpc.ServerOption

	t    *testing.T
	addr string
	srv  *grpc.Server

	mu    sync.Mutex
	calls []string // subscriptions: "own", "vllm 12"
}

func (f *fake) called(format string, args ...any) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	return len(f.calls) - 1
}

func (f *fake) log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func startFake(t *testing.T, f *fake) *fake {
	t.Helper()
	f.t, f.addr = t, "127.0.0.1:0"
	f.start()
	t.Cleanup(f.stop)
	return f
}

func (f *fake) start() {
	f.t.Helper()
	ln, err := net.Listen("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.addr = ln.Addr().String()
	f.srv = grpc.NewServer(f.options...)
	if f.own != nil {
		relayv1.RegisterRelayServiceServer(f.srv, ownFake{f: f})
	}
	for c, script := range map[Contract]peerScript{ContractVLLM: f.vllm, ContractSGLang: f.sglang} {
		if script == nil {
			continue
		}
		f.srv.RegisterService(&grpc.ServiceDesc{
			ServiceName: c.String(), HandlerType: (*any)(nil),
			Streams: []grpc.StreamDesc{{StreamName: "SubscribeKvEvents", ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
				req := new(common.SubscribeKvEventsRequest)
				if err := s.RecvMsg(req); err != nil {
					return err
				}
				name, _, _ := strings.Cut(c.String(), ".")
				return script(f.called("%s %d", name, req.GetStartSequenceNumber()), req, s)
			}}},
		}, struct{}{})
	}
	go func() { _ = f.srv.Serve(ln) }()
}

func (f *fake) stop() { f.srv.Stop() }

type ownFake struct {
	relayv1.UnimplementedRelayServiceServer
	f *fake
}

func (o ownFake) Describe(context.Context, *relayv1.DescribeRequest) (*relayv1.DescribeResponse, error) {
	if d := o.f.describe; d != nil {
		return d, nil
	}
	return &relayv1.DescribeResponse{}, nil
}

func (o ownFake) Subscribe(req *relayv1.SubscribeRequest, s grpc.ServerStreamingServer[relayv1.SubscribeResponse]) error {
	var cursors []string
	for _, c := range req.GetCursors() {
		cursors = append(cursors, fmt.Sprintf(" %d@%d/%d#%d", c.GetRank(), c.GetEpoch(), c.GetSequence(), c.GetCheck()))
	}
	return o.f.own(o.f.called("own%s", strings.Join(cursors, "")), req, s)
}

// record is a handler that keeps what it is told: in words, and as a content.
type record struct {
	mu       sync.Mutex
	lines    []string
	book     livedigest.Book
	standing Standing
	slow     func()
}

func (r *record) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *record) apply(ops []Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range ops {
		op := &ops[i]
		switch op.Kind {
		case normal.Store:
			r.book.Store(&livedigest.Store{
				Tier: op.Tier, Group: op.Group, Parent: op.Parent, HasParent: op.HasParent,
				Seed: op.Seed, Engines: op.Engines, Contents: op.Contents,
			})
		case normal.Remove:
			r.book.Remove(op.Tier, op.Group, op.Engines)
		case normal.Clear:
			r.book.Clear()
		case normal.Mismatch:
		}
	}
}

func (r *record) wipe() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.book.Clear()
}

func (r *record) Connected(c Contract)    { r.add("connected %s", c) }
func (r *record) Disconnected(why string) { r.add("disconnected: %s", why) }
func (r *record) Reset(_ uint64, why string) {
	r.wipe()
	r.add("reset: %s", why)
}

func (r *record) Begin(s *Snapshot) {
	r.wipe()
	r.add("begin %d", s.Blocks)
}

func (r *record) Chunk(ops []Op) {
	r.apply(ops)
	r.add("chunk")
}
func (r *record) End(s *Snapshot) { r.add("end %d", s.Through) }
func (r *record) Batch(b *Batch) {
	r.apply(b.Ops)
	r.add("batch %d", b.Sequence)
	if r.slow != nil {
		r.slow()
	}
}

func (r *record) Resumed(why string) {
	if why == "" {
		r.add("goes on")
		return
	}
	r.add("cold: %s", why)
}
func (r *record) Hole(h *Hole) { r.add("hole %d-%d", h.From, h.To) }
func (r *record) Load(l *Load) { r.add("load %d", l.GetRunningRequests()) }
func (r *record) Standing(s Standing) {
	r.mu.Lock()
	r.standing = s
	r.mu.Unlock()
	if s.Exact {
		r.add("exact")
		return
	}
	r.add("inexact: %s", s.Why)
}

func (r *record) snapshot() (lines []string, blocks int, sum uint64, s Standing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines), r.book.Blocks(), r.book.Sum(), r.standing
}

// until waits until ok is true of what r was told; it fails the test, with what r
// was told, when that takes too long.
func (r *record) until(t *testing.T, what string, ok func(lines []string) bool) []string {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		lines, _, _, _ := r.snapshot()
		if ok(lines) {
			return lines
		}
		if time.Now().After(deadline) {
			t.Fatalf("not told in time: %s; told:\n%s", what, strings.Join(lines, "\n"))
		}
		time.Sleep(time.Millisecond)
	}
}

// untilTold waits for a line that begins with want.
func (r *record) untilTold(t *testing.T, want string) []string {
	t.Helper()
	return r.until(t, want, func(lines []string) bool { return told(lines, want) > 0 })
}

// told counts the lines that begin with want.
func told(lines []string, want string) (n int) {
	for _, l := range lines {
		if strings.HasPrefix(l, want) {
			n++
		}
	}
	return n
}

// steps returns lines without standings and loads.
func steps(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool {
		return l == "exact" || strings.HasPrefix(l, "inexact") || strings.HasPrefix(l, "load")
	})
}

// subscribe starts a client of f whose times are short.
func subscribe(t *testing.T, f *fake, cfg Config, ranks ...uint32) (*Client, map[uint32]*record) {
	t.Helper()
	if len(ranks) == 0 {
		ranks = []uint32{0}
	}
	cfg.Address, cfg.Ranks = f.addr, ranks
	orElse(&cfg.RetryMin, 5*time.Millisecond)
	orElse(&cfg.RetryMax, 20*time.Millisecond)
	orElse(&cfg.DialPeriod, 20*time.Millisecond)
	recs := map[uint32]*record{}
	c, err := New(cfg, func(n uint32) Handler {
		recs[n] = &record{}
		return recs[n]
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, recs
}

// chain returns n events' worth of content: engine hashes from, from+1, ... each
// the child of the one before, the first a root where parent is 0.
func chain(from, n, parent uint64) (engines, contents []uint64, p *uint64) {
	for i := range n {
		engines = append(engines, from+i)
		contents = append(contents, 7_000+from+i)
	}
	if parent != 0 {
		p = &parent
	}
	return engines, contents, p
}

func ownStore(from, n, parent uint64) *relayv1.Event {
	e, c, p := chain(from, n, parent)
	return &relayv1.Event{Event: &relayv1.Event_Stored{Stored: &relayv1.Stored{
		Tier: relayv1.Tier_TIER_DEVICE, Parent: p, Seed: kv.HashSeed, BlockSize: 4, Engines: e, Contents: c,
	}}}
}

func ownRemove(engines ...uint64) *relayv1.Event {
	return &relayv1.Event{Event: &relayv1.Event_Removed{Removed: &relayv1.Removed{Tier: relayv1.Tier_TIER_DEVICE, Engines: engines}}}
}

func ownClear() *relayv1.Event {
	return &relayv1.Event{Event: &relayv1.Event_Cleared{Cleared: &relayv1.Cleared{}}}
}

func ownBatch(epoch, seq uint64, events ...*relayv1.Event) *relayv1.SubscribeResponse {
	return &relayv1.SubscribeResponse{Epoch: epoch, Body: &relayv1.SubscribeResponse_Batch{
		Batch: &relayv1.Batch{Sequence: seq, Check: 100 + seq, Timestamp: 1, Events: events},
	}}
}

func ownStanding(primed, exact bool, why string) *relayv1.SubscribeResponse {
	return &relayv1.SubscribeResponse{Body: &relayv1.SubscribeResponse_Standing{Standing: &relayv1.Standing{Primed: primed, Exact: exact, Why: why}}}
}

// ownReset voids a content when the newest batch has that number; -1: none.
func ownReset(epoch uint64, why string, newest int) *relayv1.SubscribeResponse {
	r := &relayv1.Reset{Why: why}
	if newest >= 0 {
		r.Any, r.Newest = true, uint64(newest)
	}
	return &relayv1.SubscribeResponse{Epoch: epoch, Body: &relayv1.SubscribeResponse_Reset_{Reset_: r}}
}

func ownHole(epoch, from, to uint64) *relayv1.SubscribeResponse {
	return &relayv1.SubscribeResponse{Epoch: epoch, Body: &relayv1.SubscribeResponse_Hole{Hole: &relayv1.Hole{From: from, To: to, Why: "gone"}}}
}

// ownChunks returns a snapshot of one chunk for each of events, right in all.
func ownChunks(epoch, through uint64, events ...*relayv1.Event) []*relayv1.SubscribeResponse {
	var dec ownDecoder
	var d digest
	d.most = 1 << 20
	r := &rank{peer: newPeerRank(&Config{})}
	ms := make([]*relayv1.SubscribeResponse, len(events))
	for i, ev := range events {
		ops, err := dec.ops(r, []*relayv1.Event{ev})
		if err != nil {
			panic(err)
		}
		if err := d.apply(ops); err != nil {
			panic(err)
		}
		ms[i] = &relayv1.SubscribeResponse{Epoch: epoch, Body: &relayv1.SubscribeResponse_Snapshot{Snapshot: &relayv1.SnapshotChunk{
			Index: uint32(i), Count: uint32(len(events)), Blocks: 10, Any: true, Through: through, Check: 100 + through,
			Events: []*relayv1.Event{ev},
		}}}
	}
	ms[len(ms)-1].GetSnapshot().Digest = d.book.Sum()
	return ms
}

func send[M any](s grpc.ServerStream, ms ...M) error {
	for _, m := range ms {
		if err := s.SendMsg(m); err != nil {
			return err
		}
	}
	return nil
}

// hold sends ms and keeps the stream open until its client goes.
func hold[M any](s grpc.ServerStream, ms ...M) error {
	if err := send(s, ms...); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

func peerStore(from, n, parent uint64) *common.KvCacheEvent {
	st := &common.KvBlocksStored{}
	if parent != 0 {
		p := int64(parent)
		st.ParentBlockHash = &p
	}
	for i := range n {
		t := uint32(from + i)
		st.Blocks = append(st.Blocks, &common.KvBlock{BlockHash: int64(from + i), TokenIds: []uint32{t, t, t, t}, BlockSize: 4})
	}
	return &common.KvCacheEvent{Data: &common.KvCacheEvent_Stored{Stored: st}}
}

func peerClear() *common.KvCacheEvent {
	return &common.KvCacheEvent{Data: &common.KvCacheEvent_Cleared{Cleared: &common.KvCacheCleared{}}}
}

func peerBatch(seq uint64, events ...*common.KvCacheEvent) *common.KvEventBatch {
	return &common.KvEventBatch{SequenceNumber: seq, Timestamp: float64(seq), Events: events}
}

func peerChunk(index, count uint32, seq uint64, events ...*common.KvCacheEvent) *common.KvEventBatch {
	b := peerBatch(seq, events...)
	b.Snapshot = &common.KvSnapshotChunk{Index: index, Count: count, Blocks: 10}
	return b
}

func ofRank(n int32, b *common.KvEventBatch) *common.KvEventBatch {
	b.DpRank = &n
	return b
}

func heartbeat(seq uint64, running uint32) *common.KvEventBatch {
	return &common.KvEventBatch{SequenceNumber: seq, Load: &common.EngineLoad{LoadOnly: true, RunningRequests: running}}
}

var errOutOfRange = status.Error(codes.OutOfRange, "cursor below the window")
