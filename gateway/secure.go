// SPDX-License-Identifier: Apache-2.0

// Before: HTTP requests and gRPC calls, at an address. After: their handlers.

package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/valyala/fasthttp"

	"kindex/gateway/openai"
	"kindex/internal/secure"
)

// access is what it takes to be let in to something.
type access uint8

const (
	accessOpen    access = iota // probes: anybody
	accessAsk                   // requests to engines, models
	accessWatch                 // metrics, what is said of workers
	accessChange                // workers: register, update, drain, remove
	accessProfile               // profiles of this program
)

// needs returns the role that a port asks for. What watches a fleet needs no more than
// the role of who asks, where it can reach the admin address; at the data address
// whoever sends requests does not see who else does.
func (a access) needs(admin bool) secure.Role {
	switch a {
	case accessAsk:
		return secure.RoleRead
	case accessWatch:
		if admin {
			return secure.RoleRead
		}
		return secure.RoleAdmin
	case accessChange:
		return secure.RoleWrite
	case accessProfile:
		return secure.RoleAdmin
	case accessOpen:
	}
	return secure.RoleNone
}

// port is one address that the gateway serves at.
//
// taken is called before anything is served there.
type port struct {
	admin   bool     // the admin address
	addr    net.Addr // nil: not taken
	exposed bool     // others can reach it and need not say who they are
}

// gate decides who may do what: the same for HTTP and gRPC.
//
// Concurrency: any goroutine, once built.
type gate struct {
	cfg   *ListenConfig
	log   *slog.Logger
	audit audit
	http  *tls.Config    // nil: no TLS
	rpc   *tls.Config    // the same for gRPC
	keys  *secure.Tokens // nil: no key is asked for
	ports []*port
}

// newGate reads certificates and keys.
func newGate(cfg *ListenConfig, log *slog.Logger) (*gate, error) {
	g := &gate{cfg: cfg, log: log, audit: newAudit(log)}
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
	if cfg.APIKeyFile != "" {
		if g.keys, err = gatewayKeys.ReadTokens(cfg.APIKeyFile, told("API keys")); err != nil {
			return nil, fmt.Errorf("api-key-file: %w", err)
		}
	}
	return g, nil
}

// authenticated reports whether callers must show who they are.
func (g *gate) authenticated() bool { return g.keys != nil || g.cfg.TLSClientCA != "" }

// ownsAuthorization reports whether a request's authorization header is for this
// gateway: then no engine sees it. Else it is the engine's, and passed on.
func (g *gate) ownsAuthorization() bool { return g.keys != nil }

// taken makes addr p's.
func (g *gate) taken(p *port, addr net.Addr) {
	p.addr = addr
	p.exposed = !loopback(addr) && !g.authenticated() && !g.cfg.OpenAdmin
	g.ports = append(g.ports, p)
}

func loopback(addr net.Addr) bool {
	a, ok := addr.(*net.TCPAddr)
	return !ok || a.IP.IsLoopback()
}

// warn says what others than this machine can reach.
func (g *gate) warn() {
	for _, p := range g.ports {
		if loopback(p.addr) {
			continue
		}
		log := g.log.With("listen", p.addr.String())
		switch {
		case p.exposed:
			log.Warn("listening beyond loopback without authentication: whoever reaches this port can send requests; workers cannot be changed there (api-key-file, tls-client-ca, admin-listen or open-admin)")
		case !g.authenticated():
			log.Warn("listening beyond loopback without authentication, and open-admin is set: whoever reaches this port can send requests and change workers")
		case g.http == nil:
			log.Warn("listening beyond loopback without TLS: keys can be read on the way")
		}
	}
}

// listener wraps what a port accepts in TLS, where there is any.
func (g *gate) listener(ln net.Listener) net.Listener {
	if g.http == nil {
		return ln
	}
	return &secure.Listener{
		Listener: ln, Config: g.http, Limit: secure.HandshakeTime,
		Failed: func(remote net.Addr, err error) { g.audit.handshake(remote, "http", err) },
	}
}

// scheme is how the gateway's HTTP addresses are asked.
func (g *gate) scheme() string {
	if g.http != nil {
		return "https://"
	}
	return "http://"
}

