// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"kindex/gateway/fleet"
	"kindex/gateway/route"
	"kindex/harness/mockworker/engine"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// seen is one answer as its client sees it.
type seen struct {
	tokens                     []uint32
	prompt, cached, completion uint32
	worker                     string
	chunks                     int
}

func generateVLLM(ctx context.Context, conn grpc.ClientConnInterface, q *vllm.GenerateRequest) (a seen, err error) {
	s, err := vllm.NewVllmEngineClient(conn).Generate(ctx, q)
	if err != nil {
		return a, err
	}
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			md, _ := s.Header()
			a.worker = first(md, mdWorker)
			return a, nil
		}
		if err != nil {
			return a, err
		}
		if m.GetChunk() != nil {
			a.chunks++
		}
		if c := m.GetComplete(); c != nil {
			a.tokens, a.prompt, a.cached, a.completion = c.GetOutputIds(), c.GetPromptTokens(), c.GetCachedTokens(), c.GetCompletionTokens()
		}
	}
}

func vllmRequest(id string, tokens []uint32, most uint32) *vllm.GenerateRequest {
	return &vllm.GenerateRequest{
		RequestId: id, Stream: true, Input: &vllm.GenerateRequest_Tokenized{Tokenized: &vllm.TokenizedInput{InputIds: tokens}},
		SamplingParams: &vllm.SamplingParams{MaxTokens: &most},
	}
}

func TestGenerateFollowsTheCacheVLLM(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.VLLM, Ranks: 2}, 3, nil)
	ctx := t.Context()
	one, err := generateVLLM(ctx, r.conn, vllmRequest("a", prompt(400, 400, 0), 4))
	if err != nil {
		t.Fatal(err)
	}
	if one.prompt != 400 || one.cached != 0 || one.completion != 4 || len(one.tokens) != 4 || one.chunks != 4 || one.worker == "" {
		t.Errorf("the first answer: %+v", one)
	}
	for i := range 10 {
		two, err := generateVLLM(ctx, r.conn, vllmRequest("b", prompt(400, 320, i), 2))
		if err != nil {
			t.Fatal(err)
		}
		if two.worker != one.worker || two.cached != 320 {
			t.Errorf("sibling %d went to %s and found %d tokens, want %s and 320", i, two.worker, two.cached, one.worker)
		}
	}
	r.idle(t)
	if s := r.overlay.Stats(); s.Answers != 11 || s.Exact != 11 {
		t.Errorf("%d of %d answers delivered what was expected: %v", s.Exact, s.Answers, s.Differences)
	}
	if got := r.outcomes(); got[route.OK] != 11 {
		t.Errorf("outcomes %v", got)
	}
}

func TestGenerateFollowsTheCacheSGLang(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.SGLang}, 3, nil)
	most := uint32(3)
	worker := ""
	for i := range 5 {
		s, err := sglang.NewSglangSchedulerClient(r.conn).Generate(t.Context(), &sglang.GenerateRequest{
			RequestId: "a", Stream: i%2 == 0, Tokenized: &sglang.TokenizedInput{InputIds: prompt(400, 320, i)}, SamplingParams: &sglang.SamplingParams{MaxNewTokens: &most},
		})
		if err != nil {
			t.Fatal(err)
		}
		var done *sglang.GenerateComplete
		for {
			m, err := s.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if m.GetComplete() != nil {
				done = m.GetComplete()
			}
		}
		md, _ := s.Header()
		if i == 0 {
			worker = first(md, mdWorker)
		}
		want := uint32(320)
		if i == 0 {
			want = 0
		}
		if done.GetCompletionTokens() != 3 || done.GetCachedTokens() != want || first(md, mdWorker) != worker {
			t.Errorf("answer %d of %s: %d tokens, %d cached, want 3, %d of %s", i, first(md, mdWorker), done.GetCompletionTokens(), done.GetCachedTokens(), want, worker)
		}
	}
	r.idle(t)
}

func TestRankIsCarried(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.VLLM, Ranks: 3}, 1, nil)
	for rank := range int32(3) {
		q := vllmRequest("", prompt(40, 0, int(rank)), 1)
		q.DataParallelRank = &rank
		if _, err := generateVLLM(t.Context(), r.conn, q); err != nil {
			t.Fatal(err)
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), mdRank, string('0'+rank))
		if _, err := generateVLLM(ctx, r.conn, vllmRequest("", prompt(40, 0, 10+int(rank)), 1)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "6 ends", func() bool { return len(r.ends()) == 6 })
	for i, s := range r.ends() {
		if s.Rank != i/2 {
			t.Errorf("request %d for rank %d ran on rank %d", i, i/2, s.Rank)
		}
	}
	bad := int32(7)
	q := vllmRequest("", prompt(40, 0, 0), 1)
	q.DataParallelRank = &bad
	if _, err := generateVLLM(t.Context(), r.conn, q); err == nil {
		t.Error("rank 7 of 3 was taken")
	}
}

