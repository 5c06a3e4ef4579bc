// SPDX-License-Identifier: Apache-2.0

// Before: Run, or a program that embeds a gateway. After: all parts.

package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"github.com/valyala/fasthttp"
)

// Gateway is one gateway: its parts, and the servers before them.
//
// Users: New, Listen, then Serve until its context ends.
//
// Concurrency: any goroutine.
type Gateway struct {
	cfg *Config
	log *slog.Logger

	server *fasthttp.Server
	ln     net.Listener
}

// New returns a gateway that takes no requests yet.
func New(cfg *Config, log *slog.Logger) (*Gateway, error) {
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, err
	}
	g := &Gateway{cfg: cfg, log: log}
	g.server = &fasthttp.Server{Handler: g.handle, Name: "kindex", ReadTimeout: cfg.ReadTimeout, IdleTimeout: cfg.IdleTimeout}
	return g, nil
}

func (g *Gateway) handle(ctx *fasthttp.RequestCtx) {
	switch string(ctx.Path()) {
	case "/livez", "/health", "/readyz":
		ctx.SetStatusCode(fasthttp.StatusOK)
	default:
		ctx.SetStatusCode(fasthttp.StatusNotFound)
	}
}

// Listen takes the configured address, so that a taken one is known before anything
// starts.
func (g *Gateway) Listen() error {
	ln, err := net.Listen("tcp", g.cfg.Listen)
	if err != nil {
		return err // names the address and what is wrong with it
	}
	g.ln = ln
	return nil
}

// Addr returns the address that Listen took.
func (g *Gateway) Addr() net.Addr { return g.ln.Addr() }

// Serve answers until ctx ends; then it drains.
//
// Errors: what kept it from serving; nil after a drain, also one cut short.
func (g *Gateway) Serve(ctx context.Context) error {
	g.log.Info("serving", "url", "http://"+g.ln.Addr().String(), "workers", len(g.cfg.Workers))
	served := make(chan error, 1)
	go func() { served <- g.server.Serve(g.ln) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.Background(), g.cfg.DrainTimeout)
	defer cancel()
	if err := g.server.ShutdownWithContext(end); err != nil {
		g.log.Warn("requests cut short", "error", err)
	}
	return nil
}
