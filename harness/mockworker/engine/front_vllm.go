// SPDX-License-Identifier: Apache-2.0

// Before: a client of vLLM's contract. After: front.go.

package engine

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/proto/peer/common"
	"kindex/proto/peer/vllm"
)

// vllmFront is vLLM's contract, as far as a gateway asks for it.
type vllmFront struct {
	vllm.UnimplementedVllmEngineServer
	worker *Worker
	engine *Engine
}

func (f *vllmFront) Generate(q *vllm.GenerateRequest, out grpc.ServerStreamingServer[vllm.GenerateResponse]) error {
	tokens := q.GetTokenized().GetInputIds()
	if len(tokens) == 0 {
		return status.Error(codes.InvalidArgument, "tokenized.input_ids: must not be empty: the engine has no tokenizer")
	}
	p := q.GetSamplingParams()
	most := f.engine.cfg.MaxTokens
	if p != nil && p.MaxTokens != nil {
		most = int(p.GetMaxTokens())
	}
	n := uint32(len(tokens))
	return answered(f.worker.answer(out.Context(), Request{
		ID: q.GetRequestId(), Tokens: tokens, MaxTokens: most, Stops: p.GetStopTokenIds(), Rank: rankOf(q.DataParallelRank),
	}, p.GetN(), func(choice uint32, o Output, all []uint32) error {
		if q.GetStream() && o.Finish != aborted {
			if err := out.Send(&vllm.GenerateResponse{Response: &vllm.GenerateResponse_Chunk{Chunk: &vllm.GenerateStreamChunk{
				TokenIds: []uint32{o.Token}, PromptTokens: n, CompletionTokens: uint32(o.Generated), CachedTokens: uint32(o.Cached), Index: choice,
			}}}); err != nil {
				return err
			}
		}
		if o.Finish == "" {
			return nil
		}
		done := &vllm.GenerateComplete{
			OutputIds: all, FinishReason: o.Finish, PromptTokens: n, CompletionTokens: uint32(o.Generated), CachedTokens: uint32(o.Cached),
			Index: choice,
		}
		if o.Finish == stopped {
			done.MatchedStop = &vllm.GenerateComplete_MatchedTokenId{MatchedTokenId: o.Token}
		}
		return out.Send(&vllm.GenerateResponse{Response: &vllm.GenerateResponse_Complete{Complete: done}})
	}))
}

func (f *vllmFront) Embed(ctx context.Context, q *vllm.EmbedRequest) (*vllm.EmbedResponse, error) {
	v, err := f.worker.embed(ctx, q.GetRequestId(), q.GetTokenized().GetInputIds(), -1)
	if err != nil {
		return nil, answered(err)
	}
	return &vllm.EmbedResponse{Embedding: v, PromptTokens: uint32(len(q.GetTokenized().GetInputIds())), EmbeddingDim: uint32(len(v))}, nil
}

func (f *vllmFront) HealthCheck(context.Context, *vllm.HealthCheckRequest) (*vllm.HealthCheckResponse, error) {
	return &vllm.HealthCheckResponse{Healthy: true, Message: "healthy"}, nil
}

func (f *vllmFront) Abort(_ context.Context, q *vllm.AbortRequest) (*vllm.AbortResponse, error) {
	for _, id := range q.GetRequestIds() {
		f.engine.abortNamed(id)
	}
	return &vllm.AbortResponse{}, nil
}

func (f *vllmFront) FlushCache(context.Context, *common.FlushCacheRequest) (*common.FlushCacheResponse, error) {
	ok, message := f.engine.flush()
	return &common.FlushCacheResponse{Success: ok, Message: message}, nil
}

func (f *vllmFront) GetModelInfo(context.Context, *vllm.GetModelInfoRequest) (*vllm.GetModelInfoResponse, error) {
	c := &f.engine.cfg
	return &vllm.GetModelInfoResponse{
		ModelPath: c.ModelPath, IsGeneration: true, MaxContextLength: uint32(c.ContextLength), VocabSize: uint32(c.Vocabulary),
		ServedModelName: c.Model, TokenizerPath: c.ModelPath, ModelType: "llama", Architectures: []string{"LlamaForCausalLM"},
		EosTokenIds: []int32{eosWord}, BosTokenId: bosWord, MaxReqInputLen: int32(c.ContextLength),
	}, nil
}

func (f *vllmFront) GetServerInfo(context.Context, *vllm.GetServerInfoRequest) (*vllm.GetServerInfoResponse, error) {
	c := &f.engine.cfg
	active := 0
	for _, l := range f.engine.Loads() {
		active += l.Running + l.Waiting
	}
	return &vllm.GetServerInfoResponse{
		ActiveRequests: uint32(active), LastReceiveTimestamp: seconds(time.Now()), UptimeSeconds: time.Since(f.engine.started).Seconds(),
		ServerType: "vllm-grpc", DataParallelSize: int32(c.Ranks), BlockSize: int32(c.BlockSize), MaxNumSeqs: int32(c.MaxRunning),
	}, nil
}

func (f *vllmFront) GetLoads(_ context.Context, q *vllm.GetLoadsRequest) (*vllm.GetLoadsResponse, error) {
	out := &vllm.GetLoadsResponse{Timestamp: time.Now().UTC().Format(time.RFC3339Nano), Version: f.engine.cfg.Version, DpRankCount: int32(f.engine.cfg.Ranks)}
	for _, l := range f.engine.Loads() {
		if !chosen(&l, q.DpRank) {
			continue
		}
		usage := ratio(l.UsedTokens, l.MaxTokens)
		out.Loads = append(out.Loads, &vllm.SchedulerLoad{
			DpRank: int32(l.Rank), NumRunningReqs: int32(l.Running), NumWaitingReqs: int32(l.Waiting), NumTotalReqs: int32(l.Running + l.Waiting),
			NumUsedTokens: int32(l.UsedTokens), MaxTotalNumTokens: int32(l.MaxTokens), TokenUsage: usage, GenThroughput: l.Throughput,
			CacheHitRate: l.HitRate, Utilization: ratio(l.Running, l.MaxRunning), MaxRunningRequests: int32(l.MaxRunning),
			NumWaitingUncachedTokens: int32(l.WaitingUncached),
		})
	}
	return out, nil
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
