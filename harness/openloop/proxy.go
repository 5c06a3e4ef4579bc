// SPDX-License-Identifier: Apache-2.0

// Before: any HTTP client. After: the engines, in turn.

package openloop

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy hands each request to the next of its upstreams, whatever is in it, and its
// answer back as it comes: the router that knows nothing, to hold others against.
type Proxy struct {
	Addr string // host:port where it listens

	server http.Server
	served sync.WaitGroup
	next   atomic.Uint64
	urls   []*url.URL
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
		p.urls = append(p.urls, u)
	}
	if len(p.urls) == 0 {
		return nil, errors.New("--upstream: give the engines' addresses, like http://127.0.0.1:8000,http://127.0.0.1:8001")
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	p.Addr = l.Addr().String()
	quiet := log.New(discard{}, "", 0)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(p.urls[(p.next.Add(1)-1)%uint64(len(p.urls))])
			r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
		},
		FlushInterval: -1, // events go on as they come
		BufferPool:    &buffers{},
		ErrorLog:      quiet, // the client is told
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: dialTime}).DialContext,
			MaxIdleConns:        maxInFlight,
			MaxIdleConnsPerHost: maxInFlight,
			IdleConnTimeout:     idleTime,
			DisableCompression:  true,
			WriteBufferSize:     64 << 10,
		},
	}
	p.server = http.Server{Handler: proxy, ReadHeaderTimeout: dialTime, IdleTimeout: 2 * idleTime, ErrorLog: quiet}
	p.served.Go(func() { _ = p.server.Serve(l) })
	return p, nil
}

// Close ends it: what is on the way has a second to end by itself.
func (p *Proxy) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if p.server.Shutdown(ctx) != nil {
		_ = p.server.Close()
	}
	p.served.Wait()
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// buffers lends the proxy its buffers.
type buffers struct{ pool sync.Pool }

// Get implements [httputil.BufferPool].
func (b *buffers) Get() []byte {
	if x, ok := b.pool.Get().(*[]byte); ok {
		return *x
	}
	return make([]byte, 16<<10)
}

// Put implements [httputil.BufferPool].
func (b *buffers) Put(x []byte) { b.pool.Put(&x) }
