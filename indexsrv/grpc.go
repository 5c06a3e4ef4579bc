// SPDX-License-Identifier: Apache-2.0

// Before: gRPC clients. After: the services in the other grpc_ files.

package indexsrv

import (
	"context"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // what clients compress is understood
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"kindex/internal/connlimit"
	"kindex/internal/lookuppb"
	"kindex/internal/secure"
	kindexv1 "kindex/proto/kindex/v1"
)

// Limits of the gRPC server that are not configured. Chosen, not measured.
const (
	minPingPeriod  = 5 * time.Second  // faster pings end a connection
	pingPeriod     = 30 * time.Second // of a quiet connection, by us
	pingTimeout    = 10 * time.Second
	maxHeaderBytes = 64 << 10
	// drainPoll is how often a drain looks whether what runs has ended.
	drainPoll = 20 * time.Millisecond
)

// rpcServer is the host's gRPC server.
type rpcServer struct {
	h      *Host
	server *grpc.Server
	port   port
	ln     net.Listener
	met    *rpcMetrics

	ctx     context.Context // ends when the drain begins
	end     context.CancelFunc
	running sync.WaitGroup // handlers of streams
	calls   sync.Pool      // *rpcCall
}

var _ part = (*rpcServer)(nil)

func newRPCServer(h *Host) *rpcServer {
	s := &rpcServer{h: h}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.calls.New = func() any { return newRPCCall(s) }
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(lookuppb.NewCodec()),
		grpc.MaxRecvMsgSize(int(h.cfg.MaxBodyBytes)),
		grpc.MaxConcurrentStreams(uint32(h.cfg.GRPCStreams)),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(secure.HandshakeTime),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingPeriod, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingPeriod, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(s.unary),
		grpc.ChainStreamInterceptor(s.stream),
	}
	s.server = grpc.NewServer(append(options, h.gate.rpcOptions(&s.port)...)...)
	s.server.RegisterService(&lookupService, s)
	kindexv1.RegisterWorkersServiceServer(s.server, workersService{s: s})
	kindexv1.RegisterContentServiceServer(s.server, contentService{s: s})
	kindexv1.RegisterStatsServiceServer(s.server, statsService{s: s})
	kindexv1.RegisterExplainServiceServer(s.server, explainService{s: s})
	healthpb.RegisterHealthServer(s.server, healthService{s: s})
	reflection.Register(s.server)
	s.met = newRPCMetrics(s.server)
	return s
}

func (s *rpcServer) listen() error {
	ln, err := net.Listen("tcp", s.h.cfg.GRPCListen)
	if err != nil {
		return err // names the address and what is wrong with it
	}
	s.ln = ln
	s.h.gate.taken(&s.port, ln.Addr())
	return nil
}

// GRPCAddr returns the address that Listen took for gRPC, or nil where there is
// none.
func (h *Host) GRPCAddr() net.Addr {
	if h.rpc == nil || h.rpc.ln == nil {
		return nil
	}
	return h.rpc.ln.Addr()
}

func (s *rpcServer) serve() error {
	s.h.log.Info("serving", "grpc", s.ln.Addr().String())
	return s.server.Serve(&stallListener{
		connlimit.New(s.ln, s.h.cfg.MaxConnections, &s.met.turnedAway), s.h.cfg.WriteStallTimeout,
	})
}

// drain ends the server: no new calls, streams without work end at once, others
// when they have done it.
func (s *rpcServer) drain(ctx context.Context) error {
	s.end()
	graceful := make(chan struct{})
	go func() {
		s.server.GracefulStop()
		s.running.Wait()
		close(graceful)
	}()
	select {
	case <-graceful:
	case <-ctx.Done():
		s.server.Stop()
		<-graceful
	}
	_ = s.ln.Close() // a server that had not begun to accept knows no listener
	return nil
}

// errRPCShutdown is what streams are told at shutdown, and errRPCStalled is what a
// client is told that could be told nothing.
var (
	errRPCShutdown = lookuppb.Status(refuse(ErrUnavailable, "this host shuts down"))
	errRPCStalled  = lookuppb.Status(refuse(ErrUnavailable, "the client takes nothing of its answers"))
)

