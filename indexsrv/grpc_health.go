// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// readyName is the service that health checks ask for readiness, as /readyz has it.
const readyName = "ready"

// healthPeriod is how often a watch of a service's health looks.
const healthPeriod = 200 * time.Millisecond

// healthService is grpc.health.v1: the host ("") and its services serve until they
// drain; "ready" serves once every stream is exact or given up.
type healthService struct {
	healthpb.UnimplementedHealthServer
	s *rpcServer
}

// status returns how a service stands; ok is false for one that is not known.
func (h healthService) status(service string) (st healthpb.HealthCheckResponse_ServingStatus, ok bool) {
	serving := h.s.ctx.Err() == nil && !h.s.h.draining.Load()
	switch service {
	case "":
	case readyName:
		serving = serving && len(h.s.h.Unready()) == 0
	default:
		if _, ok := h.s.server.GetServiceInfo()[service]; !ok {
			return healthpb.HealthCheckResponse_SERVICE_UNKNOWN, false
		}
	}
	if serving {
		return healthpb.HealthCheckResponse_SERVING, true
	}
	return healthpb.HealthCheckResponse_NOT_SERVING, true
}

// Check implements healthpb.HealthServer.
func (h healthService) Check(_ context.Context, m *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	st, ok := h.status(m.GetService())
	if !ok {
		return nil, status.Errorf(codes.NotFound, "service: must be empty, %s or a service of this host, not %.100q", readyName, m.GetService())
	}
	return &healthpb.HealthCheckResponse{Status: st}, nil
}

// Watch implements healthpb.HealthServer.
func (h healthService) Watch(m *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	tick := time.NewTicker(healthPeriod)
	defer tick.Stop()
	told := healthpb.HealthCheckResponse_UNKNOWN
	for {
		if st, _ := h.status(m.GetService()); st != told {
			told = st
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-tick.C:
		}
	}
}
