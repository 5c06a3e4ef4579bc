// SPDX-License-Identifier: Apache-2.0

// Before: Run. After: the servers.

package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"kindex/gateway/route"
)

// Listen takes the configured addresses, so that a taken one is known before anything
// starts.
func (g *Gateway) Listen() error {
	ln, err := net.Listen("tcp", g.cfg.Listen)
	if err != nil {
		return err // names the address and what is wrong with it
	}
	g.ln = ln
	g.gate.taken(&g.data, ln.Addr())
	if g.cfg.AdminListen != "" {
		if g.adminLn, err = net.Listen("tcp", g.cfg.AdminListen); err != nil {
			return errors.Join(err, ln.Close())
		}
		g.gate.taken(&g.admin, g.adminLn.Addr())
	}
	if g.cfg.GRPCListen != "" {
		if g.grpcLn, err = net.Listen("tcp", g.cfg.GRPCListen); err != nil {
			if g.adminLn != nil {
				err = errors.Join(err, g.adminLn.Close())
			}
			return errors.Join(err, ln.Close())
		}
		g.gate.taken(&g.grpc, g.grpcLn.Addr())
	}
	return nil
}

// Addr returns the address that Listen took.
func (g *Gateway) Addr() net.Addr { return g.ln.Addr() }

// Serve registers the configured workers and answers until ctx ends. Then it drains:
// not ready but serving for a while, then no new connections, and what is under way
// goes on; each bounded by the configured time.
//
// Errors: what kept it from serving; nil after a drain, also one cut short.
func (g *Gateway) Serve(ctx context.Context) error {
	if g.ln == nil {
		if err := g.Listen(); err != nil {
			return err
		}
	}
	defer g.close()
	g.gate.warn()
	running, stop := context.WithCancel(context.Background())
	g.stop = stop
	g.background.Go(func() { g.router.Run(running) })
	for _, r := range append([]*route.Router{g.router}, g.rpcRouters...) {
		g.background.Go(func() { r.Alarm(running) })
	}
	g.background.Go(func() { g.lookAfter(running) })
	g.background.Go(func() { g.rest(running) })
	if g.beside != nil {
		g.background.Go(func() { g.beside(running) })
	}
	ended := make(chan error, 3)
	go func() { ended <- g.front.serve(g.ln, g.gate.listener) }()
	if g.adminServer != nil {
		go func() { ended <- g.adminServer.Serve(g.gate.listener(g.adminLn)) }()
	}
	if g.rpc != nil {
		go func() { ended <- g.rpc.Serve(g.grpcLn) }()
	}
	for i := range g.cfg.Workers {
		_, err := g.prober.Register(g.cfg.Workers[i])
		g.gate.audit.changed(actorStart, "register", err, slog.String("url", g.cfg.Workers[i].URL))
	}
	args := []any{"url", g.gate.scheme() + g.Addr().String(), "policy", g.cfg.Policy, "kv_index", g.cfg.KVIndex, "workers", len(g.cfg.Workers)}
	if g.adminLn != nil {
		args = append(args, "admin", g.gate.scheme()+g.adminLn.Addr().String())
	}
	if g.grpcLn != nil {
		args = append(args, "grpc", g.grpcLn.Addr().String())
	}
	g.log.Info("serving", args...)
	select {
	case err := <-ended: // a server that has ended alone: this is not what was asked for
		return err
	case <-ctx.Done():
	}
	g.drain()
	return nil
}

// drain ends the service: readiness first, then connections, then requests.
func (g *Gateway) drain() {
	cfg := g.live.Load()
	began := time.Now()
	g.draining.Store(true)
	g.log.Info("drain: not ready, serving still", "delay", cfg.DrainDelay.String(), "in_flight", g.admit.Stats().Running)
	if cfg.DrainDelay > 0 {
		t := time.NewTimer(cfg.DrainDelay)
		<-t.C
	}
	g.log.Info("drain: no new connections, requests end", "timeout", cfg.DrainTimeout.String(), "in_flight", g.admit.Stats().Running)
	ctx, cancel := context.WithTimeout(context.Background(), cfg.DrainTimeout)
	defer cancel()
	called := make(chan struct{})
	go func() {
		defer close(called)
		if g.rpc != nil {
			g.rpc.Stop(ctx)
		}
	}()
	err := g.front.shutdown(ctx)
	<-called
	if err != nil {
		g.log.Warn("drain: requests cut short", "error", err, "in_flight", g.admit.Stats().Running)
	}
	if g.adminServer != nil { // last: it is looked at while the rest ends
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := g.adminServer.ShutdownWithContext(ctx); err != nil {
			g.log.Debug("drain: the admin address", "error", err)
		}
	}
	g.log.Info("drain: all requests have ended", "took", time.Since(began).Round(time.Millisecond).String())
}

// traceFlush bounds how long the last traces may take to be sent.
const traceFlush = 2 * time.Second

// close ends all parts, those that ask before those that are asked. Parts that were
// never made are left out.
func (g *Gateway) close() {
	if g.stop != nil {
		g.stop()
	}
	g.background.Wait()
	var errs []error
	if g.rpc != nil {
		at, cancel := context.WithCancel(context.Background())
		cancel()
		g.rpc.Stop(at) // drained before, or there was no time for that
	}
	if g.prober != nil {
		g.prober.Close()
	}
	if g.watch != nil {
		g.watch.Close()
	}
	if g.fleet != nil {
		g.fleet.Close()
	}
	if g.loads != nil {
		g.loads.Close()
	}
	if g.index != nil {
		errs = append(errs, g.index.Close())
	}
	g.closePrompts()
	if g.upstream != nil {
		g.upstream.Close()
	}
	if g.tracing != nil {
		ctx, cancel := context.WithTimeout(context.Background(), traceFlush)
		defer cancel()
		errs = append(errs, g.tracing.close(ctx))
	}
	for _, ln := range []net.Listener{g.ln, g.adminLn, g.grpcLn} {
		if ln != nil {
			_ = ln.Close() // closed by its server, or never served
		}
	}
	if g.access != nil {
		g.access.close()
	}
	if err := errors.Join(errs...); err != nil {
		g.log.Warn("not everything ended as it should", "error", err)
	}
}
