// SPDX-License-Identifier: Apache-2.0

// Before: the gRPC server. After: the index, copied between two batches of a stream.

package indexsrv

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/internal/lookuppb"
	"kindex/internal/settings"
	kindexv1 "kindex/proto/kindex/v1"
	"kindex/shard"
)

// contentService tells what workers hold.
type contentService struct {
	kindexv1.UnimplementedContentServiceServer
	s *rpcServer
}

// Dump implements kindexv1.ContentServiceServer. A drain waits for it.
func (c contentService) Dump(m *kindexv1.DumpRequest, stream grpc.ServerStreamingServer[kindexv1.DumpResponse]) error {
	h := c.s.h
	sel, err := h.selectWorkers(lookup.Filter{Model: m.GetModelName(), Group: m.GetRoutingGroup(), Tenant: m.GetTenantId()}, m.GetInstanceId())
	if err != nil {
		return lookuppb.Status(err)
	}
	end, err := h.beginDump()
	if err != nil {
		return lookuppb.Status(err)
	}
	defer end()
	if !guardOf(stream.Context()).begin() {
		return errRPCShutdown
	}
	return sel.eachRank(func(r *rank) error {
		s, err := r.snapshot(h.idx)
		if err != nil {
			return ignoreGone(err)
		}
		if err := stream.Send(&kindexv1.DumpResponse{Part: &kindexv1.DumpResponse_Stream{Stream: r.head(&s.status)}}); err != nil {
			return err
		}
		return s.writeRuns(r.cfg.Model, runSender{stream})
	})
}

// Digest implements kindexv1.ContentServiceServer.
func (c contentService) Digest(m *kindexv1.DigestRequest, stream grpc.ServerStreamingServer[kindexv1.DigestResponse]) error {
	h := c.s.h
	sel, err := h.selectWorkers(lookup.Filter{Model: m.GetModelName(), Group: m.GetRoutingGroup(), Tenant: m.GetTenantId()}, m.GetInstanceId())
	if err != nil {
		return lookuppb.Status(err)
	}
	if !guardOf(stream.Context()).begin() {
		return errRPCShutdown
	}
	return sel.eachRank(func(r *rank) error {
		s, err := r.snapshot(h.idx)
		if err != nil {
			return ignoreGone(err)
		}
		return stream.Send(&kindexv1.DigestResponse{Stream: r.head(&s.status), Digest: s.content.Digest()})
	})
}

// eachRank calls fn for each stream of s, in the order of registration, until it
// returns an error.
func (s *selection) eachRank(fn func(*rank) error) error {
	for i := range s.models {
		for _, w := range s.models[i].workers {
			for _, r := range *w.ranks.Load() {
				if err := fn(r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// ignoreGone is err, unless that is a stream that was unregistered meanwhile.
func ignoreGone(err error) error {
	if errors.Is(err, shard.ErrUnknownHolder) {
		return nil
	}
	return err
}

// head names r's stream where it stands at st.
func (r *rank) head(st *StreamStatus) *kindexv1.StreamHead {
	w := r.worker
	h := &kindexv1.StreamHead{
		InstanceId: w.id.text, InstanceIsNumber: w.id.number,
		ModelName: w.model.name.model, RoutingGroup: w.model.name.group, TenantId: w.model.name.tenant,
		BlockSize: uint32(w.model.blockSize), DpRank: uint32(r.number),
		Cursor: &kindexv1.Cursor{Epoch: st.Epoch, Status: st.State.String(), Orphans: st.Orphans},
	}
	if st.HasSeq {
		h.Cursor.LastSeq = &st.LastSeq
	}
	return h
}

// runSender sends a stream's events.
type runSender struct {
	stream grpc.ServerStreamingServer[kindexv1.DumpResponse]
}

var wireTiers = [...]kindexv1.Tier{
	kv.TierDevice: kindexv1.Tier_TIER_DEVICE, kv.TierHost: kindexv1.Tier_TIER_HOST, kv.TierDisk: kindexv1.Tier_TIER_DISK,
}

func (d runSender) stored(run *dumpRun) error {
	m := &kindexv1.Stored{Tier: wireTiers[run.tier], Group: uint32(run.group), NamespaceSeed: run.seed, EngineHashes: engineHashes(run.engines)}
	if run.hasParent {
		parent := uint64(run.parent)
		m.Parent = &parent
	}
	for _, h := range run.contents {
		m.ContentHashes = append(m.ContentHashes, uint64(h))
	}
	return d.stream.Send(&kindexv1.DumpResponse{Part: &kindexv1.DumpResponse_Stored{Stored: m}})
}

func (d runSender) removed(hashes []kv.EngineHash) error {
	m := &kindexv1.Removed{EngineHashes: engineHashes(hashes)}
	return d.stream.Send(&kindexv1.DumpResponse{Part: &kindexv1.DumpResponse_Removed{Removed: m}})
}

func engineHashes(hashes []kv.EngineHash) []uint64 {
	out := make([]uint64, len(hashes))
	for i, h := range hashes {
		out[i] = uint64(h)
	}
	return out
}

// statsService tells how the host stands.
type statsService struct {
	kindexv1.UnimplementedStatsServiceServer
	s *rpcServer
}

// GetStats implements kindexv1.StatsServiceServer.
func (t statsService) GetStats(context.Context, *kindexv1.GetStatsRequest) (*kindexv1.GetStatsResponse, error) {
	h := t.s.h
	version, revision := settings.BuildVersion()
	m := &kindexv1.GetStatsResponse{
		Version: version, Revision: revision, KvIndex: h.cfg.KVIndex,
		Epoch: h.epoch, UptimeSeconds: time.Since(h.began).Seconds(), Ready: len(h.Unready()) == 0,
		Streams: map[string]uint64{},
	}
	for _, w := range h.reg.workers(nil) {
		m.Workers++
		for _, r := range *w.ranks.Load() {
			m.Streams[r.stream.current().String()]++
		}
	}
	for i := range h.pool.Shards() {
		st := h.idx.shardStats(i)
		m.Memberships += st.Memberships
		m.Blocks += st.Blocks
		m.Runs += st.Runs
		for p := range shard.NumPurposes {
			m.Bytes = append(m.Bytes, &kindexv1.Bytes{Purpose: p.String(), Node: uint32(h.pool.NodeOf(i)), Bytes: st.Bytes[p]})
		}
	}
	lookups, spent := h.met.lookup.total()
	m.Lookups, m.LookupSeconds = lookups, spent.Seconds()
	return m, nil
}
