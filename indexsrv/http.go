// SPDX-License-Identifier: Apache-2.0

// Before: clients. After: Host.

package indexsrv

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/internal/lookup"
	"kindex/internal/secure"
)

// maxDrainBytes is how much of an over-long body is read and thrown away, so
// that a client that is still sending gets to read the refusal.
const maxDrainBytes = 256 << 20

// route is one path of the HTTP contract.
type route struct {
	method string // GET also answers HEAD
	path   string
	serve  func(*Host, *fasthttp.RequestCtx, *queryScratch)
	body   bool // serve gets scratch with the request's body, else nil
	access access
	below  bool // path ends in / and stands for all paths below it
}

// What routes ask for.
var (
	openToAll = access{secure.RoleNone, placeAny}
	toRead    = access{secure.RoleRead, placeAny}
	toWatch   = access{secure.RoleRead, placeWatch}
	toLook    = access{secure.RoleNone, placeAdmin} // a page that knows nothing: what it shows it asks for with a token
	toShow    = access{secure.RoleRead, placeAdmin}
	toChange  = access{secure.RoleWrite, placeAdmin}
	toAdmin   = access{secure.RoleAdmin, placeAdmin}
	toCopy    = access{secure.RoleAdmin, placeAny}
)

const numRoutes = 20

// routes are all paths, in the order of their metrics.
var routes = [numRoutes]route{
	{"POST", "/query", (*Host).serveQuery, true, toRead, false},
	{"POST", "/query_by_hash", (*Host).serveQueryByHash, true, toRead, false},
	{"POST", "/explain", (*Host).serveExplain, true, toRead, false},
	{"POST", "/register", (*Host).serveRegister, true, toChange, false},
	{"POST", "/unregister", (*Host).serveUnregister, true, toChange, false},
	{"GET", "/workers", (*Host).serveWorkers, false, toRead, false},
	{"GET", "/dump", (*Host).serveDump, false, toRead, false},
	{"GET", "/digest", (*Host).serveDigest, false, toRead, false},
	{"GET", "/health", (*Host).serveHealth, false, openToAll, false},
	{"GET", "/livez", (*Host).serveHealth, false, openToAll, false},
	{"GET", "/readyz", (*Host).serveReady, false, openToAll, false},
	{"GET", "/metrics", (*Host).serveMetrics, false, toWatch, false},
	{"POST", "/register_peer", (*Host).serveRegisterPeer, true, toChange, false},
	{"POST", "/deregister_peer", (*Host).serveDeregisterPeer, true, toChange, false},
	{"GET", "/peers", (*Host).servePeers, false, toRead, false},
	{"GET", "/state", (*Host).serveState, false, toCopy, false},
	{"GET", "/debug/pprof/", (*Host).serveProfile, false, toAdmin, true},
	{"GET", "/ui/data", (*Host).serveUIData, false, toShow, false},
	{"GET", "/ui", (*Host).serveUI, false, toLook, false},
	{"GET", "/ui/", (*Host).serveUI, false, toLook, true},
}

func routeOf(path []byte) int {
	for i := range routes {
		if string(path) == routes[i].path || routes[i].below && bytes.HasPrefix(path, []byte(routes[i].path)) {
			return i
		}
	}
	return len(routes)
}

// statusOf maps refusals to HTTP.
var statusOf = [...]struct {
	kind   error
	status int
}{
	{ErrInvalid, fasthttp.StatusBadRequest},
	{ErrNotFound, fasthttp.StatusNotFound},
	{ErrConflict, fasthttp.StatusConflict},
	{ErrUnavailable, fasthttp.StatusServiceUnavailable},
	{ErrDenied, fasthttp.StatusForbidden},
	{ErrDeadline, fasthttp.StatusGatewayTimeout},
}

// RefusalStatus returns the HTTP status of an error of [Host.Register] and its
// kin.
func RefusalStatus(err error) int {
	for _, s := range statusOf {
		if errors.Is(err, s.kind) {
			return s.status
		}
	}
	return fasthttp.StatusInternalServerError
}

