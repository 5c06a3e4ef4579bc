// SPDX-License-Identifier: Apache-2.0

// Before: HTTP, or a program that embeds the host. After: the registry (streams
// in) and the index (lookups).

package indexsrv

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/asm"
	"kindex/internal/logsink"
	"kindex/lanes"
	"kindex/relay/feed"
)

// Host is one index host: registry, index, and the HTTP server before them.
//
// Users: New, then Serve until its context ends. A program that embeds a host
// without HTTP calls New and, at the end, Close; no state is kept then.
//
// Concurrency: any goroutine.
type Host struct {
	cfg   Config
	log   *slog.Logger
	idx   *Writer
	pool  *lanes.Pool
	plans []nodePlan
	src   feed.Source
	reg   *registry
	met   *metrics
	gate  *gate
	rpc   *rpcServer // nil: there is none
	began time.Time

	keeper     *keeper // nil: nothing is kept
	peers      *peers
	stateStats stateStats
	beginning  atomic.Pointer[beginning] // nil: it has begun, or was never told to
	beganAside chan struct{}             // closed when that is over
	copies     atomic.Int64              // from peers, while there is nothing else

	logSink *logsink.Sink // nil where the caller brought a logger of its own

	server    *fasthttp.Server
	port      port // of server
	ln        net.Listener
	parts     []part // servers beside HTTP
	traffic   traffic
	ui        uiCache
	shm       *shmPart // of parts; nil: none
	draining  atomic.Bool
	epoch     uint64        // names this life of the host to whoever watches it
	closing   chan struct{} // closed when streams begin to stop
	dumps     chan struct{} // one token for each dump under way
	explains  chan struct{} // the same of explanations
	profiling atomic.Bool   // a profile that takes its time is under way
	scratch   sync.Pool     // *queryScratch

	scratches atomic.Uint32 // made so far

	closeOnce sync.Once
	closeErr  error
}

// New returns a host with an empty index and no stream. The workers that cfg
// names are registered by Serve.
func New(cfg Config, log *slog.Logger) (*Host, error) {
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, err
	}
	src, err := feed.NewZMQ(feed.ZMQOptions{MaxFrame: cfg.MaxFrameBytes})
	if err != nil {
		return nil, err
	}
	h, err := newHost(cfg, src, log)
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	return h, nil
}

// newHost is New over any source.
func newHost(cfg Config, src feed.Source, log *slog.Logger) (*Host, error) {
	plans, err := cfg.plan()
	if err != nil {
		return nil, err
	}
	relays, err := cfg.relayOptions()
	if err != nil {
		return nil, err
	}
	h := &Host{cfg: cfg, log: log, began: time.Now()}
	if h.gate, err = newGate(&h.cfg.SecureConfig, log); err != nil {
		return nil, err
	}
	idx, pool, err := build(&cfg, plans)
	if err != nil {
		return nil, err
	}
	h.idx, h.pool, h.plans, h.src, h.dumps = NewPoolWriter(idx, pool), pool, plans, src, make(chan struct{}, maxDumps)
	h.epoch, h.closing, h.explains = rand.Uint64(), make(chan struct{}), make(chan struct{}, maxExplains)
	h.scratch.New = func() any { return newQueryScratch(int(h.scratches.Add(1))) }
	h.met = newMetrics(h)
	h.reg = newRegistry(&h.cfg, h.idx, src, h.met.streamHooks, log)
	h.reg.relays = relays
	h.peers = &peers{h: h}
	if h.peers.urls, err = splitPeers(cfg.Peers); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	if cfg.StateDir != "" {
		h.keeper = newKeeper(h)
	}
	h.server = h.newServer(&h.port)
	if cfg.AdminListen != "" {
		h.parts = append(h.parts, newAdmin(h))
	}
	if err := h.addShm(); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	if cfg.GRPCListen != "" {
		h.rpc = newRPCServer(h)
		h.parts = append(h.parts, h.rpc)
	}
	return h, nil
}

// Register subscribes to an engine's streams. It returns when they are
// registered, which is before they are connected. Refusals satisfy errors.Is
// with ErrInvalid, ErrConflict or ErrUnavailable. The log gets a line that says who
// did it, as ctx has it.
func (h *Host) Register(ctx context.Context, r Registration) error {
	err := h.begun(ctx)
	if err == nil {
		err = h.reg.register(ctx, &r)
	}
	h.auditRegistration(actorOf(ctx), "register", &r, err)
	if err == nil {
		h.changed(ctx)
	}
	return err
}

// Unregister takes out a whole instance of the model and group that r names, or
// only r.Rank where oneRank is set. When it returns nil, nothing of it is left. The
// log gets a line, as of Register.
func (h *Host) Unregister(ctx context.Context, r Registration, oneRank bool) error {
	return h.unregister(ctx, &unregistration{
		instance: r.Instance, model: r.Model, group: r.RoutingGroup, tenant: r.Tenant,
		rank: r.Rank, oneRankOnly: oneRank,
	})
}

