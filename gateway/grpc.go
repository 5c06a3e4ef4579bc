// SPDX-License-Identifier: Apache-2.0

// Before: Serve, at the address of gRPC. After: package rpc, which serves the engines'
// own contracts there.

package gateway

import (
	"context"
	"net"
	"path"

	"github.com/valyala/fasthttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"kindex/gateway/policy"
	"kindex/gateway/route"
	"kindex/gateway/rpc"
	"kindex/internal/secure"
)

// buildRPC makes the server of gRPC, where there is to be one.
func (g *Gateway) buildRPC() error {
	c := g.cfg
	if c.GRPCListen == "" {
		return nil
	}
	o := rpc.Options{
		Fleet: g.fleet, Router: g.rpcRouter, Enter: g.enter, Ready: func() bool { return len(g.unready()) == 0 }, Answered: g.answeredRPC,
		OwnsAuthorization: g.gate.ownsAuthorization(), Retries: c.Retries, Answer: c.AnswerTimeout, Connect: c.ConnectTimeout,
		MaxMessage: int(c.MaxBodyBytes), Log: g.log,
	}
	if g.gate.rpc != nil {
		failed := func(remote net.Addr, err error) { g.gate.audit.handshake(remote, "grpc", err) }
		o.Server = append(o.Server, grpc.Creds(secure.Credentials(g.gate.rpc, failed)), grpc.ConnectionTimeout(secure.HandshakeTime))
	}
	if g.gate.authenticated() {
		o.Server = append(o.Server,
			grpc.ChainUnaryInterceptor(func(ctx context.Context, q any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				if err := g.admitRPC(ctx, info.FullMethod); err != nil {
					return nil, err
				}
				return next(ctx, q)
			}),
			grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				if err := g.admitRPC(s.Context(), info.FullMethod); err != nil {
					return err
				}
				return next(srv, s)
			}))
	}
	var err error
	g.rpc, err = rpc.New(o)
	return err
}

// rpcRouter makes the router of one kind of engine.
func (g *Gateway) rpcRouter(of route.Fleet, prompts route.Prompts) (rpc.Placer, error) {
	po := policy.DefaultOptions()
	po.Levels = g.levels
	p, err := policy.New(g.cfg.Policy, po)
	if err != nil {
		return nil, err
	}
	o := route.Options{Fleet: of, Prompts: prompts, Overlay: g.overlay, Policy: p, Told: g.told, Log: g.log}
	if g.index != nil {
		o.Index = g.index
	}
	r := route.New(o)
	g.rpcRouters = append(g.rpcRouters, r)
	return g.sheds(of, r), nil
}

// routed are the counts of all routers.
func (g *Gateway) routed() route.Stats {
	s := g.router.Stats()
	for _, r := range g.rpcRouters {
		more := r.Stats()
		s.Add(&more)
	}
	return s
}

// admitRPC returns why whoever calls a method may not.
func (g *Gateway) admitRPC(ctx context.Context, method string) error {
	if secure.HealthMethod(method) {
		return nil
	}
	_, no := g.gate.decide(&g.grpc, method, accessAsk, secure.Authorization(ctx))
	if no == nil {
		return nil
	}
	a := actor{who: anonymous, via: "grpc"}
	if p, ok := peer.FromContext(ctx); ok {
		a.remote = p.Addr.String()
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			a.certificate = secure.CertificateName(info.State.PeerCertificates[0])
			a.who = a.certificate
		}
	}
	g.gate.audit.refused(a, method, no.reason, no.Message)
	if no.Status == fasthttp.StatusUnauthorized {
		return status.Error(codes.Unauthenticated, no.Message)
	}
	return status.Error(codes.PermissionDenied, no.Message)
}

// answeredRPC hears of each call at its end.
func (g *Gateway) answeredRPC(t *rpc.Told) {
	a := answered{
		ID: t.ID, Path: "grpc/" + path.Base(t.Method), Model: t.Model, Worker: t.Worker, Rank: t.Rank, Stream: t.Stream,
		Status: fasthttp.StatusOK, Outcome: t.Outcome, Tries: t.Tries, Usage: t.Usage, Marks: t.Marks,
		Start: t.Start, Placed: t.Placed, FirstByte: t.First, FirstToken: t.First, End: t.End,
	}
	if t.Err != nil {
		code := status.Code(t.Err)
		a.Code, a.Status = code.String(), statusOf(code)
	}
	g.answered(&a)
}

// statusOf is what HTTP would have said.
func statusOf(code codes.Code) int {
	switch code {
	case codes.OK:
		return fasthttp.StatusOK
	case codes.Canceled:
		return 499
	case codes.InvalidArgument, codes.OutOfRange, codes.FailedPrecondition:
		return fasthttp.StatusBadRequest
	case codes.NotFound, codes.Unimplemented:
		return fasthttp.StatusNotFound
	case codes.Unauthenticated:
		return fasthttp.StatusUnauthorized
	case codes.PermissionDenied:
		return fasthttp.StatusForbidden
	case codes.ResourceExhausted:
		return fasthttp.StatusTooManyRequests
	case codes.Unavailable:
		return fasthttp.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return fasthttp.StatusGatewayTimeout
	case codes.Unknown, codes.AlreadyExists, codes.Aborted, codes.Internal, codes.DataLoss:
	}
	return fasthttp.StatusInternalServerError
}