func TestEmbed(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.VLLM}, 2, nil)
	a, err := vllm.NewVllmEngineClient(r.conn).Embed(t.Context(), &vllm.EmbedRequest{RequestId: "e", Tokenized: &vllm.TokenizedInput{InputIds: prompt(40, 40, 0)}})
	if err != nil || a.GetPromptTokens() != 40 || len(a.GetEmbedding()) == 0 {
		t.Fatalf("%v, %v", a, err)
	}
	r.idle(t)
}

func TestUnknownFieldsPassBothWays(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.VLLM}, 1, nil)
	q := vllmRequest("u", prompt(40, 40, 0), 1)
	q.ProtoReflect().SetUnknown([]byte{0xfa, 0x3e, 3, 'a', 'b', 'c'}) // field 1007
	if a, err := generateVLLM(t.Context(), r.conn, q); err != nil || a.completion != 1 {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestRetriesBeforeTheFirstMessageAlone(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.VLLM}, 3, nil)
	dead := r.engines.Workers()[0]
	for i := range 12 { // spread, so that each has a connection
		if _, err := generateVLLM(t.Context(), r.conn, vllmRequest("", prompt(40, 0, i), 1)); err != nil {
			t.Fatal(err)
		}
	}
	fault(t, r, dead.Name, "refuse?on=1")
	for i := range 12 {
		if _, err := generateVLLM(t.Context(), r.conn, vllmRequest("", prompt(40, 0, 100+i), 1)); err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	fault(t, r, dead.Name, "clear")
	// Nobody is left: an error at once.
	for _, w := range r.engines.Workers() {
		fault(t, r, w.Name, "refuse?on=1")
	}
	_, err := generateVLLM(t.Context(), r.conn, vllmRequest("", prompt(40, 0, 1000), 1))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("with nobody left: %v", err)
	}
	for _, w := range r.engines.Workers() {
		fault(t, r, w.Name, "clear")
	}
	r.idle(t)
}

