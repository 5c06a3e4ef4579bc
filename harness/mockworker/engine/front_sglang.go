// SPDX-License-Identifier: Apache-2.0

// Before: a client of SGLang's contract. After: front.go.

package engine

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"kindex/proto/peer/common"
	"kindex/proto/peer/sglang"
)

// sglangFront is SGLang's contract, as far as a gateway asks for it.
type sglangFront struct {
	sglang.UnimplementedSglangSchedulerServer
	worker *Worker
	engine *Engine
}

func (f *sglangFront) Generate(q *sglang.GenerateRequest, out grpc.ServerStreamingServer[sglang.GenerateResponse]) error {
	tokens := q.GetTokenized().GetInputIds()
	if len(tokens) == 0 {
		return status.Error(codes.InvalidArgument, "tokenized.input_ids: must not be empty: the engine has no tokenizer")
	}
	lora := q.GetLoraId()
	if c := &f.engine.cfg; lora != "" && !slices.Contains(c.LoRA, lora) {
		return status.Errorf(codes.InvalidArgument, "lora_id: %q: must be an adapter that is served: %s", lora, strings.Join(c.LoRA, ", "))
	}
	p := q.GetSamplingParams()
	most := f.engine.cfg.MaxTokens
	if p != nil && p.MaxNewTokens != nil {
		most = int(p.GetMaxNewTokens())
	}
	n := uint32(len(tokens))
	return answered(f.worker.answer(out.Context(), Request{
		ID: q.GetRequestId(), Tokens: tokens, LoRA: lora, MaxTokens: most, Stops: p.GetStopTokenIds(), Rank: rankOf(q.DataParallelRank),
	}, p.GetN(), func(choice uint32, o Output, all []uint32) error {
		if q.GetStream() && o.Finish != aborted {
			if err := out.Send(&sglang.GenerateResponse{RequestId: q.GetRequestId(), Response: &sglang.GenerateResponse_Chunk{Chunk: &sglang.GenerateStreamChunk{
				TokenIds: []uint32{o.Token}, PromptTokens: n, CompletionTokens: uint32(o.Generated), CachedTokens: uint32(o.Cached), Index: choice,
			}}}); err != nil {
				return err
			}
		}
		if o.Finish == "" {
			return nil
		}
		done := &sglang.GenerateComplete{
			OutputIds: all, FinishReason: o.Finish, PromptTokens: n, CompletionTokens: uint32(o.Generated), CachedTokens: uint32(o.Cached),
			Index: choice,
		}
		if o.Finish == stopped {
			done.MatchedStop = &sglang.GenerateComplete_MatchedTokenId{MatchedTokenId: o.Token}
		}
		return out.Send(&sglang.GenerateResponse{RequestId: q.GetRequestId(), Response: &sglang.GenerateResponse_Complete{Complete: done}})
	}))
}

func (f *sglangFront) Embed(ctx context.Context, q *sglang.EmbedRequest) (*sglang.EmbedResponse, error) {
	rank := -1
	if n := q.GetDataParallelRank(); n > 0 { // 0 is also what is there where nobody chose
		rank = int(n)
	}
	v, err := f.worker.embed(ctx, q.GetRequestId(), q.GetTokenized().GetInputIds(), rank)
	if err != nil {
		return nil, answered(err)
	}
	return &sglang.EmbedResponse{Embedding: v, PromptTokens: uint32(len(q.GetTokenized().GetInputIds())), EmbeddingDim: uint32(len(v))}, nil
}

func (f *sglangFront) HealthCheck(context.Context, *sglang.HealthCheckRequest) (*sglang.HealthCheckResponse, error) {
	return &sglang.HealthCheckResponse{Healthy: true, Message: "healthy"}, nil
}

func (f *sglangFront) Abort(_ context.Context, q *sglang.AbortRequest) (*sglang.AbortResponse, error) {
	if f.engine.abortNamed(q.GetRequestId()) {
		return &sglang.AbortResponse{Success: true}, nil
	}
	return &sglang.AbortResponse{Message: "no such request runs"}, nil
}

func (f *sglangFront) FlushCache(context.Context, *common.FlushCacheRequest) (*common.FlushCacheResponse, error) {
	ok, message := f.engine.flush()
	return &common.FlushCacheResponse{Success: ok, Message: message}, nil
}

func (f *sglangFront) GetModelInfo(context.Context, *sglang.GetModelInfoRequest) (*sglang.GetModelInfoResponse, error) {
	c := &f.engine.cfg
	return &sglang.GetModelInfoResponse{
		ModelPath: c.ModelPath, IsGeneration: true, MaxContextLength: int32(c.ContextLength), VocabSize: int32(c.Vocabulary),
		ServedModelName: c.Model, TokenizerPath: c.ModelPath, ModelType: "llama", Architectures: []string{"LlamaForCausalLM"},
		EosTokenIds: []int32{eosWord}, BosTokenId: bosWord, MaxReqInputLen: int32(c.ContextLength),
	}, nil
}

func (f *sglangFront) GetServerInfo(context.Context, *sglang.GetServerInfoRequest) (*sglang.GetServerInfoResponse, error) {
	active, most := 0, 0
	for _, l := range f.engine.Loads() {
		active += l.Running + l.Waiting
		most += l.MaxTokens
	}
	return &sglang.GetServerInfoResponse{
		ActiveRequests: int32(active), LastReceiveTimestamp: seconds(time.Now()), UptimeSeconds: time.Since(f.engine.started).Seconds(),
		SglangVersion: f.engine.cfg.Version, ServerType: "grpc", StartTime: timestamppb.New(f.engine.started), MaxTotalNumTokens: int32(most),
	}, nil
}

func (f *sglangFront) GetLoads(_ context.Context, q *sglang.GetLoadsRequest) (*sglang.GetLoadsResponse, error) {
	out := &sglang.GetLoadsResponse{Timestamp: time.Now().UTC().Format(time.RFC3339Nano), Version: f.engine.cfg.Version, DpRankCount: int32(f.engine.cfg.Ranks)}
	for _, l := range f.engine.Loads() {
		if !chosen(&l, q.DpRank) {
			continue
		}
		out.Loads = append(out.Loads, &sglang.SchedulerLoad{
			DpRank: int32(l.Rank), NumRunningReqs: int32(l.Running), NumWaitingReqs: int32(l.Waiting), NumTotalReqs: int32(l.Running + l.Waiting),
			NumUsedTokens: int32(l.UsedTokens), MaxTotalNumTokens: int32(l.MaxTokens), TokenUsage: ratio(l.UsedTokens, l.MaxTokens),
			GenThroughput: l.Throughput, CacheHitRate: l.HitRate, Utilization: ratio(l.Running, l.MaxRunning),
			MaxRunningRequests: int32(l.MaxRunning), NumWaitingUncachedTokens: int32(l.WaitingUncached),
		})
	}
	return out, nil
}
