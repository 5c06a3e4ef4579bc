// SPDX-License-Identifier: Apache-2.0

// Before: Run, or a program that embeds a gateway. After: all parts.

package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/gateway/admit"
	"kindex/gateway/fleet"
	"kindex/gateway/fleet/enroll"
	"kindex/gateway/health"
	"kindex/gateway/index"
	"kindex/gateway/load"
	"kindex/gateway/openai"
	"kindex/gateway/overlay"
	"kindex/gateway/policy"
	"kindex/gateway/prompt"
	"kindex/gateway/route"
	"kindex/gateway/rpc"
	"kindex/gateway/upstream"
	"kindex/internal/logsink"
	"kindex/internal/secure"
	"kindex/internal/settings"
)

// Gateway is one gateway: its parts, and the servers before them.
//
// Users: New, Listen, then Serve until its context ends.
//
// Concurrency: any goroutine.
type Gateway struct {
	cfg   *Config // as it began: what a reload may change is in live
	live  atomic.Pointer[Config]
	log   *slog.Logger
	level *slog.LevelVar // nil where the caller brought a logger of its own
	began time.Time

	gate     *gate
	fleet    *fleet.Registry
	upstream *upstream.Client
	prober   *enroll.Prober
	workers  *Workers
	index    index.Index // nil: none
	loads    *load.Poller
	levels   *policy.Levels
	policy   policy.Policy
	overlay  *overlay.Overlay
	prompts  *prompt.Resolver
	watch    *health.Watch
	admit    *admit.Gate
	spoken   *route.Only // who is spoken to over HTTP
	router   *route.Router
	tracing  *tracing // nil: off
	access   *accessLog
	faults   faultLog
	met      *metrics
	front    *front

	sinks []namedSink // whose dropped lines are counted

	data, admin, grpc   port
	ln, adminLn, grpcLn net.Listener
	rpc                 *rpc.Server      // nil: none
	rpcRouters          []*route.Router  // one for each kind of engine
	adminServer         *fasthttp.Server // nil: none
	draining            atomic.Bool
	asked               atomic.Uint64 // requests that are over
	joined              atomic.Int64  // when the first worker did, by fleet.Now; 0: none has
	covered             atomic.Bool   // the index was exact once, or was waited for long enough

	reloads reloads

	beside     func(context.Context) // runs while it serves; nil: nothing
	background sync.WaitGroup
	tokenizer  *prompt.NativeTokenizer // nil: none
	stop       context.CancelFunc
}

// namedSink is where log lines of one kind go.
type namedSink struct {
	name string
	sink *logsink.Sink
}

// New returns a gateway that takes no requests yet. The workers that cfg names are
// registered by Serve.
func New(cfg *Config, log *slog.Logger) (*Gateway, error) {
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, err
	}
	g := &Gateway{cfg: cfg, log: log, began: time.Now(), admin: port{admin: true}, faults: faultLog{log: log, lines: logsink.NewLimiter()}}
	g.live.Store(cfg)
	if err := g.build(); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// build makes the parts, each before those that ask it.
func (g *Gateway) build() error {
	cfg := g.cfg
	var err error
	if g.gate, err = newGate(&cfg.ListenConfig, g.log); err != nil {
		return err
	}
	g.met = newMetrics()
	g.fleet = fleet.NewRegistry()
	g.upstream = upstream.New(upstream.Options{Connect: cfg.ConnectTimeout})
	g.prober = enroll.New(g.fleet, g.upstream, enroll.Options{}, g.log)
	g.workers = &Workers{Fleet: g.fleet, Prober: g.prober, Drain: cfg.DrainTimeout}
	if err := g.buildIndex(); err != nil {
		return err
	}
	lo := load.DefaultOptions()
	lo.Interval, lo.Get = cfg.LoadInterval, g.upstream.Get
	g.loads = load.New(lo, g.log)
	if g.watch, err = health.New(cfg.healthOptions(g.log)); err != nil {
		return err
	}
	if err := g.buildPrompts(); err != nil {
		return err
	}
	if err := g.buildRouter(); err != nil {
		return err
	}
	if g.tracing, err = newTracing(&cfg.TraceConfig, g.log); err != nil {
		return err
	}
	if g.access, err = newAccessLog(cfg); err != nil {
		return err
	}
	if g.access != nil {
		g.sinks = append(g.sinks, namedSink{"access", g.access.sink})
	}
	g.admit = admit.New(cfg.admitOptions())
	g.front = newFront(g.frontOptions())
	if cfg.AdminListen != "" {
		g.adminServer = g.newAdminServer()
	}
	if err := g.buildRPC(); err != nil {
		return err
	}
	g.follow()
	return nil
}

