// SPDX-License-Identifier: Apache-2.0

// Before: GetLoads of the peer's contracts. After: readings of an engine's load
// (package load).

package relay

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// loadSections are what GetLoads may include.
var loadSections = []string{"core", "memory", "spec", "lora", "disagg", "queues", "all"}

// checkLoads refuses a GetLoads that names what is not there, and one that cannot
// be answered: an engine of which nothing is known must not look idle.
func (s *server) checkLoads(rank *int32, include []string) error {
	for _, name := range include {
		if !slices.Contains(loadSections, name) {
			return status.Errorf(codes.InvalidArgument, "include: %.100q must be one of %s", name, strings.Join(loadSections, ", "))
		}
	}
	name, n := s.own.engine.Name(), len(s.own.engine.Ranks())
	if rank != nil && (*rank < 0 || int(*rank) >= n) {
		return status.Errorf(codes.InvalidArgument, "dp_rank: %d, engine %s has ranks 0 to %d", *rank, name, n-1)
	}
	meter := s.own.meter
	if meter == nil {
		return status.Errorf(codes.Unimplemented,
			"GetLoads: engine %s has no source of load: give it metrics=http://host:port, loads=tcp://host:port or grpc=host:port", name)
	}
	if rank != nil && meter.Rank(int(*rank)) != nil || rank == nil && len(meter.Readings(nil)) > 0 {
		return nil
	}
	why := "none was taken yet"
	if e := meter.Stats().LastErr; e != "" {
		why = e
	}
	return status.Errorf(codes.Unavailable, "GetLoads: no reading of engine %s: %s", name, why)
}

func (s *server) vllmLoads(_ context.Context, req *vllm.GetLoadsRequest) (*vllm.GetLoadsResponse, error) {
	if err := s.checkLoads(req.DpRank, req.GetInclude()); err != nil {
		return nil, err
	}
	return s.own.meter.VLLMLoads(req, time.Now()), nil
}

func (s *server) sglangLoads(_ context.Context, req *sglang.GetLoadsRequest) (*sglang.GetLoadsResponse, error) {
	if err := s.checkLoads(req.DpRank, req.GetInclude()); err != nil {
		return nil, err
	}
	return s.own.meter.SGLangLoads(req, time.Now()), nil
}
