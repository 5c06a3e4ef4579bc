// SPDX-License-Identifier: Apache-2.0

// Before: gRPC calls. After: the services.

package indexsrv

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"kindex/internal/lookuppb"
	"kindex/internal/secure"
	kindexv1 "kindex/proto/kindex/v1"
)

// rpcAccess is what each method of the host's own services asks for, as the HTTP
// route does that answers the same.
var rpcAccess = map[string]access{
	kindexv1.IndexService_Lookup_FullMethodName:             toRead,
	kindexv1.IndexService_LookupStream_FullMethodName:       toRead,
	kindexv1.WorkersService_ListWorkers_FullMethodName:      toRead,
	kindexv1.WorkersService_WatchWorkers_FullMethodName:     toRead,
	kindexv1.WorkersService_WatchLoads_FullMethodName:       toRead,
	kindexv1.WorkersService_RegisterWorker_FullMethodName:   toChange,
	kindexv1.WorkersService_UnregisterWorker_FullMethodName: toChange,
	kindexv1.ContentService_Dump_FullMethodName:             toRead,
	kindexv1.ContentService_Digest_FullMethodName:           toRead,
	kindexv1.StatsService_GetStats_FullMethodName:           toRead,
	kindexv1.ExplainService_Explain_FullMethodName:          toRead,
}

// accessOf returns what an RPC asks for. Health is open as HTTP's is; what nobody
// thought of is for administrators.
func accessOf(method string) access {
	if secure.HealthMethod(method) {
		return openToAll
	}
	if strings.HasPrefix(method, "/grpc.reflection.") {
		return toRead
	}
	if a, ok := rpcAccess[method]; ok {
		return a
	}
	return toAdmin
}

// rpcOptions are what a gRPC server at p needs: certificates, and who may call
// what. Handlers find the actor in their context.
func (g *gate) rpcOptions(p *port) []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			ctx, err := g.admitRPC(ctx, p, info.FullMethod)
			if err != nil {
				return nil, err
			}
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			ctx, err := g.admitRPC(stream.Context(), p, info.FullMethod)
			if err != nil {
				return err
			}
			again := func() error {
				_, err := g.admitRPC(stream.Context(), p, info.FullMethod)
				return err
			}
			return next(srv, &actedStream{ServerStream: stream, ctx: ctx, last: time.Now(), again: again})
		}),
	}
	if g.rpc != nil {
		options = append(options, grpc.Creds(secure.Credentials(g.rpc, func(remote net.Addr, err error) { g.audit.handshake(remote, "grpc", err) })))
	}
	return options
}

// admitEvery is how long a stream may go on before it is asked anew who it is.
const admitEvery = time.Second

// errRPCNoLonger ends a stream that was let in and would not be now. It is to be asked
// again, with what the caller has to show then.
var errRPCNoLonger = lookuppb.Status(refuse(ErrUnavailable, "the token of this stream is not one of this host's any more, or may less: call again"))

// actedStream is a stream whose context has its actor, and which lasts no longer than
// the right to it.
type actedStream struct {
	grpc.ServerStream
	ctx   context.Context
	again func() error // whether it would still be let in

	mu   sync.Mutex
	last time.Time // when it was let in
}

// admitted returns why the stream must end; nil: it goes on.
func (s *actedStream) admitted() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.last) < admitEvery {
		return nil
	}
	s.last = now
	if s.again() != nil {
		return errRPCNoLonger
	}
	return nil
}

// RecvMsg implements grpc.ServerStream.
func (s *actedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.admitted()
}

// SendMsg implements grpc.ServerStream.
func (s *actedStream) SendMsg(m any) error {
	if err := s.admitted(); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

// Context implements grpc.ServerStream.
func (s *actedStream) Context() context.Context { return s.ctx }

// admitRPC lets a call in, or returns why not, as a status.
func (g *gate) admitRPC(ctx context.Context, p *port, method string) (context.Context, error) {
	need := accessOf(method)
	caller, no := g.admit(p, method, need, secure.Authorization(ctx))
	if no == nil {
		if need.role > secure.RoleRead {
			ctx = withActor(ctx, rpcActor(ctx, caller))
		}
		return ctx, nil
	}
	g.audit.refused(rpcActor(ctx, caller), method, no.reason, no.text)
	if no.unknown() {
		return ctx, status.Error(codes.Unauthenticated, no.text)
	}
	return ctx, status.Error(codes.PermissionDenied, no.text)
}

// rpcActor is who makes a call.
func rpcActor(ctx context.Context, caller secure.Caller) actor {
	a := actor{who: caller.Name, via: "grpc", role: caller.Role}
	if p, ok := peer.FromContext(ctx); ok {
		a.remote = p.Addr.String()
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			a.certificate = secure.CertificateName(info.State.PeerCertificates[0])
		}
	}
	a.named()
	return a
}
