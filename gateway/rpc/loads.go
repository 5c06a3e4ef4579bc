// SPDX-License-Identifier: Apache-2.0

// Before: a client that asks the fleet for its load. After: the newest readings.

package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"kindex/gateway/fleet"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// load is one holder's.
type load struct {
	rank                        int32 // its place among all holders of the pool
	running, waiting, most      int32
	uncached                    int32
	usage, throughput, utilised float64
}

// loadOf returns what h said last, and until it says anything what this gateway knows.
func loadOf(rank int, h *fleet.Holder) load {
	r := h.Reading()
	if r == nil {
		return load{rank: int32(rank), running: int32(h.InFlight())}
	}
	known := func(n int64) int32 { return int32(min(max(n, 0), 1<<31-1)) }
	l := load{
		rank: int32(rank), running: known(r.Running), waiting: known(r.Waiting), most: known(r.MaxRunning), uncached: known(r.WaitingUncached),
		usage: max(r.Usage, 0), throughput: max(r.Throughput, 0),
	}
	if l.most > 0 {
		l.utilised = float64(l.running) / float64(l.most)
	}
	return l
}

// loads returns those of the pool's holders, or of the one that is asked for.
func (f *front) loads(ctx context.Context, only *int32) (out []load, ranks int, err error) {
	p, err := f.pool(ctx)
	if err != nil {
		return nil, 0, err
	}
	for i, h := range p.Holders {
		if only == nil || int(*only) == i {
			out = append(out, loadOf(i, h))
		}
	}
	return out, len(p.Holders), nil
}

// version is what the fleet's answers say of the engines' release: they may differ.
const version = "kindex"

// serveLoads tells the load of all workers as that of one engine's ranks.
func (f *front) serveLoads(down grpc.ServerStream) error {
	at := time.Now().UTC().Format(time.RFC3339Nano)
	if f.engine == fleet.VLLM {
		var q vllm.GetLoadsRequest
		if err := down.RecvMsg(&q); err != nil {
			return noMessage(err)
		}
		all, ranks, err := f.loads(down.Context(), q.DpRank)
		if err != nil {
			return err
		}
		a := &vllm.GetLoadsResponse{Timestamp: at, Version: version, DpRankCount: int32(ranks)}
		for _, l := range all {
			a.Loads = append(a.Loads, &vllm.SchedulerLoad{
				DpRank: l.rank, NumRunningReqs: l.running, NumWaitingReqs: l.waiting, NumTotalReqs: l.running + l.waiting, TokenUsage: l.usage,
				GenThroughput: l.throughput, Utilization: l.utilised, MaxRunningRequests: l.most, NumWaitingUncachedTokens: l.uncached,
			})
		}
		return down.SendMsg(a)
	}
	var q sglang.GetLoadsRequest
	if err := down.RecvMsg(&q); err != nil {
		return noMessage(err)
	}
	all, ranks, err := f.loads(down.Context(), q.DpRank)
	if err != nil {
		return err
	}
	a := &sglang.GetLoadsResponse{Timestamp: at, Version: version, DpRankCount: int32(ranks)}
	for _, l := range all {
		a.Loads = append(a.Loads, &sglang.SchedulerLoad{
			DpRank: l.rank, NumRunningReqs: l.running, NumWaitingReqs: l.waiting, NumTotalReqs: l.running + l.waiting, TokenUsage: l.usage,
			GenThroughput: l.throughput, Utilization: l.utilised, MaxRunningRequests: l.most, NumWaitingUncachedTokens: l.uncached,
		})
	}
	return down.SendMsg(a)
}

// serveServerInfo has one worker tell of itself, and adds what is the fleet's: requests
// under way at this gateway, its time since it began, and ranks that can be asked for.
func (f *front) serveServerInfo(down grpc.ServerStream) error {
	var q frame
	if err := down.RecvMsg(&q); err != nil {
		return noMessage(err)
	}
	p, err := f.pool(down.Context())
	if err != nil {
		return err
	}
	w := readyOf(p)
	if w == nil {
		return f.nobody()
	}
	active, ranks := int64(0), 0
	for _, h := range p.Holders {
		active += h.InFlight()
		ranks = max(ranks, h.Rank+1)
	}
	return f.ask(down.Context(), w, "/"+f.service+"/GetServerInfo", &q, func(a *frame) error {
		up := time.Since(f.s.began).Seconds()
		if f.engine == fleet.VLLM {
			var m vllm.GetServerInfoResponse
			if err := proto.Unmarshal(a.data, &m); err != nil {
				return status.Error(codes.Internal, "the worker's answer is malformed")
			}
			m.ActiveRequests, m.UptimeSeconds, m.DataParallelSize = uint32(active), up, int32(ranks)
			return down.SendMsg(&m)
		}
		var m sglang.GetServerInfoResponse
		if err := proto.Unmarshal(a.data, &m); err != nil {
			return status.Error(codes.Internal, "the worker's answer is malformed")
		}
		m.ActiveRequests, m.UptimeSeconds = int32(active), up
		return down.SendMsg(&m)
	})
}
