// SPDX-License-Identifier: Apache-2.0

// Before: HTTP requests, gRPC calls. After: their handlers.

package indexsrv

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/valyala/fasthttp"

	"kindex/internal/logsink"
	"kindex/internal/secure"
)

// place says at which addresses something is served.
type place int

const (
	placeAny   place = iota
	placeWatch       // at the admin address alone, where there is one
	placeAdmin       // the same, and nowhere where anybody could reach it unasked
)

// access is what it takes to be let in.
type access struct {
	role  secure.Role
	place place
}

// port is one address that the host serves at.
//
// taken is called before anything is served there.
type port struct {
	admin   bool     // the admin routes' own
	addr    net.Addr // nil: not taken
	exposed bool     // others can reach it and need not say who they are
}

// gate decides who may do what: the same for HTTP and gRPC.
//
// Concurrency: any goroutine, once built.
type gate struct {
	cfg    *SecureConfig
	log    *slog.Logger
	audit  audit
	http   *tls.Config    // nil: no TLS
	rpc    *tls.Config    // the same for gRPC
	tokens *secure.Tokens // nil: no token is asked for
	ports  []*port
}

// newGate reads certificates and tokens.
func newGate(cfg *SecureConfig, log *slog.Logger) (*gate, error) {
	g := &gate{cfg: cfg, log: log, audit: audit{log: log, lines: logsink.NewLimiter()}}
	told := func(what string) func(error) {
		return func(err error) {
			if err != nil {
				log.Warn(what+" cannot be read again: what was read before stays in force", "error", err)
				return
			}
			log.Info(what + " read again")
		}
	}
	var err error
	if cfg.TLSCert != "" {
		if g.http, err = cfg.tlsFiles().Config(told("certificates"), "http/1.1"); err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		if g.rpc, err = cfg.tlsFiles().Config(told("certificates of gRPC"), "h2"); err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
	}
	if cfg.TokenFile != "" {
		if g.tokens, err = hostTokens.ReadTokens(cfg.TokenFile, told("tokens")); err != nil {
			return nil, fmt.Errorf("token-file: %w", err)
		}
	}
	return g, nil
}

// authenticated reports whether callers must show who they are.
func (g *gate) authenticated() bool { return g.tokens != nil || g.cfg.TLSClientCA != "" }

// taken makes addr p's.
func (g *gate) taken(p *port, addr net.Addr) {
	a, ok := addr.(*net.TCPAddr)
	p.addr = addr
	p.exposed = ok && !a.IP.IsLoopback() && !g.authenticated() && !g.cfg.OpenAdmin
	g.ports = append(g.ports, p)
}

// warn says what others than this machine can reach.
func (g *gate) warn() {
	for _, p := range g.ports {
		a, ok := p.addr.(*net.TCPAddr)
		if !ok || a.IP.IsLoopback() {
			continue
		}
		log := g.log.With("listen", a.String())
		switch {
		case p.exposed:
			log.Warn("listening beyond loopback without authentication: whoever reaches this port can read; registrations, profiles and the page are refused there (token-file, tls-client-ca, admin-listen or open-admin)")
		case !g.authenticated():
			log.Warn("listening beyond loopback without authentication, and open-admin is set: whoever reaches this port can register and read")
		case g.http == nil:
			log.Warn("listening beyond loopback without TLS: tokens can be read on the way")
		}
	}
}

// denial is why a caller is turned away: one line for it, and a reason.
type denial struct {
	reason refusalReason
	text   string
}

// unknown reports whether the caller did not show who it is; else it may not.
func (d *denial) unknown() bool { return d.reason == reasonNoToken || d.reason == reasonWrongToken }

// challenge is the WWW-Authenticate header of a denial (RFC 6750); "": a token would
// not help.
func (d *denial) challenge(role secure.Role) string {
	const bearer = `Bearer realm="kindex"`
	if d.reason == reasonNoToken {
		return bearer
	}
	if d.reason == reasonWrongToken {
		return bearer + `, error="invalid_token"`
	}
	if d.reason == reasonRole {
		return bearer + `, error="insufficient_scope", scope="` + role.String() + `"`
	}
	return ""
}

