// SPDX-License-Identifier: Apache-2.0

package lookuppb

import (
	"slices"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	kindexv1 "kindex/proto/kindex/v1"
)

// EncodeQuery returns q as a message. Lookups do without it: see AppendRequest.
func EncodeQuery(q *lookup.Query) *kindexv1.Query {
	m := &kindexv1.Query{
		ModelName: q.Model, RoutingGroup: q.Group, TenantId: q.Tenant, LoraName: q.LoRA, CacheSalt: q.Salt,
		TokenIds: q.Tokens, ExtraKeys: q.Extra, Limit: uint32(q.Limit),
	}
	for _, h := range q.Hashes {
		m.BlockHashes = append(m.BlockHashes, uint64(h))
	}
	if q.Only != nil {
		m.Instances = &kindexv1.Instances{Ids: q.Only}
	}
	return m
}

// DecodeQuery returns what EncodeQuery was given.
func DecodeQuery(m *kindexv1.Query) *lookup.Query {
	q := &lookup.Query{
		Model: m.GetModelName(), Group: m.GetRoutingGroup(), Tenant: m.GetTenantId(), LoRA: m.GetLoraName(), Salt: m.GetCacheSalt(),
		Tokens: m.GetTokenIds(), Extra: m.GetExtraKeys(), Limit: int(m.GetLimit()),
	}
	for _, h := range m.GetBlockHashes() {
		q.Hashes = append(q.Hashes, kv.ContentHash(h))
	}
	if m.GetInstances() != nil {
		q.Only = append([]string{}, m.GetInstances().GetIds()...)
	}
	return q
}

// EncodeExplanation returns e as a message.
func EncodeExplanation(e *lookup.Explanation) *kindexv1.ExplainResponse {
	m := &kindexv1.ExplainResponse{
		ModelName: e.Model, RoutingGroup: e.Group, TenantId: e.Tenant,
		BlockSize: uint32(e.BlockSize), Blocks: uint32(e.Blocks), TailTokens: uint32(e.Tail), More: uint32(e.More),
	}
	for i := range e.Holders {
		d := &e.Holders[i]
		h := &kindexv1.ExplainedHolder{
			InstanceId: d.Instance.Text, InstanceIsNumber: d.Instance.Number, DpRank: uint32(d.Rank),
			Status: d.Status, LastError: d.LastError, Epoch: d.Epoch, LastSeq: d.LastSeq,
			Device: d.Device, Host: d.Host, Any: d.Any, Orphans: d.Orphans, MoreRuns: uint32(d.MoreRuns),
			Reasons: d.Reasons, Why: d.Why, Below: d.Below, Next: d.Next,
		}
		for _, r := range d.Runs {
			x := &kindexv1.ExplainedRun{First: r.First, Blocks: r.Blocks, Waiting: r.Waiting}
			for _, t := range r.Tiers {
				x.Tiers = append(x.Tiers, kindexv1.Tier(1+slices.Index(lookup.Tiers[:], t)))
			}
			h.Runs = append(h.Runs, x)
		}
		m.Holders = append(m.Holders, h)
	}
	return m
}

// DecodeExplanation returns what EncodeExplanation was given. Tiers that this program
// does not know are left out.
func DecodeExplanation(m *kindexv1.ExplainResponse) *lookup.Explanation {
	e := &lookup.Explanation{
		Model: m.GetModelName(), Group: m.GetRoutingGroup(), Tenant: m.GetTenantId(),
		BlockSize: int(m.GetBlockSize()), Blocks: int(m.GetBlocks()), Tail: int(m.GetTailTokens()), More: int(m.GetMore()),
		Holders: []lookup.Explained{},
	}
	for _, h := range m.GetHolders() {
		d := lookup.Explained{
			Instance: lookup.ExplainedID{Text: h.GetInstanceId(), Number: h.GetInstanceIsNumber()}, Rank: int(h.GetDpRank()),
			Status: h.GetStatus(), LastError: h.GetLastError(), Epoch: h.GetEpoch(), LastSeq: h.LastSeq,
			Device: h.GetDevice(), Host: h.GetHost(), Any: h.GetAny(), Orphans: h.GetOrphans(), MoreRuns: int(h.GetMoreRuns()),
			Reasons: append([]string{}, h.GetReasons()...), Why: append([]string{}, h.GetWhy()...), Below: h.GetBelow(), Next: h.Next,
			Runs: []lookup.Run{},
		}
		for _, x := range h.GetRuns() {
			r := lookup.Run{First: x.GetFirst(), Blocks: x.GetBlocks(), Waiting: x.GetWaiting(), Tiers: []string{}}
			for _, t := range x.GetTiers() {
				if i := int(t) - 1; i >= 0 && i < len(lookup.Tiers) {
					r.Tiers = append(r.Tiers, lookup.Tiers[i])
				}
			}
			d.Runs = append(d.Runs, r)
		}
		e.Holders = append(e.Holders, d)
	}
	return e
}
