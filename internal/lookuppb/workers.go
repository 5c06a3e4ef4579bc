// SPDX-License-Identifier: Apache-2.0

package lookuppb

import (
	"kindex/internal/lookup"
	kindexv1 "kindex/proto/kindex/v1"
)

// EncodeWorkers returns ws as messages.
func EncodeWorkers(ws []lookup.Worker) []*kindexv1.Worker {
	out := make([]*kindexv1.Worker, len(ws))
	for i := range ws {
		out[i] = encodeWorker(&ws[i])
	}
	return out
}

func encodeWorker(w *lookup.Worker) *kindexv1.Worker {
	m := &kindexv1.Worker{
		InstanceId: w.Instance, InstanceIsNumber: w.Number, ModelName: w.Model, RoutingGroup: w.Group, TenantId: w.Tenant,
		BlockSize: uint32(w.BlockSize), Source: w.Source, Status: w.Status,
	}
	for i := range w.Ranks {
		r := &w.Ranks[i]
		l := &kindexv1.Listener{
			DpRank: uint32(r.Rank), Endpoint: r.Endpoint, ReplayEndpoint: r.ReplayEndpoint, Status: r.Status, LastError: r.LastError,
			Epoch: r.Epoch, Gaps: r.Gaps, RecoveredBatches: r.Recovered, LostBatches: r.Lost, Restarts: r.Restarts, Duplicates: r.Duplicates,
			Snapshots: r.Snapshots, Resets: r.Resets, RelayRanks: uint32(r.RelayRanks),
			Orphans: r.Orphans, Memberships: r.Memberships, Dropped: r.Dropped, Shard: uint32(r.Shard), Node: uint32(r.Node),
			HeldBatches: r.Held, LastBatchTime: r.LastBatch, EngineTime: r.EngineTime, Resumed: r.Resumed, ColdStart: r.Cold,
		}
		if r.HasSeq {
			l.LastSeq = &r.LastSeq
		}
		m.Listeners = append(m.Listeners, l)
	}
	return m
}

// DecodeWorkers returns what EncodeWorkers was given.
func DecodeWorkers(ms []*kindexv1.Worker) []lookup.Worker {
	out := make([]lookup.Worker, len(ms))
	for i, m := range ms {
		out[i] = decodeWorker(m)
	}
	return out
}

func decodeWorker(m *kindexv1.Worker) lookup.Worker {
	w := lookup.Worker{
		Instance: m.GetInstanceId(), Number: m.GetInstanceIsNumber(), Model: m.GetModelName(), Group: m.GetRoutingGroup(), Tenant: m.GetTenantId(),
		BlockSize: int(m.GetBlockSize()), Source: m.GetSource(), Status: m.GetStatus(),
	}
	for _, l := range m.GetListeners() {
		w.Ranks = append(w.Ranks, lookup.Rank{
			Rank: int(l.GetDpRank()), Endpoint: l.GetEndpoint(), ReplayEndpoint: l.GetReplayEndpoint(), Status: l.GetStatus(), LastError: l.GetLastError(),
			Epoch: l.GetEpoch(), HasSeq: l.LastSeq != nil, LastSeq: l.GetLastSeq(),
			Gaps: l.GetGaps(), Recovered: l.GetRecoveredBatches(), Lost: l.GetLostBatches(), Restarts: l.GetRestarts(), Duplicates: l.GetDuplicates(),
			Snapshots: l.GetSnapshots(), Resets: l.GetResets(), RelayRanks: int(l.GetRelayRanks()),
			Orphans: l.GetOrphans(), Memberships: l.GetMemberships(), Dropped: l.GetDropped(), Shard: int(l.GetShard()), Node: int(l.GetNode()),
			Held: l.GetHeldBatches(), LastBatch: l.GetLastBatchTime(), EngineTime: l.GetEngineTime(), Resumed: l.GetResumed(), Cold: l.GetColdStart(),
		})
	}
	return w
}

// maxStep is how many workers one message of a watch has.
const maxStep = 256

// EncodeUpdate returns the messages of one step of a watch.
func EncodeUpdate(u *lookup.Update) []*kindexv1.WatchWorkersResponse {
	first := &kindexv1.WatchWorkersResponse{Epoch: u.Epoch, Version: u.Version, Whole: u.Whole}
	for _, n := range u.Gone {
		first.Gone = append(first.Gone, &kindexv1.WorkerName{InstanceId: n.Instance, ModelName: n.Model, RoutingGroup: n.Group, TenantId: n.Tenant})
	}
	ms := []*kindexv1.WatchWorkersResponse{first}
	for rest := u.Workers; len(rest) > 0; {
		n := min(len(rest), maxStep)
		ms[len(ms)-1].Workers = EncodeWorkers(rest[:n])
		if rest = rest[n:]; len(rest) > 0 {
			ms[len(ms)-1].More = true
			ms = append(ms, &kindexv1.WatchWorkersResponse{Epoch: u.Epoch, Version: u.Version, Whole: u.Whole})
		}
	}
	return ms
}

// JoinUpdate adds a message to the step that u is the beginning of; nil: none yet.
// It returns the step and whether that is all of it.
func JoinUpdate(u *lookup.Update, m *kindexv1.WatchWorkersResponse) (*lookup.Update, bool) {
	if u == nil {
		u = &lookup.Update{Epoch: m.GetEpoch(), Version: m.GetVersion(), Whole: m.GetWhole()}
	}
	u.Workers = append(u.Workers, DecodeWorkers(m.GetWorkers())...)
	for _, n := range m.GetGone() {
		u.Gone = append(u.Gone, lookup.WorkerName{Instance: n.GetInstanceId(), Model: n.GetModelName(), Group: n.GetRoutingGroup(), Tenant: n.GetTenantId()})
	}
	return u, !m.GetMore()
}
