// SPDX-License-Identifier: Apache-2.0

// Before: the front, probes, the tokenising of prompts. After: sockets.

package upstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	"kindex/gateway/fleet"
)

// Options are a client's.
type Options struct {
	Connect time.Duration // for a connection with its TLS
	Idle    time.Duration // after which an unused connection is closed
	MaxIdle int           // unused connections of a worker
	TLS     *tls.Config   // to https workers; nil: the system's roots
}

// DefaultOptions returns the defaults. Engines' servers close connections that are
// idle for 5 s; whoever closes first is spared a request on a dead one.
func DefaultOptions() Options {
	return Options{Connect: 2 * time.Second, Idle: 4 * time.Second, MaxIdle: 256}
}

// Client has the connections to all workers.
//
// Concurrency: any goroutine.
type Client struct {
	o      Options
	dialer net.Dialer
	pools  sync.Map // *fleet.Worker to *pool

	closing sync.Once
	stop    chan struct{}
	swept   chan struct{}
}

// New returns a client. It has a goroutine until Close.
func New(o Options) *Client {
	d := DefaultOptions()
	if o.Connect <= 0 {
		o.Connect = d.Connect
	}
	if o.Idle <= 0 {
		o.Idle = d.Idle
	}
	if o.MaxIdle <= 0 {
		o.MaxIdle = d.MaxIdle
	}
	c := &Client{o: o, stop: make(chan struct{}), swept: make(chan struct{})}
	c.dialer.KeepAlive = 15 * time.Second
	go c.sweep()
	return c
}

// sweep closes connections that have been idle for too long.
func (c *Client) sweep() {
	defer close(c.swept)
	tick := time.NewTicker(max(c.o.Idle/4, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
			before := fleet.Now() - int64(c.o.Idle)
			c.pools.Range(func(_, p any) bool {
				if p, ok := p.(*pool); ok {
					p.expire(before)
				}
				return true
			})
		}
	}
}

// Forget closes the idle connections to w, for good: what is under way ends as it
// would, and later requests to it get a connection each.
func (c *Client) Forget(w *fleet.Worker) {
	p, _ := c.pools.LoadAndDelete(w)
	if p, ok := p.(*pool); ok {
		p.close()
	}
}

// Close closes all idle connections. What is under way is the callers' to end.
func (c *Client) Close() {
	c.closing.Do(func() { close(c.stop) })
	<-c.swept
	c.pools.Range(func(w, p any) bool {
		c.pools.Delete(w)
		if p, ok := p.(*pool); ok {
			p.close()
		}
		return true
	})
}

// poolOf returns the pool of w. One of a removed worker keeps nothing.
func (c *Client) poolOf(w *fleet.Worker) (*pool, error) {
	if p := c.loaded(w); p != nil {
		return p, nil
	}
	p, err := newPool(w, c)
	if err != nil {
		return nil, &Error{Kind: Connect, URL: w.Spec.URL, Err: err}
	}
	if w.State() == fleet.Removed {
		p.close()
		return p, nil
	}
	c.pools.LoadOrStore(w, p)
	if kept := c.loaded(w); kept != nil {
		p = kept
	}
	if w.State() == fleet.Removed { // and Forget may have been before the store
		c.Forget(w)
	}
	return p, nil
}

// loaded returns the pool of w that there is, or nil.
func (c *Client) loaded(w *fleet.Worker) *pool {
	v, _ := c.pools.Load(w)
	p, _ := v.(*pool)
	return p
}

// pool has the idle connections of one worker.
type pool struct {
	client *Client
	url    string
	addr   string // host and port
	host   string // as the Host header has it
	prefix string // of all paths, of a URL with a path
	tls    *tls.Config

	mu     sync.Mutex
	idle   []*conn // the newest last
	closed bool
}

func newPool(w *fleet.Worker, c *Client) (*pool, error) {
	u, err := url.Parse(w.Spec.URL)
	if err != nil {
		return nil, err
	}
	p := &pool{client: c, url: w.Spec.URL, host: u.Host}
	port := u.Port()
	switch u.Scheme {
	case "http":
		if port == "" {
			port = "80"
		}
	case "https":
		if port == "" {
			port = "443"
		}
		p.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		if c.o.TLS != nil {
			p.tls = c.o.TLS.Clone()
		}
		p.tls.NextProtos = []string{"http/1.1"}
		if p.tls.ServerName == "" {
			p.tls.ServerName = u.Hostname()
		}
	default:
		return nil, fmt.Errorf("the worker's URL has the scheme %q, want http or https", u.Scheme)
	}
	p.addr = net.JoinHostPort(u.Hostname(), port)
	for p.prefix = u.EscapedPath(); p.prefix != "" && p.prefix[len(p.prefix)-1] == '/'; {
		p.prefix = p.prefix[:len(p.prefix)-1]
	}
	return p, nil
}

// take returns an idle connection, the newest, or nil.
func (p *pool) take() *conn {
	before := fleet.Now() - int64(p.client.o.Idle)
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 || p.idle[n-1].since < before { // the rest is older still: the sweep's
		return nil
	}
	c := p.idle[n-1]
	p.idle[n-1] = nil
	p.idle = p.idle[:n-1]
	return c
}

// give takes a connection back whose answer was read to the end.
func (p *pool) give(c *conn) {
	c.since = fleet.Now()
	p.mu.Lock()
	if p.closed || len(p.idle) >= p.client.o.MaxIdle {
		p.mu.Unlock()
		c.close()
		return
	}
	p.idle = append(p.idle, c)
	p.mu.Unlock()
}

// expire closes connections that have been idle since before a moment.
func (p *pool) expire(before int64) {
	p.mu.Lock()
	n := 0
	for n < len(p.idle) && p.idle[n].since < before {
		n++
	}
	old := append([]*conn(nil), p.idle[:n]...)
	rest := copy(p.idle, p.idle[n:])
	clear(p.idle[rest:])
	p.idle = p.idle[:rest]
	p.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

func (p *pool) close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
}

// dial makes a connection.
func (p *pool) dial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.client.o.Connect)
	defer cancel()
	raw, err := p.client.dialer.DialContext(ctx, "tcp", p.addr)
	if err != nil {
		return nil, err
	}
	if p.tls == nil {
		return newConn(p, raw, raw), nil
	}
	secured := tls.Client(raw, p.tls)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // the handshake's error says it
		return nil, err
	}
	return newConn(p, raw, secured), nil
}
