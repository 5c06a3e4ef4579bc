// SPDX-License-Identifier: Apache-2.0

// Before: gRPC clients. After: the services of the contracts, and the engine's
// own server.

package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"kindex/internal/connlimit"
	"kindex/internal/fdwait"
	"kindex/internal/secure"
	relayv1 "kindex/proto/kindex/relay/v1"
	"kindex/relay/load"
)

// Limits of a server that are not configured. Chosen, not measured.
const (
	minPingPeriod  = 5 * time.Second // faster pings end a connection
	handshakeTime  = 10 * time.Second
	maxHeaderBytes = 64 << 10
	// stuckTime is how long, at shutdown, subscribers that do not read may hold
	// up the end.
	stuckTime = time.Second
)

// A served engine is an engine with all that its listener serves.
type served struct {
	engine *Engine
	meter  *load.Meter  // nil: no load is known
	pass   *passthrough // nil: the engine's own server is not known
	// passLoads: GetLoads, too, is answered by the engine's own server.
	passLoads bool
	listen    string // the address, once it is taken
	stats     servedStats
}

// servedStats are what one listener counts.
type servedStats struct {
	subscribers [numContracts]atomic.Int64
	subscribed  [numContracts]atomic.Uint64
	messages    [numContracts]atomic.Uint64
	bytes       [numContracts]atomic.Uint64
	chunks      [numContracts]atomic.Uint64
	snapshots   [numContracts]atomic.Uint64
	ended       [numContracts][endReasons]atomic.Uint64
	refused     atomic.Uint64 // subscriptions over the limit
	passing     atomic.Int64  // RPCs that are being passed through
	passed      atomic.Uint64
	denied      atomic.Uint64 // RPCs without a good token
	handshakes  atomic.Uint64 // TLS handshakes that failed
	turnedAway  atomic.Uint64 // connections over the limit
	panics      atomic.Uint64
}

// A contract is one of those that a subscription can speak.
type contract int

const (
	contractOwn contract = iota
	contractPeer
	numContracts
)

func (c contract) String() string { return [numContracts]string{"kindex.relay.v1", "smg"}[c] }

// endReasons is one more than the reasons: the subscriber's own end.
const endReasons = int(EndClosed) + 2

// serverOptions are what all listeners of a relay have in common.
type serverOptions struct {
	tls              *tls.Config
	tokens           *secure.Tokens // nil: none is asked for
	maxMessage       int64          // bytes of a message that a client sends
	maxStreams       int            // of one connection
	maxConnections   int
	maxSubscriptions int // of one engine
	procs            *processors
	log              *slog.Logger
	byName           func(string) *served
	all              func() []*served
}

// server is the gRPC server of one engine.
type server struct {
	o       *serverOptions
	own     *served
	grpc    *grpc.Server
	health  *health.Server
	ctx     context.Context // ends when subscriptions must
	endSubs context.CancelCauseFunc
}

// errShutdown is what subscribers are told at shutdown.
var errShutdown = status.Error(codes.Unavailable, "the relay shuts down")

func newServer(o *serverOptions, own *served) *server {
	s := &server{o: o, own: own, health: health.NewServer()}
	s.ctx, s.endSubs = context.WithCancelCause(context.Background())
	unknown := notPassed(own.engine.Name(), peerService(own.engine.Kind()).ServiceName)
	if own.pass != nil {
		unknown = s.passThrough
	}
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.UnknownServiceHandler(unknown),
		grpc.MaxRecvMsgSize(int(o.maxMessage)),
		grpc.MaxConcurrentStreams(uint32(o.maxStreams)),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingPeriod, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	}
	if o.tls != nil {
		options = append(options, grpc.Creds(secure.Credentials(o.tls, func(net.Addr, error) { own.stats.handshakes.Add(1) })))
	}
	s.grpc = grpc.NewServer(options...)
	s.registerPeer()
	relayv1.RegisterRelayServiceServer(s.grpc, &ownService{server: s})
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	for name := range s.grpc.GetServiceInfo() {
		s.health.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	return s
}

// serve answers on ln until drain or an error.
func (s *server) serve(ln net.Listener) error {
	return s.grpc.Serve(connlimit.New(fdwait.Listener{Listener: ln}, s.o.maxConnections, &s.own.stats.turnedAway))
}

