// SPDX-License-Identifier: Apache-2.0

// Before: the configuration. After: engines, gRPC servers, the HTTP server.

package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kindex/internal/logsink"
	"kindex/relay/feed"
	"kindex/relay/hashcheck"
	"kindex/relay/load"
)

// Host is one relay: engines, a gRPC server for each, and an HTTP server.
//
// Users: New, then Serve until its context ends.
//
// Concurrency: any goroutine.
type Host struct {
	cfg     Config
	log     *slog.Logger
	src     *feed.ZMQ
	engines []*served
	options serverOptions
	tlsHTTP *tls.Config
	met     *metrics
	began   time.Time

	logSink *logsink.Sink // nil where the caller brought a logger of its own
	memory  *memory       // nil where the host is part of another program

	lns      []net.Listener // of the engines
	httpLn   net.Listener   // nil: there is no HTTP server
	http     *http.Server
	servers  []*server
	draining atomic.Bool
	serving  atomic.Bool // engines are open

	closeOnce sync.Once
	closeErr  error
}

// New returns a relay that reads nothing yet.
//
// Errors: one line for each fault of cfg, or what the system refuses.
func New(cfg Config, log *slog.Logger) (*Host, error) {
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, err
	}
	h := &Host{cfg: cfg, log: log, began: time.Now()}
	if err := h.secure(); err != nil {
		return nil, err
	}
	h.options = serverOptions{
		tls: h.options.tls, tokens: h.options.tokens,
		maxMessage:       cfg.MaxMessageBytes,
		maxStreams:       cfg.MaxStreams,
		maxConnections:   cfg.MaxConnections,
		maxSubscriptions: cfg.MaxSubscriptions,
		log:              log,
		byName:           h.byName,
		all:              func() []*served { return h.engines },
	}
	src, err := feed.NewZMQ(feed.ZMQOptions{MaxFrame: cfg.MaxFrameBytes})
	if err != nil {
		return nil, err
	}
	h.src = src
	for i := range cfg.Engines {
		e, err := h.newServed(&cfg.Engines[i])
		if err != nil {
			return nil, errors.Join(fmt.Errorf("engine %s: %w", cfg.nameOf(i), err), h.Close())
		}
		h.engines = append(h.engines, e)
	}
	h.met = newMetrics(h)
	h.http = h.newHTTP()
	return h, nil
}

// secure reads certificates and tokens.
func (h *Host) secure() error {
	told := func(what string) func(error) {
		return func(err error) {
			if err != nil {
				h.log.Warn(what+" cannot be read again: what was read before stays in force", "error", err)
				return
			}
			h.log.Info(what + " read again")
		}
	}
	var err error
	if h.cfg.TLSCert != "" {
		if h.options.tls, err = h.cfg.tlsFiles().Config(told("certificates"), "h2"); err != nil {
			return fmt.Errorf("tls: %w", err)
		}
		if h.tlsHTTP, err = h.cfg.tlsFiles().Config(told("certificates of HTTP"), "http/1.1"); err != nil {
			return fmt.Errorf("tls: %w", err)
		}
	}
	if h.cfg.TokenFile != "" {
		if h.options.tokens, err = tokenForm.ReadTokens(h.cfg.TokenFile, told("tokens")); err != nil {
			return fmt.Errorf("token-file: %w", err)
		}
	}
	return nil
}

// newServed returns the engine of spec, not yet read.
func (h *Host) newServed(spec *EngineSpec) (*served, error) {
	e := &served{}
	lc := spec.loadConfig()
	lc.Interval = h.cfg.LoadInterval
	var err error
	if lc.Token, err = h.cfg.loadToken(); err != nil {
		return nil, fmt.Errorf("load-token-file: %w", err)
	}
	if spec.GRPC != "" {
		pass, err := newPassthrough(spec.GRPC, h.options.tokens != nil, h.log)
		if err != nil {
			return nil, err
		}
		e.pass = pass
		if lc.Metrics == "" && lc.Loads == "" {
			// GetLoads itself is passed through, too; this is for the records.
			lc.Ask, e.passLoads = load.AskVLLM(pass.conn), true
			if spec.Kind == "sglang" {
				lc.Ask = load.AskSGLang(pass.conn)
			}
		}
	}
	if lc.Metrics == "" && lc.Loads == "" && lc.Ask == nil {
		return e, nil
	}
	meter, err := load.New(lc)
	e.meter = meter
	return e, err
}

// byName returns the engine of that name, or nil.
func (h *Host) byName(name string) *served {
	for _, e := range h.engines {
		if e.engine.Name() == name {
			return e
		}
	}
	return nil
}

// Listen takes all addresses, so that a taken one is known before anything
// starts. Serve calls it where the caller has not.
func (h *Host) Listen() error {
	if h.lns != nil {
		return nil
	}
	var lns []net.Listener
	take := func(address string) (net.Listener, error) {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			for _, ln := range lns {
				_ = ln.Close() // nobody used it
			}
			return nil, err // names the address and what is wrong with it
		}
		lns = append(lns, ln)
		return ln, nil
	}
	for i := range h.cfg.Engines {
		address, err := h.cfg.listenOf(i)
		if err != nil {
			return err
		}
		ln, err := take(address)
		if err != nil {
			return err
		}
		h.engines[i].listen = ln.Addr().String()
	}
	engines := lns
	if h.cfg.HTTP != httpOff {
		ln, err := take(h.cfg.HTTP)
		if err != nil {
			return err
		}
		h.httpLn = ln
	}
	h.lns = engines
	return nil
}

