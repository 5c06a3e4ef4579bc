// SPDX-License-Identifier: Apache-2.0

// Before: any HTTP client. After: the engines, in turn.

package openloop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/internal/fdwait"
)

// maxProxied bounds a request's body, in bytes.
const maxProxied = 64 << 20

// Proxy hands each request to the next of its upstreams, whatever is in it, and its
// answer back as it comes: the router that knows nothing, to hold others against.
type Proxy struct {
	Addr string // host:port where it listens

	server    fasthttp.Server
	served    sync.WaitGroup
	next      atomic.Uint64
	upstreams []upstream
}

type upstream struct {
	client *fasthttp.HostClient
	path   string // before the request's own
}

// OpenProxy begins to serve at addr.
func OpenProxy(addr string, upstreams []string) (*Proxy, error) {
	p := &Proxy{}
	for _, s := range upstreams {
		if err := baseURL("--upstream", &s); err != nil {
			return nil, err
		}
		u, err := url.Parse(s)
		if err != nil {
			return nil, fmt.Errorf("--upstream: %w", err)
		}
		p.upstreams = append(p.upstreams, upstream{&fasthttp.HostClient{
			Addr: fasthttp.AddMissingPort(u.Host, u.Scheme == "https"), IsTLS: u.Scheme == "https",
			Dial: func(addr string) (net.Conn, error) {
				c, err := fasthttp.DialTimeout(addr, dialTime)
				if err != nil {
					return nil, err
				}
				return fdwait.Quiet(c), nil // a token is a small read
			},
			MaxConns: maxInFlight, MaxIdleConnDuration: idleTime, MaxIdemponentCallAttempts: 1,
			DisableHeaderNamesNormalizing: true, DisablePathNormalizing: true, NoDefaultUserAgentHeader: true,
		}, u.Path})
	}
	if len(p.upstreams) == 0 {
		return nil, errors.New("--upstream: give the engines' addresses, like http://127.0.0.1:8000,http://127.0.0.1:8001")
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	p.Addr = l.Addr().String()
	p.server = fasthttp.Server{
		Handler: p.pass, Logger: quiet{}, MaxRequestBodySize: maxProxied, Concurrency: maxInFlight, IdleTimeout: 2 * dialTime, ReadBufferSize: 16 << 10,
		DisableHeaderNamesNormalizing: true, NoDefaultServerHeader: true, NoDefaultDate: true, CloseOnShutdown: true,
	}
	p.served.Go(func() { _ = p.server.Serve(fdwait.Listener{Listener: l}) })
	return p, nil
}

// pass hands one request on. The server reads the answer's body as it comes, and
// breaks off with it.
func (p *Proxy) pass(ctx *fasthttp.RequestCtx) {
	up := &p.upstreams[(p.next.Add(1)-1)%uint64(len(p.upstreams))]
	req, resp := &ctx.Request, &ctx.Response
	req.Header.Del("Connection")
	req.SetHost(up.client.Addr)
	if up.path != "" {
		req.URI().SetPath(up.path + string(req.URI().Path()))
	}
	resp.StreamBody = true
	if err := up.client.Do(req, resp); err != nil {
		ctx.Error(fmt.Sprintf("%s does not answer: %v", up.client.Addr, err), fasthttp.StatusBadGateway)
		return
	}
	resp.Header.Del("Connection")
}

// Close ends it: what is on the way has a second to end by itself.
func (p *Proxy) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if p.server.ShutdownWithContext(ctx) == nil {
		p.served.Wait()
	}
}

type quiet struct{}

// Printf implements [fasthttp.Logger]: clients are told what goes wrong.
func (quiet) Printf(string, ...any) {}
