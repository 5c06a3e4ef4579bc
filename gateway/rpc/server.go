// SPDX-License-Identifier: Apache-2.0

// Before: the gateway, which runs it. After: call.go and control.go, with each call.

package rpc

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/route"
)

// Placer names a worker for each try of a request; a [route.Router] is one.
type Placer interface {
	Place(ctx context.Context, q *route.Request) (*route.Placement, error)
}

// Options are a server's. Fleet and Router must be there.
type Options struct {
	Fleet route.Fleet
	// Router makes a router over some of the fleet's workers, with a policy of its own.
	// It is called once for each kind of engine. prompts are what such requests have.
	Router func(of route.Fleet, prompts route.Prompts) (Placer, error)
	// Enter admits a request; nil: all are.
	Enter func(ctx context.Context) (leave func(), err error)
	// Ready reports whether requests should be sent here; nil: while anybody is ready.
	Ready func() bool
	// Answered hears of each request at its end; nil: nobody does.
	Answered func(t *Told)

	// OwnsAuthorization: the metadata authorization is for this gateway, and no engine
	// sees it.
	OwnsAuthorization bool
	Retries           int           // after the first try
	Answer            time.Duration // without a message of a worker before it is given up; 0: never
	Connect           time.Duration // for a connection; 0: 2 s
	MaxMessage        int           // bytes of a request; 0: 32 MiB
	// Server are what secures the server.
	Server []grpc.ServerOption
	Log    *slog.Logger
}

// Told is what there is to tell of a request.
type Told struct {
	Method  string // whole, as gRPC has it
	ID      string // as the client gave it
	Model   string // as the client asked for it
	Worker  string // that answered, or was tried last; "": none was
	Rank    int
	Stream  bool
	Tries   int
	Outcome route.OutcomeKind
	Usage   openai.Usage
	Marks   route.Marks
	Err     error // as the client got it

	Start, Placed, First, End int64 // by fleet.Now; First: the first message; 0: not so far
}

// defaults of options.
const (
	defaultConnect = 2 * time.Second
	defaultMessage = 32 << 20
)

// Server serves the contracts of all kinds.
//
// Users: New, Serve, then Stop. Left is told of each worker that leaves.
//
// Concurrency: any goroutine.
type Server struct {
	o       Options
	server  *grpc.Server
	health  *health.Server
	fronts  [len(kinds)]front
	dialed  conns
	retries atomic.Int64
	active  atomic.Int64
	began   time.Time
	beside  sync.WaitGroup
}

// front is one kind's service.
type front struct {
	*kind
	s      *Server
	fleet  *route.Only
	router Placer
	calls  calls
}

// New returns a server that takes no calls yet.
func New(o Options) (*Server, error) {
	if o.Connect == 0 {
		o.Connect = defaultConnect
	}
	if o.MaxMessage == 0 {
		o.MaxMessage = defaultMessage
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, began: time.Now(), dialed: conns{o: &o, of: map[*fleet.Worker]*conn{}}}
	s.retries.Store(int64(o.Retries))
	s.server = grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(o.MaxMessage), grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
	}, o.Server...)...)
	s.health = health.NewServer()
	for i, k := range kinds {
		f := &s.fronts[i]
		f.kind, f.s = k, s
		f.fleet = route.NewOnly(o.Fleet, func(w *fleet.Worker) bool { return w.Spec.GRPC() && w.Spec.Engine == k.engine })
		var err error
		f.router, err = o.Router(f.fleet, given{})
		if err != nil {
			return nil, err
		}
		s.server.RegisterService(f.description(), f)
	}
	healthpb.RegisterHealthServer(s.server, s.health)
	reflection.Register(s.server)
	return s, nil
}

// description is the service as gRPC wants it: all its methods are streams of messages
// that are decoded where that is needed.
func (f *front) description() *grpc.ServiceDesc {
	d := &grpc.ServiceDesc{ServiceName: f.service, HandlerType: (*any)(nil), Metadata: f.file}
	for name, serve := range map[string]func(*front, grpc.ServerStream) error{
		"Generate": (*front).serveGenerate, "Embed": (*front).serveEmbed, "Abort": (*front).serveAbort,
		"HealthCheck": (*front).serveHealth, "GetLoads": (*front).serveLoads, "GetServerInfo": (*front).serveServerInfo,
		"GetModelInfo": (*front).servePassed, "GetTokenizer": (*front).servePassed,
	} {
		d.Streams = append(d.Streams, grpc.StreamDesc{
			StreamName: name, ServerStreams: true, Handler: func(_ any, down grpc.ServerStream) error { return serve(f, down) },
		})
	}
	for _, name := range alone {
		d.Streams = append(d.Streams, grpc.StreamDesc{StreamName: name, ServerStreams: true, Handler: notServed})
	}
	return d
}

// healthPeriod is how often the health service looks at the fleet.
const healthPeriod = 250 * time.Millisecond

// Serve takes calls at ln until Stop.
//
// Errors: what kept it from serving; nil after Stop.
func (s *Server) Serve(ln net.Listener) error {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	s.beside.Go(func() { s.watchHealth(ctx) })
	err := s.server.Serve(ln)
	end()
	s.beside.Wait()
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// watchHealth tells the health service how the fleet is.
func (s *Server) watchHealth(ctx context.Context) {
	tick := time.NewTicker(healthPeriod)
	defer tick.Stop()
	for {
		of := healthpb.HealthCheckResponse_NOT_SERVING
		for i := range s.fronts {
			f := &s.fronts[i]
			is := healthpb.HealthCheckResponse_NOT_SERVING
			if f.ready() != nil && (s.o.Ready == nil || s.o.Ready()) {
				is, of = healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_SERVING
			}
			s.health.SetServingStatus(f.service, is)
		}
		s.health.SetServingStatus("", of)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Stop ends the server: no new calls, those under way go on until ctx ends.
func (s *Server) Stop(ctx context.Context) {
	s.health.Shutdown()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.server.GracefulStop()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.server.Stop()
		<-done
	}
	s.dialed.close()
}

// Active returns how many requests are under way.
func (s *Server) Active() int64 { return s.active.Load() }

// SetRetries changes the tries after the first.
func (s *Server) SetRetries(n int) { s.retries.Store(int64(n)) }

// Left closes the connection to a worker that is no longer registered once its calls
// have ended.
func (s *Server) Left(w *fleet.Worker) { s.dialed.forget(w) }