// admit decides about a call of what at p; header is its authorization.
func (g *gate) admit(p *port, what string, need access, header []byte) (secure.Caller, *denial) {
	caller := secure.Caller{Role: secure.RoleAdmin}
	if g.tokens != nil && need.role > secure.RoleNone {
		var err error
		if caller, err = g.tokens.Check(header); err != nil {
			reason := reasonWrongToken
			if errors.Is(err, secure.ErrNoToken) {
				reason = reasonNoToken
			}
			return caller, &denial{reason, err.Error()}
		}
		if caller.Role < need.role {
			return caller, &denial{reasonRole, fmt.Sprintf("authorization: %s asks for a token of role %s, this one has %s", what, need.role, caller.Role)}
		}
	}
	switch {
	case need.place == placeAny || p.admin && !p.exposed:
	case g.cfg.AdminListen != "" && !p.admin:
		text := what + " is served at the admin address alone (admin-listen), which speaks HTTP"
		if g.tokens == nil || need.role > secure.RoleNone {
			text += ": " + g.adminAddr() // which is not for a stranger to know
		}
		return caller, &denial{reasonAdminOnly, text}
	case need.place == placeAdmin && p.exposed:
		return caller, &denial{reasonExposed, what + " is not served beyond loopback without authentication: set token-file or tls-client-ca, or admin-listen to a loopback address, or open-admin"}
	}
	return caller, nil
}

// adminAddr is where the admin routes are.
func (g *gate) adminAddr() string {
	for _, p := range g.ports {
		if p.admin {
			return p.addr.String()
		}
	}
	return g.cfg.AdminListen
}

// authorize lets an HTTP request for r in, or answers it. Where r changes something
// the handler finds the actor in the request.
func (h *Host) authorize(ctx *fasthttp.RequestCtx, p *port, r *route) bool {
	g := h.gate
	if c, ok := ctx.Conn().(*secure.Conn); ok && r.access.role > secure.RoleNone && c.Expired() {
		g.audit.refused(httpActor(ctx, secure.Caller{}), r.path, reasonCertificate, "the certificate has expired since the connection began")
		ctx.SetConnectionClose()
		refuseHTTP(ctx, fasthttp.StatusUnauthorized, "certificate: has expired since this connection began, connect with a new one")
		return false
	}
	caller, no := g.admit(p, r.path, r.access, ctx.Request.Header.Peek(fasthttp.HeaderAuthorization))
	if no == nil {
		if r.access.role > secure.RoleRead {
			ctx.SetUserValue(actorKey{}, httpActor(ctx, caller))
		}
		return true
	}
	g.audit.refused(httpActor(ctx, caller), r.path, no.reason, no.text)
	status := fasthttp.StatusForbidden
	if no.unknown() {
		status = fasthttp.StatusUnauthorized
	}
	if challenge := no.challenge(r.access.role); challenge != "" {
		ctx.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, challenge)
	}
	refuseHTTP(ctx, status, no.text)
	return false
}

// httpActor is who sent a request.
func httpActor(ctx *fasthttp.RequestCtx, caller secure.Caller) actor {
	a := actor{who: caller.Name, remote: ctx.RemoteAddr().String(), via: "http", role: caller.Role}
	if c, ok := ctx.Conn().(*secure.Conn); ok {
		a.certificate = c.Subject()
	}
	a.named()
	return a
}

// named fills in who, where no token names it.
func (a *actor) named() {
	if a.who == "" {
		a.who = a.certificate
	}
	if a.who == "" {
		a.who = anonymous
	}
}

// requestActor is the actor of a request that authorize let in to change something.
func requestActor(ctx *fasthttp.RequestCtx) actor {
	if a, ok := ctx.UserValue(actorKey{}).(actor); ok {
		return a
	}
	panic("BUG: indexsrv: a route that changes something has no role for it")
}
