// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"kindex/harness/trial"
)

// Output is what index-peers prints.
type Output struct {
	Indexer   string            `json:"indexer"`
	Mode      string            `json:"mode"`
	Corpus    string            `json:"corpus"`
	Allocator string            `json:"allocator"`
	Runs      []Run             `json:"runs"`
	Versions  map[string]string `json:"versions"`
}

// Run is one run; what its mode does not measure is zero.
type Run struct {
	BlockOps     float64 `json:"block_ops"`
	Wall         float64 `json:"wall_s"`
	PerWall      float64 `json:"block_ops_per_wall_s"`
	CPUPerBlock  float64 `json:"cpu_ns_per_block"`               // write
	WritePerCPU  float64 `json:"write_block_ops_per_lane_cpu_s"` // contend
	PerCPU       float64 `json:"block_ops_per_cpu_s"`            // mixed, all threads
	CPUPerLookup float64 `json:"cpu_ns_per_lookup"`              // contend
	Latency      *Times  `json:"latency"`                        // contend, mixed
	Half         *Looked `json:"half_load_later_lookups"`
	Full         *Looked `json:"full_load_all_lookups"`

	Loaded *Bytes `json:"loaded"`            // memory
	Swept  *Bytes `json:"after_own_cleanup"` // memory; nil: the index has none

	Window           float64 `json:"window_s"` // replay
	Offered          float64 `json:"offered_block_ops_per_s"`
	Achieved         float64 `json:"achieved_block_ops_per_s"`
	IssuedOverWindow float64 `json:"issued_over_window"`
	KeptUp           bool    `json:"kept_up"`
	Service          *Times  `json:"lookup_service"`
}

// Looked is what lookups took.
type Looked struct {
	CPU      float64  `json:"cpu_ns_per_lookup"`
	CPUNoMap *float64 `json:"cpu_ns_per_lookup_no_result_map"` // nil: the crate offers none
	Latency  *Times   `json:"latency"`
}

// Bytes are live heap bytes that the index asked for.
type Bytes struct {
	PerMembership float64 `json:"per_membership"`
	PerBlock      float64 `json:"per_distinct_block"`
}

// Times are quantiles in nanoseconds.
type Times struct {
	Samples int    `json:"samples"`
	P50     uint32 `json:"p50_ns"`
	P99     uint32 `json:"p99_ns"`
	P999    uint32 `json:"p999_ns"`
	Max     uint32 `json:"max_ns"`
}

// Parse reads one line of index-peers.
func Parse(line []byte) (*Output, error) {
	var o Output
	d := json.NewDecoder(bytes.NewReader(line))
	if err := d.Decode(&o); err != nil {
		return nil, fmt.Errorf("index-peers' output: %w", err)
	}
	if d.More() {
		return nil, errors.New("index-peers' output: more than one object")
	}
	if o.Indexer == "" || len(o.Runs) == 0 {
		return nil, errors.New("index-peers' output: no runs")
	}
	return &o, nil
}

// Last is the run that counts: the first also pays the first touch of its memory.
func (o *Output) Last() *Run { return &o.Runs[len(o.Runs)-1] }

// Question is one trial.
type Question struct {
	Indexer, Mode, Corpus    string
	Lanes, Queries, WindowMS int // 0: index-peers' defaults
	LimitOps                 int
}

// Args are index-peers' arguments for q.
func (q Question) Args() []string {
	args := []string{"--indexer", q.Indexer, "--mode", q.Mode, "--corpus", q.Corpus, "--runs", "2", "--json"}
	for _, x := range []struct {
		name  string
		value int
	}{{"--lanes", q.Lanes}, {"--query-threads", q.Queries}, {"--window-ms", q.WindowMS}, {"--limit-ops", q.LimitOps}} {
		if x.value > 0 {
			args = append(args, x.name, strconv.Itoa(x.value))
		}
	}
	return args
}

// Ask runs one trial in a fresh process.
func Ask(ctx context.Context, exe string, q Question, stderr io.Writer) (*Output, trial.Ran, error) {
	ran, err := trial.Command(ctx, stderr, exe, q.Args()...)
	if err != nil {
		return nil, ran, fmt.Errorf("index-peers --indexer %s --mode %s: %w", q.Indexer, q.Mode, err)
	}
	o, err := Parse(ran.Output)
	return o, ran, err
}