// Addr returns the address of engine i that Listen took.
func (h *Host) Addr(i int) string { return h.engines[i].listen }

// HTTPAddr returns the address of the HTTP server that Listen took, or "".
func (h *Host) HTTPAddr() string {
	if h.httpLn == nil {
		return ""
	}
	return h.httpLn.Addr().String()
}

// Serve reads the engines and serves until ctx ends. It is up at once, whatever
// the engines do. Then it drains: not ready, subscriptions ended, what is passed
// through finished, bounded by the configured time.
//
// Errors: what kept it from serving; nil after a drain, also one cut short.
func (h *Host) Serve(ctx context.Context) error {
	if err := h.Listen(); err != nil {
		return errors.Join(err, h.Close())
	}
	meters, stopMeters := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	defer func() {
		stopMeters()
		reading.Wait()
	}()
	for i, e := range h.engines {
		if err := h.open(i); err != nil {
			return errors.Join(err, h.Close())
		}
		if e.meter != nil {
			reading.Go(func() { e.meter.Run(meters) })
		}
		h.servers = append(h.servers, newServer(&h.options, e))
	}
	h.serving.Store(true)
	failed := make(chan error, len(h.servers)+1)
	var serving sync.WaitGroup
	for i, s := range h.servers {
		serving.Go(func() { failed <- s.serve(h.lns[i]) })
	}
	if h.httpLn != nil {
		serving.Go(func() {
			if err := h.http.Serve(h.httpListener()); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	h.announce()
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("a server ended by itself: %w", err)
	case <-ctx.Done():
	}
	h.drain()
	serving.Wait()
	if closeErr := h.Close(); closeErr != nil {
		h.log.Warn("engines cut short", "error", closeErr)
	}
	return err
}

// open begins to read engine i.
func (h *Host) open(i int) error {
	spec := &h.cfg.Engines[i]
	check, err := hashcheck.Parse(h.cfg.HashCheck, spec.Kind)
	if err != nil {
		return err
	}
	engine, err := OpenEngine(EngineConfig{
		Name: h.cfg.nameOf(i), Kind: spec.Kind,
		Endpoint: spec.Endpoint, Replay: spec.Replay,
		Ranks: spec.Ranks, BlockSize: spec.Block,
		HashTokens: h.cfg.HashTokens, MinHashBlock: h.cfg.MinHashBlock,
		HistoryBatches: h.cfg.HistoryBatches, HistoryBytes: h.cfg.HistoryBytes,
		Feed: h.cfg.feedLimits(),
		Load: h.engines[i].meter, HashCheck: check,
		Log: h.log, Freed: h.memory.freed,
	}, h.src)
	h.engines[i].engine = engine
	return err
}

// announce says where the relay serves, and when others than this machine can
// reach it unasked.
func (h *Host) announce() {
	for i, e := range h.engines {
		spec := &h.cfg.Engines[i]
		h.log.Info("engine", "name", e.engine.Name(), "kind", spec.Kind, "endpoint", spec.Endpoint, "replay", spec.Replay,
			"ranks", len(e.engine.Ranks()), "grpc", e.listen, "passed_to", spec.GRPC)
	}
	h.log.Info("serving", "http", h.HTTPAddr(), "tls", h.options.tls != nil, "client_certificates", h.cfg.ClientCA != "",
		"tokens", h.options.tokens != nil, "hash_tokens", h.cfg.HashTokens)
	open := func(ln net.Listener) bool {
		a, ok := ln.Addr().(*net.TCPAddr)
		return ok && !a.IP.IsLoopback()
	}
	for _, ln := range append(slices.Clip(h.lns), h.httpLn) {
		switch {
		case ln == nil || !open(ln):
		case h.options.tokens == nil && h.cfg.ClientCA == "":
			h.log.Warn("listening beyond loopback without authentication: whoever reaches this port reads what prompts are made of",
				"listen", ln.Addr().String())
		case h.options.tls == nil:
			h.log.Warn("listening beyond loopback without TLS: tokens can be read on the way", "listen", ln.Addr().String())
		}
	}
}

// drain ends the servers: readiness first, then RPCs and requests.
func (h *Host) drain() {
	h.draining.Store(true)
	if h.cfg.DrainDelay > 0 {
		t := time.NewTimer(h.cfg.DrainDelay)
		<-t.C
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.cfg.DrainTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, s := range h.servers {
		all.Go(func() { s.drain(ctx) })
	}
	if h.httpLn != nil {
		all.Go(func() {
			if err := h.http.Shutdown(ctx); err != nil {
				h.log.Warn("requests cut short", "error", errors.Join(err, h.http.Close()))
			}
		})
	}
	all.Wait()
}

// Close ends engines, sockets and listeners, bounded by the drain timeout.
func (h *Host) Close() error {
	h.closeOnce.Do(func() {
		for _, ln := range append(slices.Clip(h.lns), h.httpLn) {
			if ln != nil {
				_ = ln.Close() // again, where a server had it
			}
		}
		closed := make(chan error, 1)
		go func() {
			var errs []error
			for _, e := range h.engines {
				if e.engine != nil {
					e.engine.Close()
				}
				if e.pass != nil {
					errs = append(errs, e.pass.close())
				}
			}
			closed <- errors.Join(append(errs, h.src.Close())...)
		}()
		t := time.NewTimer(h.cfg.DrainTimeout)
		defer t.Stop()
		select {
		case h.closeErr = <-closed:
		case <-t.C:
			h.closeErr = errors.New("the engines' streams did not close in time")
		}
	})
	return h.closeErr
}