// buildIndex opens the index, where there is to be one.
func (g *Gateway) buildIndex() error {
	cfg := g.cfg
	if cfg.KVIndex == noIndex {
		return nil
	}
	o := index.Options{Kind: cfg.KVIndex, Target: cfg.Index, Timeout: cfg.IndexTimeout, Memory: cfg.IndexMemory}
	if cfg.IndexTLSCA != "" {
		roots, err := secure.ReadAuthorities(cfg.IndexTLSCA)
		if err != nil {
			return fmt.Errorf("index-ca: %w", err)
		}
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}
	}
	if path := cfg.IndexToken; path != "" {
		o.Token = func() (string, error) { return settings.ReadToken(path) }
	}
	var err error
	g.index, err = index.Open(context.Background(), o, g.log)
	return err
}

// buildRouter makes the policy and the router, which asks all that was made before.
func (g *Gateway) buildRouter() error {
	cfg := g.cfg
	g.levels = policy.NewLevels(policy.DefaultWarmUp())
	po := policy.DefaultOptions()
	po.Levels = g.levels
	var err error
	if g.policy, err = policy.New(cfg.Policy, po); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	oo := overlay.DefaultOptions()
	oo.PredictLife = cfg.PredictLife
	g.overlay = overlay.New(oo)
	g.spoken = route.NewOnly(g.fleet, func(w *fleet.Worker) bool { return !w.Spec.GRPC() })
	ro := route.Options{Fleet: g.spoken, Prompts: g.prompts, Overlay: g.overlay, Policy: g.policy, Told: g.told, Log: g.log}
	if g.index != nil {
		ro.Index = g.index
	}
	g.router = route.New(ro)
	return nil
}

// follow has the parts hear of who joins and leaves. The index first: who is decided
// for is then known there.
func (g *Gateway) follow() {
	g.fleet.OnJoin(func(w *fleet.Worker) {
		if g.index != nil {
			g.index.Joined(w)
		}
		g.joined.CompareAndSwap(0, fleet.Now())
		g.loads.Joined(w)
		g.watch.Add(w)
		g.met.joined(w)
		g.log.Info("worker joined", "worker", w.ID, "url", w.Spec.URL, "models", w.Spec.Models, "engine", w.Spec.Engine, "ranks", len(w.Holders))
	})
	g.fleet.OnChange(g.loads.Changed)
	g.fleet.OnLeave(func(w *fleet.Worker) {
		g.watch.Remove(w)
		g.loads.Left(w)
		g.met.left(w)
		if g.rpc != nil {
			g.rpc.Left(w)
		}
		if g.index != nil {
			g.index.Left(w)
		}
		g.prompts.Left(w)
		g.overlay.Left(w)
		g.upstream.Forget(w)
		g.log.Info("worker left", "worker", w.ID, "url", w.Spec.URL)
	})
}

// told tells the watch how a try ended.
func (g *Gateway) told(h *fleet.Holder, o route.Outcome) {
	kind := healthKind(o.Kind)
	if o.Status >= fasthttp.StatusBadRequest {
		kind = ruled(&h.Worker.Terms().Resilience, o.Status, kind)
	}
	g.watch.Outcome(h.Worker, kind)
}

