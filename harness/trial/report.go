// SPDX-License-Identifier: Apache-2.0

package trial

import "slices"

// Latency is the distribution of single operations' times, in nanoseconds.
type Latency struct {
	Samples int    `json:"samples"`
	P50     uint32 `json:"p50"`
	P99     uint32 `json:"p99"`
	P999    uint32 `json:"p999"`
	Max     uint32 `json:"max"`
}

// NewLatency sorts samples and reads their quantiles; nil of none.
func NewLatency(samples []uint32) *Latency {
	if len(samples) == 0 {
		return nil
	}
	slices.Sort(samples)
	return &Latency{
		Samples: len(samples), P50: Quantile(samples, 0.5), P99: Quantile(samples, 0.99),
		P999: Quantile(samples, 0.999), Max: samples[len(samples)-1],
	}
}

// Exact counts lookups held against the reference.
type Exact struct {
	Lookups int64 `json:"lookups"`
	Wrong   int64 `json:"wrong"`
}

// Report is what every measuring command tells, as far as it applies: absent fields
// were not measured.
type Report struct {
	Command string `json:"command"`
	Corpus  string `json:"corpus"`
	Seed    uint64 `json:"seed"`

	Ops      int64 `json:"ops"`       // lookups, stored and removed events, clears
	BlockOps int64 `json:"block_ops"` // blocks looked up, stored or removed, that were timed

	CPUPerBlockOp float64 `json:"cpu_ns_per_block_op,omitempty"`
	BlockOpsPerS  float64 `json:"block_ops_per_cpu_s,omitempty"`
	Wall          float64 `json:"wall_s,omitempty"`

	Lookup       *Latency `json:"lookup_ns,omitempty"`
	CPUPerLookup float64  `json:"cpu_ns_per_lookup,omitempty"`

	PerMembership float64 `json:"bytes_per_membership,omitempty"`     // all memory of the index, free included
	PerBlock      float64 `json:"bytes_per_distinct_block,omitempty"` // the same

	Exact *Exact `json:"exact,omitempty"`

	// Of open loops, in block operations a second.
	Offered  float64 `json:"offered,omitempty"`
	Achieved float64 `json:"achieved,omitempty"`
	KeptUp   *bool   `json:"kept_up,omitempty"`
}

// SetCPU fills in what cpu nanoseconds for blocks block operations mean.
func (r *Report) SetCPU(cpu int64, blocks int64) {
	if cpu > 0 && blocks > 0 {
		r.CPUPerBlockOp = float64(cpu) / float64(blocks)
		r.BlockOpsPerS = float64(blocks) * 1e9 / float64(cpu)
	}
}