// fault has the worker of a name fail as the mock's admin is asked for.
func fault(t *testing.T, r *rig, name, what string) {
	t.Helper()
	a, err := engine.OpenAdmin(r.engines, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	post(t, "http://"+a.Addr+"/admin/fault/"+name+"/"+what)
}

func TestClientsThatHangUpAreAborted(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.VLLM, PassTime: 2 * time.Millisecond}, 3, nil)
	const clients = 200
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s, err := vllm.NewVllmEngineClient(r.conn).Generate(ctx, vllmRequest("", prompt(64, 0, i), 10_000))
			if err != nil {
				t.Error(err)
				return
			}
			for range rand.IntN(6) {
				if _, err := s.Recv(); err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
			}
			if i == clients/2 { // and a worker goes and comes back under its URL
				w := r.workers[0]
				if _, err := r.fleet.Remove(w.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	r.idle(t)
	waitFor(t, "the engines to abort all", func() bool {
		for _, w := range r.engines.Workers() {
			for _, l := range w.Engine.Loads() {
				if l.Running+l.Waiting > 0 {
					return false
				}
			}
		}
		return true
	})
	for _, s := range r.ends() {
		if s.Finish != "abort" {
			t.Errorf("a request ended with %q, want its abort", s.Finish)
		}
	}
	if got := r.outcomes(); got[route.ClientGone] != clients {
		t.Errorf("outcomes %v, want %d clients gone", got, clients)
	}
}

func TestAbortFindsTheWorker(t *testing.T) {
	for _, kind := range []string{engine.VLLM, engine.SGLang} {
		r := newRig(t, engine.Config{Engine: kind, PassTime: 2 * time.Millisecond}, 3, nil)
		ctx := t.Context()
		most := uint32(10_000)
		var recv func() error
		if kind == engine.VLLM {
			s, err := vllm.NewVllmEngineClient(r.conn).Generate(ctx, vllmRequest("mine", prompt(64, 64, 0), most))
			if err != nil {
				t.Fatal(err)
			}
			recv = func() error { _, err := s.Recv(); return err }
		} else {
			s, err := sglang.NewSglangSchedulerClient(r.conn).Generate(ctx, &sglang.GenerateRequest{
				RequestId: "mine", Stream: true, Tokenized: &sglang.TokenizedInput{InputIds: prompt(64, 64, 0)}, SamplingParams: &sglang.SamplingParams{MaxNewTokens: &most},
			})
			if err != nil {
				t.Fatal(err)
			}
			recv = func() error { _, err := s.Recv(); return err }
		}
		for range 3 {
			if err := recv(); err != nil {
				t.Fatal(err)
			}
		}
		if kind == engine.VLLM {
			if _, err := vllm.NewVllmEngineClient(r.conn).Abort(ctx, &vllm.AbortRequest{RequestIds: []string{"other", "mine"}}); err != nil {
				t.Fatal(err)
			}
		} else {
			c := sglang.NewSglangSchedulerClient(r.conn)
			if a, err := c.Abort(ctx, &sglang.AbortRequest{RequestId: "other"}); err != nil || a.GetSuccess() {
				t.Errorf("an id that nobody has: %v, %v", a, err)
			}
			if a, err := c.Abort(ctx, &sglang.AbortRequest{RequestId: "mine"}); err != nil || !a.GetSuccess() {
				t.Errorf("abort: %v, %v", a, err)
			}
		}
		for recv() == nil {
		}
		r.idle(t)
		if e := r.ends(); len(e) != 1 || e[0].Finish != "abort" {
			t.Errorf("%s: ends %+v", kind, e)
		}
	}
}

func TestAsOneEngine(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.VLLM, Ranks: 2}, 2, nil)
	ctx, c := t.Context(), vllm.NewVllmEngineClient(r.conn)
	if a, err := c.HealthCheck(ctx, &vllm.HealthCheckRequest{}); err != nil || !a.GetHealthy() {
		t.Errorf("HealthCheck: %v, %v", a, err)
	}
	if a, err := c.GetModelInfo(ctx, &vllm.GetModelInfoRequest{}); err != nil || a.GetServedModelName() != "m" {
		t.Errorf("GetModelInfo: %v, %v", a, err)
	}
	if a, err := c.GetServerInfo(ctx, &vllm.GetServerInfoRequest{}); err != nil || a.GetDataParallelSize() != 2 || a.GetBlockSize() != 16 {
		t.Errorf("GetServerInfo: %v, %v", a, err)
	}
	if a, err := c.GetLoads(ctx, &vllm.GetLoadsRequest{}); err != nil || len(a.GetLoads()) != 4 || a.GetDpRankCount() != 4 {
		t.Errorf("GetLoads: %v, %v", a, err)
	}
	if _, err := c.FlushCache(ctx, nil); status.Code(err) != codes.Unimplemented {
		t.Errorf("FlushCache: %v", err)
	}
	sg := sglang.NewSglangSchedulerClient(r.conn)
	if a, err := sg.HealthCheck(ctx, &sglang.HealthCheckRequest{}); err != nil || a.GetHealthy() {
		t.Errorf("HealthCheck of a kind that nobody is: %v, %v", a, err)
	}
	if _, err := sg.GetModelInfo(ctx, &sglang.GetModelInfoRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("GetModelInfo of a kind that nobody is: %v", err)
	}
	h := healthpb.NewHealthClient(r.conn)
	waitFor(t, "the health service to see the fleet", func() bool {
		a, err := h.Check(ctx, &healthpb.HealthCheckRequest{Service: "vllm.grpc.engine.VllmEngine"})
		return err == nil && a.GetStatus() == healthpb.HealthCheckResponse_SERVING
	})
	rs, err := reflectionpb.NewServerReflectionClient(r.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := rs.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: "sglang.grpc.scheduler.SglangScheduler",
	}}); err != nil {
		t.Fatal(err)
	}
	if a, err := rs.Recv(); err != nil || len(a.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("reflection: %v, %v", a, err)
	}
}

func TestBadRequests(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.VLLM}, 1, func(o *Options) { o.MaxMessage = 1 << 20 })
	ctx := t.Context()
	for _, c := range []struct {
		name string
		ctx  context.Context
		q    *vllm.GenerateRequest
		code codes.Code
		says string
	}{
		{"no tokens", ctx, vllmRequest("", nil, 1), codes.InvalidArgument, "input_ids"},
		{"an unknown model", metadata.AppendToOutgoingContext(ctx, mdModel, "x"), vllmRequest("", prompt(40, 40, 0), 1), codes.NotFound, "model_not_found"},
		{"an unknown worker", metadata.AppendToOutgoingContext(ctx, mdTarget, "x"), vllmRequest("", prompt(40, 40, 0), 1), codes.InvalidArgument, "worker_not_found"},
		{"an odd rank", metadata.AppendToOutgoingContext(ctx, mdRank, "x"), vllmRequest("", prompt(40, 40, 0), 1), codes.InvalidArgument, mdRank},
		{"too large", ctx, vllmRequest(strings.Repeat("x", 2<<20), prompt(40, 40, 0), 1), codes.ResourceExhausted, "larger than max"},
	} {
		_, err := generateVLLM(c.ctx, r.conn, c.q)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.code, c.says)
		}
	}
	for _, junk := range []string{"\xff", "\x12\x7f", "\x12\x02\x12\x7f", "\x0f", strings.Repeat("\x80", 40)} {
		s, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/vllm.grpc.engine.VllmEngine/Generate", grpc.ForceCodecV2(newCodec()))
		if err != nil {
			t.Fatal(err)
		}
		if err = s.SendMsg(&frame{[]byte(junk)}); err == nil {
			_ = s.CloseSend()
			err = s.RecvMsg(&frame{})
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("junk %q: %v", junk, err)
		}
	}
	r.idle(t)
}