// denial is why a caller is turned away.
type denial struct {
	openai.Error
	reason string // a metric's label
	bearer string // the WWW-Authenticate header (RFC 6750); "": a key would not help
}

func unauthorized(reason, code, text, bearer string) *denial {
	return &denial{openai.Error{Status: fasthttp.StatusUnauthorized, Type: openai.Unauthorized, Code: code, Message: text}, reason, bearer}
}

func forbidden(reason, text, bearer string) *denial {
	return &denial{openai.Error{Status: fasthttp.StatusForbidden, Type: "permission_error", Code: "forbidden", Message: text}, reason, bearer}
}

// decide says whether whoever shows header may do what at p.
func (g *gate) decide(p *port, what string, need access, header []byte) (secure.Caller, *denial) {
	caller := secure.Caller{Role: secure.RoleAdmin}
	if role := need.needs(p.admin); g.keys != nil && role > secure.RoleNone {
		var err error
		caller, err = g.keys.Check(header)
		switch {
		case errors.Is(err, secure.ErrNoToken):
			return caller, unauthorized("no_key", "missing_api_key", err.Error(), `Bearer realm="kindex"`)
		case err != nil:
			return caller, unauthorized("wrong_key", "invalid_api_key", err.Error(), `Bearer realm="kindex", error="invalid_token"`)
		case caller.Role < role:
			return caller, forbidden("role", fmt.Sprintf("authorization: %s asks for a key of role %s, this one has %s", what, role, caller.Role),
				`Bearer realm="kindex", error="insufficient_scope", scope="`+role.String()+`"`)
		}
	}
	apart := need == accessWatch || need == accessChange || need == accessProfile
	switch {
	case !apart || p.admin && !p.exposed:
	case g.cfg.AdminListen != "" && !p.admin:
		return caller, forbidden("admin_only", what+" is served at the admin address alone (admin-listen)", "")
	case need == accessProfile && g.cfg.AdminListen == "":
		return caller, forbidden("admin_only", what+" is served at an admin address alone: set admin-listen", "")
	case p.exposed && need != accessWatch:
		return caller, forbidden("exposed", what+" is not served beyond loopback without authentication: set api-key-file or tls-client-ca, or admin-listen to a loopback address, or open-admin", "")
	}
	return caller, nil
}

// admit lets an HTTP request for what in, or returns why not; the answer is the
// caller's to write, with the denial's challenge.
func (g *gate) admit(ctx *fasthttp.RequestCtx, p *port, what string, need access) (actor, *denial) {
	if need == accessOpen || g.keys == nil && g.http == nil && (need == accessAsk || !p.exposed && p.admin == (g.cfg.AdminListen != "") && need != accessProfile) {
		return actor{}, nil // nothing to look at: no work for a request on loopback
	}
	var conn *secure.Conn
	if c, ok := ctx.Conn().(*secure.Conn); ok {
		conn = c
	}
	var caller secure.Caller
	var no *denial
	if conn != nil && conn.Expired() {
		ctx.SetConnectionClose()
		no = unauthorized("certificate", "expired_certificate", "certificate: has expired since this connection began, connect with a new one", "")
	} else {
		caller, no = g.decide(p, what, need, ctx.Request.Header.Peek(fasthttp.HeaderAuthorization))
	}
	if no == nil && need == accessAsk {
		return actor{}, nil // nobody names it
	}
	a := httpActor(ctx, conn, caller)
	if no != nil {
		g.audit.refused(a, what, no.reason, no.Message)
	}
	return a, no
}

// actorOf is who sent a request that admit let in.
func (g *gate) actorOf(ctx *fasthttp.RequestCtx, a actor) actor {
	if a.via == "" {
		conn, _ := ctx.Conn().(*secure.Conn)
		a = httpActor(ctx, conn, secure.Caller{})
	}
	return a
}

func httpActor(ctx *fasthttp.RequestCtx, conn *secure.Conn, caller secure.Caller) actor {
	a := actor{who: caller.Name, remote: ctx.RemoteAddr().String(), via: "http"}
	if conn != nil {
		a.certificate = conn.Subject()
	}
	if a.who == "" {
		a.who = a.certificate
	}
	if a.who == "" {
		a.who = anonymous
	}
	return a
}