// newServer returns the server of one address.
func (h *Host) newServer(p *port) *fasthttp.Server {
	return &fasthttp.Server{
		Name:    "kindex",
		Handler: func(ctx *fasthttp.RequestCtx) { h.serveHTTP(ctx, p) },
		// Bodies are read by the handler, which can refuse a long one and still
		// be heard; see readBody.
		StreamRequestBody:            true,
		MaxRequestBodySize:           int(h.cfg.MaxBodyBytes),
		DisablePreParseMultipartForm: true,
		ErrorHandler:                 badRequest,
		ReadTimeout:                  h.cfg.ReadTimeout,
		IdleTimeout:                  h.cfg.IdleTimeout,
		Concurrency:                  h.cfg.MaxConnections,
		ReadBufferSize:               16 << 10, // bounds the request's header
		CloseOnShutdown:              true,
		LazyRequestTime:              true,
		SecureErrorLogMessage:        true, // what cannot be read may be a prompt
		Logger:                       serverLog{h.log},
	}
}

// serveHTTP answers one request at p.
func (h *Host) serveHTTP(ctx *fasthttp.RequestCtx, p *port) {
	i := routeOf(ctx.Path())
	defer h.finish(ctx, i)
	if i == len(routes) {
		refuseHTTP(ctx, fasthttp.StatusNotFound, "unknown path: must be one of "+knownPaths)
		return
	}
	r := &routes[i]
	if method := ctx.Method(); string(method) != r.method && (r.method != "GET" || string(method) != "HEAD") {
		ctx.Response.Header.Set(fasthttp.HeaderAllow, r.method)
		refuseHTTP(ctx, fasthttp.StatusMethodNotAllowed, r.path+" must be asked by "+r.method)
		return
	}
	if !h.authorize(ctx, p, r) {
		return
	}
	if !r.body {
		r.serve(h, ctx, nil)
		return
	}
	sc, ok := h.scratch.Get().(*queryScratch)
	if !ok {
		panic("BUG: indexsrv: the pool holds something else than scratch")
	}
	defer h.putScratch(sc)
	if !h.readBody(ctx, sc) {
		return
	}
	r.serve(h, ctx, sc)
}

// finish counts the request and turns a panic into an answer: a fault that one
// request meets must not take the host from all others.
func (h *Host) finish(ctx *fasthttp.RequestCtx, route int) {
	if p := recover(); p != nil {
		h.met.panics.Add(1)
		h.log.Error("request failed", "path", string(ctx.Path()), "panic", p, "stack", string(debug.Stack()))
		refuseHTTP(ctx, fasthttp.StatusInternalServerError, "internal error: this host's log has it")
	}
	h.met.request(route, ctx.Response.StatusCode())
}

var knownPaths = func() string {
	paths := make([]string, numRoutes)
	for i := range routes {
		paths[i] = routes[i].path
	}
	return strings.Join(paths, ", ")
}()

// readBody reads the request's body into sc.body, or refuses it.
func (h *Host) readBody(ctx *fasthttp.RequestCtx, sc *queryScratch) bool {
	if enc := ctx.Request.Header.ContentEncoding(); len(enc) > 0 && string(enc) != "identity" {
		refuseHTTP(ctx, fasthttp.StatusUnsupportedMediaType, "content-encoding: must be left out, bodies are plain JSON")
		return false
	}
	limit := int(h.cfg.MaxBodyBytes)
	stream := ctx.RequestBodyStream()
	if ctx.Request.Header.ContentLength() > limit {
		drainBody(stream)
		h.tooLong(ctx)
		return false
	}
	// A client's word is taken for no more than 64 KiB in advance.
	sc.body = slices.Grow(sc.body[:0], max(0, min(ctx.Request.Header.ContentLength(), 64<<10)))
	for stream != nil {
		if len(sc.body) == cap(sc.body) {
			sc.body = slices.Grow(sc.body, 512)
		}
		n, err := stream.Read(sc.body[len(sc.body):min(cap(sc.body), limit+1)])
		sc.body = sc.body[:len(sc.body)+n]
		switch {
		case len(sc.body) > limit:
			drainBody(stream)
			h.tooLong(ctx)
			return false
		case errors.Is(err, io.EOF):
			return true
		case err != nil:
			ctx.SetConnectionClose()
			badRequest(ctx, err)
			return false
		}
	}
	return true
}