// drain ends the server: no new RPCs, subscriptions end, what is passed through
// may finish until ctx ends.
func (s *server) drain(ctx context.Context) {
	s.health.Shutdown()
	s.endSubs(errShutdown)
	graceful := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(graceful)
	}()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for {
		select {
		case <-graceful:
			return
		case <-ctx.Done():
		case now := <-tick.C:
			// A subscriber that does not read cannot be told of the end.
			if s.own.stats.passing.Load() > 0 || now.Sub(began) < stuckTime {
				continue
			}
		}
		s.grpc.Stop()
		<-graceful
		return
	}
}

func (s *server) passThrough(srv any, stream grpc.ServerStream) error {
	if method, _ := grpc.MethodFromServerStream(stream); s.own.engine.HashTokens() && strings.HasSuffix(method, "/SubscribeKvEvents") {
		return errTokensStay
	}
	s.own.stats.passing.Add(1)
	defer s.own.stats.passing.Add(-1)
	s.own.stats.passed.Add(1)
	s.o.procs.passing(1)
	defer s.o.procs.passing(-1)
	return s.own.pass.serve(srv, stream)
}

// unary admits one RPC, and turns a panic into an answer: a fault that one RPC
// meets must not take the relay from all others.
func (s *server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
	defer s.finish(info.FullMethod, &err)
	if err := s.authorize(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (s *server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer s.finish(info.FullMethod, &err)
	if err := s.authorize(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return next(srv, stream)
}

// authorize returns why a caller is refused, as a status.
func (s *server) authorize(ctx context.Context, method string) error {
	if s.o.tokens == nil || secure.HealthMethod(method) {
		return nil
	}
	if _, err := s.o.tokens.CheckRPC(ctx); err != nil {
		s.own.stats.denied.Add(1)
		return secure.Unauthenticated(err)
	}
	return nil
}

func (s *server) finish(method string, err *error) {
	if p := recover(); p != nil {
		s.own.stats.panics.Add(1)
		s.o.log.Error("RPC failed", "method", method, "panic", p, "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "internal error: this relay's log has it")
	}
}

// subscriptionRoom takes a place among an engine's subscriptions, which the
// returned function gives back.
func (s *server) subscriptionRoom(e *served, c contract) (func(), error) {
	var n int64
	e.stats.subscribers[c].Add(1)
	for i := range e.stats.subscribers {
		n += e.stats.subscribers[i].Load()
	}
	if n > int64(s.o.maxSubscriptions) {
		e.stats.subscribers[c].Add(-1)
		e.stats.refused.Add(1)
		return nil, status.Errorf(codes.ResourceExhausted,
			"engine %s has %d subscriptions, all that max-subscriptions allows", e.engine.Name(), s.o.maxSubscriptions)
	}
	e.stats.subscribed[c].Add(1)
	s.o.procs.subscribed(1)
	return func() {
		s.o.procs.subscribed(-1)
		e.stats.subscribers[c].Add(-1)
	}, nil
}

// subscriptionContext is stream's context, which also ends with the server.
func (s *server) subscriptionContext(stream grpc.ServerStream) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(stream.Context())
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// statusOf is how each end of a subscription is told.
var statusOf = [...]codes.Code{
	EndInvalid:    codes.InvalidArgument,
	EndNoForm:     codes.FailedPrecondition,
	EndOutOfRange: codes.OutOfRange,
	EndDataLoss:   codes.DataLoss,
	EndClosed:     codes.Unavailable,
}

// ended counts the end of a subscription and returns it as a status.
func (s *server) ended(ctx context.Context, e *served, c contract, err error) error {
	if end, ok := errors.AsType[*EndError](err); ok {
		e.stats.ended[c][end.Reason].Add(1)
		return status.Error(statusOf[end.Reason], end.Why)
	}
	e.stats.ended[c][endReasons-1].Add(1)
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errShutdown) {
			return errShutdown
		}
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}

// describeEngine names an engine in a refusal.
func describeEngine(name string) error {
	return status.Error(codes.NotFound, fmt.Sprintf("engine %.100q: this relay has none of that name; Describe lists them", name))
}