func (h *Host) unregister(ctx context.Context, u *unregistration) error {
	err := h.begun(ctx)
	if err == nil {
		err = h.reg.unregister(ctx, u)
	}
	h.auditUnregistration(actorOf(ctx), u, err)
	if !errors.Is(err, ErrNotFound) { // it may be out though its cleanup still runs
		h.changed(ctx)
	}
	return err
}

// Listen takes the configured address, so that a taken one is known before
// anything starts. Serve calls it where the caller has not.
func (h *Host) Listen() error {
	if h.ln != nil {
		return nil
	}
	ln, err := net.Listen("tcp", h.cfg.Listen)
	if err != nil {
		return err // names the address and what is wrong with it
	}
	if h.keeper != nil {
		if err := h.keeper.open(); err != nil {
			return errors.Join(err, ln.Close())
		}
	}
	if h.resumes() {
		h.nowWaits("starting")
	}
	h.ln = ln
	h.gate.taken(&h.port, ln.Addr())
	for i, p := range h.parts {
		if err := p.listen(); err != nil {
			closed, cancel := context.WithCancel(context.Background())
			cancel()
			for _, taken := range h.parts[:i] {
				err = errors.Join(err, taken.drain(closed))
			}
			h.ln = nil
			return errors.Join(err, ln.Close())
		}
	}
	return nil
}

// Addr returns the address that Listen took.
func (h *Host) Addr() net.Addr { return h.ln.Addr() }

// Serve registers the configured workers and answers until ctx ends. Then it
// drains: not ready, requests finished, streams stopped, each bounded by the
// configured time.
//
// Errors: what kept it from serving; nil after a drain, also one cut short.
func (h *Host) Serve(ctx context.Context) error {
	if err := h.Listen(); err != nil {
		return err
	}
	begin, cancel := context.WithCancel(ctx)
	defer cancel()
	var begun <-chan error // nil: it has
	if h.resumes() {
		begun = h.beginAside(begin)
	} else if err := h.begin(ctx); err != nil {
		return errors.Join(err, h.ln.Close(), h.Close())
	}
	h.logPlaces()
	h.gate.warn()
	h.log.Info("serving", "url", h.scheme()+h.Addr().String(), "index", h.cfg.KVIndex, "cpu_features", asm.Level(), "workers", len(h.cfg.Workers))
	served := make(chan error, 1)
	go func() { served <- h.server.Serve(h.wrap(h.ln)) }()
	err, told := h.untilTold(ctx, served, begun)
	if begun != nil {
		cancel()
		<-h.beganAside
	}
	if !told {
		return errors.Join(err, h.Close())
	}
	h.drain()
	if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
		h.log.Warn("HTTP server", "error", err)
	}
	if err := h.Close(); err != nil {
		h.log.Warn("streams cut short", "error", err)
	}
	return nil
}

// untilTold waits until ctx ends, or something that the host cannot do without: then
// it returns false, and why.
func (h *Host) untilTold(ctx context.Context, served, begun <-chan error) (err error, told bool) {
	ended := h.serveParts()
	for {
		select {
		case err := <-served:
			return err, false
		case err := <-ended: // one that has ended alone: the host is not what it was asked to be
			h.drain()
			return err, false
		case err := <-begun:
			if err != nil {
				h.drain()
				return err, false
			}
			begun = nil
		case <-ctx.Done():
			return nil, true
		}
	}
}

// drain ends the HTTP side: readiness first, then requests.
func (h *Host) drain() {
	h.draining.Store(true)
	if h.cfg.DrainDelay > 0 {
		t := time.NewTimer(h.cfg.DrainDelay)
		<-t.C
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.cfg.DrainTimeout)
	defer cancel()
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		if h.keeper != nil {
			h.keeper.end(ctx)
		}
	}()
	if err := errors.Join(h.drainParts(ctx), h.server.ShutdownWithContext(ctx)); err != nil {
		h.log.Warn("requests cut short", "error", err)
	}
	<-kept
	// A server that had not begun to accept knows no listener to close; closed
	// twice is no fault.
	_ = h.ln.Close()
}

// Close stops all streams, bounded by the drain timeout, and refuses
// registrations from then on. An error says what did not end in time.
func (h *Host) Close() error {
	h.closeOnce.Do(func() {
		h.draining.Store(true)
		close(h.closing)
		h.peers.aside.Wait()
		if h.keeper != nil {
			h.keeper.close() // before anybody is taken out: they come back
		}
		ctx, cancel := context.WithTimeout(context.Background(), h.cfg.DrainTimeout)
		defer cancel()
		h.closeErr = errors.Join(h.reg.stop(ctx), h.pool.Close())
		if h.closeErr != nil {
			return // the source still has taps: it cannot be closed
		}
		closed := make(chan error, 1)
		go func() { closed <- h.src.Close() }()
		select {
		case h.closeErr = <-closed:
		case <-ctx.Done():
			h.closeErr = errors.New("the stream source did not close in time")
		}
	})
	return h.closeErr
}