// ruled is how a worker's own rules take a status that would be of a kind else.
func ruled(r *fleet.Resilience, status int, kind health.Kind) health.Kind {
	answered := kind == health.ClientError || kind == health.BackPressure || kind == health.WorkerError
	switch {
	case !answered || r.Retryable == nil && r.Capacity == nil:
	case slices.Contains(r.Capacity, status):
		return health.BackPressure
	case slices.Contains(r.Retryable, status):
		return health.WorkerError
	case r.Retryable != nil && kind == health.WorkerError, r.Capacity != nil && kind == health.BackPressure:
		return health.ClientError // an answer that speaks for nothing
	}
	return kind
}

// healthKind is an outcome as the watch knows it.
func healthKind(k route.OutcomeKind) health.Kind {
	switch k {
	case route.OK:
		return health.OK
	case route.ClientError:
		return health.ClientError
	case route.ClientGone:
		return health.ClientGone
	case route.BackPressure:
		return health.BackPressure
	case route.WorkerError:
		return health.WorkerError
	case route.ConnectFailed:
		return health.ConnectFailed
	case route.Broken:
		return health.Broken
	case route.Stalled:
		return health.Stalled
	}
	panic(fmt.Sprintf("BUG: gateway: outcome %d", k))
}

// shedding is a router, but for what is shed before it is asked.
type shedding struct {
	of     route.Fleet
	watch  *health.Watch
	router *route.Router
}

func (g *Gateway) sheds(of route.Fleet, r *route.Router) shedding { return shedding{of, g.watch, r} }

// Place implements placer.
func (s shedding) Place(ctx context.Context, q *route.Request) (*route.Placement, error) {
	if pool := s.of.Pool(q.Call.Model); pool != nil {
		if after, shed := s.watch.Shed(pool); shed {
			return nil, &openai.Error{
				Status: fasthttp.StatusServiceUnavailable, Type: openai.ServerError, Code: "worker_overload_protection_shed",
				Message: "all workers of the model are overloaded", RetryAfter: after,
			}
		}
	}
	return s.router.Place(ctx, q)
}

// enter admits a request, or says why not.
func (g *Gateway) enter(ctx context.Context) (leave func(), err error) {
	leave, err = g.admit.Enter(ctx)
	if refused := (*admit.RefusedError)(nil); errors.As(err, &refused) {
		err = &openai.Error{
			Status: fasthttp.StatusServiceUnavailable, Type: openai.ServerError, Code: refused.Reason.String(), Message: refused.Error(),
			RetryAfter: refused.RetryAfter,
		}
	}
	return leave, err
}

// unready returns why no requests should be sent here.
func (g *Gateway) unready() []string {
	if g.draining.Load() {
		return []string{"draining"}
	}
	ready := slices.ContainsFunc(g.fleet.Workers(), func(w *fleet.Worker) bool { return w.State() == fleet.Ready })
	if !ready {
		return []string{"no worker is ready"}
	}
	return g.uncovered()
}

// uncovered returns what the index is still to hear after the start: who sends requests
// elsewhere meanwhile has them placed by what is cached. It is waited for once, and for
// a bounded time from the first worker on.
func (g *Gateway) uncovered() []string {
	if g.index == nil || g.covered.Load() {
		return nil
	}
	why := g.index.Unready()
	if len(why) == 0 || fleet.Now()-g.joined.Load() >= int64(g.cfg.ReadyWait) {
		g.covered.Store(true)
		return nil
	}
	return why[:min(len(why), maxReasons)]
}

// maxReasons bounds the streams that an answer of /readyz names.
const maxReasons = 16

// levelPeriod is how often it is looked how much each worker has cached.
const levelPeriod = time.Second

// lookAfter does what is to be done from time to time, until ctx ends.
func (g *Gateway) lookAfter(ctx context.Context) {
	tick := time.NewTicker(levelPeriod)
	defer tick.Stop()
	var blocks []uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := fleet.Now()
		for name, pool := range g.fleet.Models() {
			if name != pool.Model {
				continue // an adapter's
			}
			blocks = blocks[:0]
			for _, h := range pool.Holders {
				n, _ := h.Held()
				blocks = append(blocks, uint64(max(n, 0)))
			}
			g.levels.Set(pool, now, blocks)
		}
	}
}