// enter takes a place among the calls, or says that there is none.
func (s *rpcServer) enter(method string) error {
	if s.met.open.Add(1) > int64(s.h.cfg.GRPCCalls) && !secure.HealthMethod(method) {
		return lookuppb.Status(refuse(ErrUnavailable, "busy: %d calls are under way, all that grpc-max-calls allows", s.h.cfg.GRPCCalls))
	}
	return nil
}

// unary admits one call, counts it, and turns a panic into an answer: a fault that
// one call meets must not take the host from all others.
func (s *rpcServer) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
	defer s.finish(info.FullMethod, &err)
	if err := s.enter(info.FullMethod); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

// finish is deferred by whoever runs a handler.
func (s *rpcServer) finish(method string, err *error) {
	s.met.open.Add(-1)
	s.recovered(method, recover(), err)
	s.met.call(method, *err)
}

// recovered makes *err of a panic.
func (s *rpcServer) recovered(method string, p any, err *error) {
	if p == nil {
		return
	}
	s.met.panics.Add(1)
	s.h.log.Error("call failed", "method", method, "panic", p, "stack", string(debug.Stack()))
	*err = lookuppb.Status(lookuppb.ErrInternal)
}

// stream is unary for streams. The handler runs beside, so that one whose client
// takes nothing can be left behind, and one that only waits ended.
func (s *rpcServer) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer s.finish(info.FullMethod, &err)
	if err := s.enter(info.FullMethod); err != nil {
		return err
	}
	g := &guarded{ServerStream: stream}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	g.ctx = context.WithValue(ctx, guardKey{}, g)
	ended := make(chan error, 1)
	s.running.Go(func() {
		var err error
		defer func() { ended <- err }()
		defer func() { s.recovered(info.FullMethod, recover(), &err) }()
		err = next(srv, g)
	})
	return s.supervise(g, ended)
}

// supervise waits for a handler's end, or for a reason to go without it.
func (s *rpcServer) supervise(g *guarded, ended <-chan error) error {
	stall := s.h.cfg.WriteStallTimeout
	tick := time.NewTicker(max(stall/4, drainPoll))
	defer tick.Stop()
	draining := s.ctx.Done()
	for {
		select {
		case err := <-ended:
			return err
		case now := <-tick.C:
			if since := g.sending.Load(); since != 0 && now.UnixNano()-since > int64(stall) {
				s.met.stalled.Add(1)
				return errRPCStalled
			}
		case <-draining:
			draining = nil
			tick.Reset(drainPoll)
		}
		if draining == nil && g.state.CompareAndSwap(streamIdle, streamEnded) {
			return errRPCShutdown
		}
	}
}

// States of a stream's handler.
const (
	streamIdle  = iota // it waits for something to do
	streamBusy         // a drain waits for it
	streamEnded        // by a drain: it must do nothing more
)

// guarded is a stream whose handler is supervised.
type guarded struct {
	grpc.ServerStream
	ctx     context.Context
	sending atomic.Int64 // since when SendMsg waits, Unix ns; 0: it does not
	state   atomic.Int32
}

type guardKey struct{}

// guardOf returns what supervises the stream that ctx is of.
func guardOf(ctx context.Context) *guarded {
	g, ok := ctx.Value(guardKey{}).(*guarded)
	if !ok {
		panic("BUG: indexsrv: a stream without a guard")
	}
	return g
}

// Context implements grpc.ServerStream. It ends with the stream also where that is
// ended from here.
func (g *guarded) Context() context.Context { return g.ctx }

// SendMsg implements grpc.ServerStream.
func (g *guarded) SendMsg(m any) error {
	g.sending.Store(time.Now().UnixNano())
	defer g.sending.Store(0)
	return g.ServerStream.SendMsg(m)
}

// begin makes a drain wait for the handler, and reports whether it may go on.
func (g *guarded) begin() bool { return g.state.CompareAndSwap(streamIdle, streamBusy) }

// rest says that the handler waits again.
func (g *guarded) rest() { g.state.Store(streamIdle) }