// drainBody reads what a client is still sending, within bounds: a connection
// closed on unread bytes is reset, and the client never sees why.
func drainBody(stream io.Reader) {
	if stream != nil {
		// However it ends, the refusal is sent.
		_, _ = io.CopyN(io.Discard, stream, maxDrainBytes)
	}
}

func (h *Host) tooLong(ctx *fasthttp.RequestCtx) {
	ctx.SetConnectionClose()
	refuseHTTP(ctx, fasthttp.StatusRequestEntityTooLarge, "body: must be at most "+strconv.FormatInt(h.cfg.MaxBodyBytes, 10)+" bytes")
}

// badRequest answers what is no HTTP request, or did not arrive whole.
func badRequest(ctx *fasthttp.RequestCtx, err error) {
	var small *fasthttp.ErrSmallBuffer
	var netErr net.Error
	switch {
	case errors.As(err, &small):
		refuseHTTP(ctx, fasthttp.StatusRequestHeaderFieldsTooLarge, "header: must be at most 16384 bytes")
	case errors.As(err, &netErr) && netErr.Timeout():
		refuseHTTP(ctx, fasthttp.StatusRequestTimeout, "request: must arrive whole within the read timeout")
	default:
		refuseHTTP(ctx, fasthttp.StatusBadRequest, "request: must be well-formed HTTP/1.1")
	}
}

// refuseHTTP answers {"error":"..."}.
func refuseHTTP(ctx *fasthttp.RequestCtx, status int, text string) {
	ctx.Response.ResetBody()
	ctx.SetStatusCode(status)
	ctx.SetContentType(contentJSON)
	b := append([]byte(nil), `{"error":`...)
	b = lookup.AppendJSONString(b, text)
	ctx.SetBody(append(b, '}'))
}

func refuseErr(ctx *fasthttp.RequestCtx, err error) {
	refuseHTTP(ctx, RefusalStatus(err), err.Error())
}

// replyJSON answers with body, which it copies.
func replyJSON(ctx *fasthttp.RequestCtx, status int, body []byte) {
	ctx.SetStatusCode(status)
	ctx.SetContentType(contentJSON)
	ctx.SetBody(body)
}

const contentJSON = "application/json"

func (h *Host) serveHealth(ctx *fasthttp.RequestCtx, _ *queryScratch) {
	replyJSON(ctx, fasthttp.StatusOK, []byte(`{"status":"ok"}`))
}

// wrap makes of a listener what the HTTP servers accept from.
func (h *Host) wrap(ln net.Listener) net.Listener {
	ln = &stallListener{ln, h.cfg.WriteStallTimeout}
	if h.gate.http != nil {
		failed := func(remote net.Addr, err error) { h.gate.audit.handshake(remote, "http", err) }
		ln = &secure.Listener{Listener: ln, Config: h.gate.http, Failed: failed, Limit: secure.HandshakeTime}
	}
	return ln
}

// scheme is how the host's HTTP addresses are asked.
func (h *Host) scheme() string {
	if h.gate.http != nil {
		return "https://"
	}
	return "http://"
}

// serverLog is fasthttp's logger. What it reports is clients' doing, mostly.
type serverLog struct{ log *slog.Logger }

// Printf implements fasthttp's Logger.
func (l serverLog) Printf(format string, args ...any) {
	l.log.Debug("http", "message", fmt.Sprintf(format, args...))
}

// stallListener gives every connection a write deadline that moves on with each
// write: a client may take long, but not stand still.
type stallListener struct {
	net.Listener
	stall time.Duration
}

// Accept implements net.Listener.
func (l *stallListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &stallConn{c, l.stall}, nil
}

type stallConn struct {
	net.Conn
	stall time.Duration
}

// Write implements net.Conn. A large write is cut, so that the deadline is for
// progress and not for the whole.
func (c *stallConn) Write(b []byte) (int, error) {
	const piece = 256 << 10
	done := 0
	for {
		if err := c.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
			return done, err
		}
		n, err := c.Conn.Write(b[done:min(len(b), done+piece)])
		if done += n; err != nil || done == len(b) {
			return done, err
		}
	}
}