// TestPublisherBeginsAnew: the engines keep their caches and announce nothing of them
// again, so that the index never learns of what they go on from there. Their answers
// tell, and every chat finds what it left on whoever answered it last.
func TestPublisherBeginsAnew(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.VLLM}, 3, nil)
	const chats = 24
	turn := func(n int) (cached int, at [chats]string) {
		for i := range chats {
			a, err := generateVLLM(t.Context(), r.conn, vllmRequest("", prompt(320+64*n, 0, 50*i), 1))
			if err != nil {
				t.Fatal(err)
			}
			cached, at[i] = cached+int(a.cached), a.worker
		}
		return cached, at
	}
	turn(0)
	if got, _ := turn(1); got != chats*320 {
		t.Fatalf("before: %d tokens out of the caches, want %d", got, chats*320)
	}
	waitFor(t, "predictions to end", func() bool { return r.overlay.Stats().PredictedEntries == 0 })
	for _, w := range r.engines.Workers() {
		for _, p := range w.Engine.Publishers() {
			if err := p.Rebind(); err != nil {
				t.Fatal(err)
			}
		}
	}
	waitFor(t, "the index to forget", func() bool { return r.index.Stats().Blocks == 0 })
	found, at := turn(2) // by chance
	waitFor(t, "predictions to end", func() bool { return r.overlay.Stats().PredictedEntries == 0 })
	s := r.overlay.Stats()
	t.Logf("by chance %d tokens out of the caches; %d chats confirmed", found, s.Confirmed)
	if found < 384 || s.Confirmed != uint64(found/384) {
		t.Fatalf("%d chats came to who had them, %d are confirmed", found/384, s.Confirmed)
	}
	got, then := turn(3)
	if want := chats * 448; got != want || then != at {
		t.Errorf("%d tokens out of the caches, want %d; the same workers as before: %t", got, want, then == at)
	}
	if s = r.overlay.Stats(); s.ConfirmedUsed < uint64(found/384) || s.Contradicted != 0 {
		t.Errorf("%d matches of what was confirmed, %d contradicted", s.ConfirmedUsed, s.Contradicted)
	}
}

// TestBurstOfSiblings: 64 identical prompts at once, and no event for half a second:
// with a bound of two engines to a prefix two have them, and the index hears of nothing.
func TestBurstOfSiblings(t *testing.T) {
	r := newSpreadRig(t, engine.Config{Engine: engine.VLLM}, 4, 2, nil)
	for _, w := range r.engines.Workers() {
		for _, p := range w.Engine.Publishers() {
			p.Delay(500 * time.Millisecond)
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	used := map[string]int{}
	for range 64 {
		wg.Go(func() {
			a, err := generateVLLM(t.Context(), r.conn, vllmRequest("", prompt(4096, 4096, 0), 1))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			used[a.worker]++
		})
	}
	wg.Wait()
	if n := r.index.Stats().Blocks; n != 0 {
		t.Errorf("the index has %d blocks before any event", n)
	}
	s := r.overlay.Stats()
	if len(used) > 2 || s.Predicted == 0 {
		t.Errorf("on %d engines, and the bound is 2: %v; %d predicted", len(used), used, s.Predicted)
	}
	waitFor(t, "predictions to end", func() bool { return r.overlay.Stats().PredictedEntries == 0 })
	waitFor(t, "events", func() bool { return r.index.Stats().Blocks >= 256 })
}

func TestTheFleetIsAsked(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.VLLM}, 2, nil)
	for _, w := range r.workers {
		w.SetState(fleet.Draining)
	}
	if _, err := generateVLLM(t.Context(), r.conn, vllmRequest("", prompt(40, 40, 0), 1)); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no_available_workers") {
		t.Errorf("all drain: %v", err)
	}
}
