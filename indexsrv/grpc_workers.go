// SPDX-License-Identifier: Apache-2.0

// Before: the gRPC server. After: the registry, by the same calls as HTTP's.

package indexsrv

import (
	"context"

	"google.golang.org/grpc"

	"kindex/internal/lookup"
	"kindex/internal/lookuppb"
	kindexv1 "kindex/proto/kindex/v1"
)

// workersService tells which workers there are, and changes that.
type workersService struct {
	kindexv1.UnimplementedWorkersServiceServer
	s *rpcServer
}

// RegisterWorker implements kindexv1.WorkersServiceServer. Like HTTP's it goes on
// when the client has gone: half a registration is none.
func (w workersService) RegisterWorker(ctx context.Context, m *kindexv1.RegisterWorkerRequest) (*kindexv1.RegisterWorkerResponse, error) {
	r := Registration{
		Instance: InstanceID{m.GetInstanceId(), m.GetInstanceIsNumber()},
		Endpoint: m.GetEndpoint(), ReplayEndpoint: m.GetReplayEndpoint(),
		Model: m.GetModelName(), RoutingGroup: m.GetRoutingGroup(), Tenant: m.GetTenantId(),
		BlockSize: int(m.GetBlockSize()), Rank: int(m.GetDpRank()), Ranks: int(m.GetDpSize()),
		Engine: m.GetEngine(), Source: m.GetSource(),
	}
	if m.GetInstanceIsNumber() && !ParseID(m.GetInstanceId()).number {
		err := refuse(ErrInvalid, "instance_id: must be an integer from 0 to 18446744073709551615 in decimal where instance_is_number is set")
		w.s.h.auditRegistration(actorOf(ctx), "register", &r, err)
		return nil, lookuppb.Status(err)
	}
	if err := w.s.h.Register(context.WithoutCancel(ctx), r); err != nil {
		return nil, lookuppb.Status(err)
	}
	return &kindexv1.RegisterWorkerResponse{}, nil
}

// UnregisterWorker implements kindexv1.WorkersServiceServer.
func (w workersService) UnregisterWorker(ctx context.Context, m *kindexv1.UnregisterWorkerRequest) (*kindexv1.UnregisterWorkerResponse, error) {
	u := unregistration{
		instance: TextID(m.GetInstanceId()), model: m.GetModelName(), group: m.GetRoutingGroup(), tenant: m.GetTenantId(),
		rank: int(m.GetDpRank()), oneRankOnly: m.DpRank != nil,
	}
	if err := u.check(); err != nil {
		w.s.h.auditUnregistration(actorOf(ctx), &u, err)
		return nil, lookuppb.Status(err)
	}
	if err := w.s.h.unregister(context.WithoutCancel(ctx), &u); err != nil {
		return nil, lookuppb.Status(err)
	}
	return &kindexv1.UnregisterWorkerResponse{}, nil
}

// check returns what is wrong with u, as HTTP's fields have it.
func (u *unregistration) check() error {
	for _, f := range [...]struct {
		name, text string
		required   bool
	}{{"instance_id", u.instance.text, true}, {"model_name", u.model, true}, {"routing_group", u.group, false}, {"tenant_id", u.tenant, false}} {
		if err := checkName(f.text, f.required); err != nil {
			return refuse(ErrInvalid, "%s: %v", f.name, err)
		}
	}
	if u.rank < 0 || u.rank > maxRank {
		return refuse(ErrInvalid, "dp_rank: must be an integer from 0 to %d", maxRank)
	}
	return nil
}

// ListWorkers implements kindexv1.WorkersServiceServer.
func (w workersService) ListWorkers(ctx context.Context, m *kindexv1.ListWorkersRequest) (*kindexv1.ListWorkersResponse, error) {
	ws, err := w.s.h.Workers(ctx, lookup.Filter{Model: m.GetModelName(), Group: m.GetRoutingGroup(), Tenant: m.GetTenantId()})
	if err != nil {
		return nil, lookuppb.Status(err)
	}
	return &kindexv1.ListWorkersResponse{Workers: lookuppb.EncodeWorkers(ws)}, nil
}

// WatchLoads implements kindexv1.WorkersServiceServer.
func (w workersService) WatchLoads(m *kindexv1.WatchLoadsRequest, stream grpc.ServerStreamingServer[kindexv1.WatchLoadsResponse]) error {
	f := lookup.Filter{Model: m.GetModelName(), Group: m.GetRoutingGroup(), Tenant: m.GetTenantId()}
	var sending error
	var enc lookuppb.LoadEncoder
	err := w.s.h.Loads(stream.Context(), f, func(u *lookup.LoadUpdate) error {
		for _, m := range enc.Encode(u) {
			if sending = stream.Send(m); sending != nil {
				return sending
			}
		}
		return nil
	})
	if sending != nil {
		return sending
	}
	return lookuppb.Status(err)
}

// WatchWorkers implements kindexv1.WorkersServiceServer.
func (w workersService) WatchWorkers(m *kindexv1.WatchWorkersRequest, stream grpc.ServerStreamingServer[kindexv1.WatchWorkersResponse]) error {
	f := lookup.Filter{Model: m.GetModelName(), Group: m.GetRoutingGroup(), Tenant: m.GetTenantId()}
	var sending error
	err := w.s.h.Watch(stream.Context(), f, func(u *lookup.Update) error {
		for _, m := range lookuppb.EncodeUpdate(u) {
			if sending = stream.Send(m); sending != nil {
				return sending
			}
		}
		return nil
	})
	if sending != nil {
		return sending
	}
	return lookuppb.Status(err)
}
