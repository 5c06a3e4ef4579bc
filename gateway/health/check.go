// SPDX-License-Identifier: Apache-2.0

// Before: probe.go, which has a probe. After: a worker's socket.

package health

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"time"

	"kindex/gateway/fleet"
	"kindex/internal/fdwait"
)

// Checker asks one worker whether it serves: nil, or why not. It returns when ctx ends.
// A connection may take it as long as connect; fresh says that it must be a new one.
type Checker func(ctx context.Context, w *fleet.Worker, connect time.Duration, fresh bool) error

// What an error of a check may be; any other one is an answer that says no.
var (
	errConnect = errors.New("no connection")
	errFull    = errors.New("it is full")
	errOurs    = errors.New("the gateway cannot connect")
)

// target is where one worker is asked.
//
// Concurrency: any goroutine.
type target interface {
	check(ctx context.Context, w *fleet.Worker, connect time.Duration, fresh bool) error
	close() // checks under way end as they would
}

// check is a [Checker], which keeps nothing.
func (f Checker) check(ctx context.Context, w *fleet.Worker, connect time.Duration, fresh bool) error {
	return f(ctx, w, connect, fresh)
}
func (Checker) close() {}

// targetOf returns where w is asked, over HTTP or gRPC as its URL says. One whose URL
// cannot be used says so whenever it is asked.
func targetOf(w *fleet.Worker, o *Options) target {
	if o.Check != nil {
		return o.Check
	}
	var t target
	var err error
	if w.Spec.GRPC() {
		t, err = newRPCTarget(w, o)
	} else {
		t, err = newHTTPTarget(w, o)
	}
	if err != nil {
		return Checker(func(context.Context, *fleet.Worker, time.Duration, bool) error { return err })
	}
	return t
}

// httpTarget is where an HTTP worker is asked. It is immutable.
//
// A check is a connection for one GET: a kept one would say nothing of whether others
// can be made, and most engines' servers close it within seconds. The server is asked to
// close it first, so that no closed ones pile up on this side.
type httpTarget struct {
	addr string // host:port
	head string // of the request, up to its authorization
	tls  *tls.Config
}

func newHTTPTarget(w *fleet.Worker, o *Options) (*httpTarget, error) {
	u, err := url.Parse(w.Spec.URL)
	if err != nil {
		return nil, err
	}
	t := &httpTarget{}
	port := u.Port()
	switch u.Scheme {
	case "http":
		port = orElse(port, "80")
	case "https":
		port = orElse(port, "443")
		t.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		if o.TLS != nil {
			t.tls = o.TLS.Clone()
		}
		t.tls.ServerName = orElse(t.tls.ServerName, u.Hostname())
		t.tls.NextProtos = nil
		if t.tls.ClientSessionCache == nil {
			t.tls.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		}
	default:
		return nil, fmt.Errorf("%s: must begin with http, https, grpc or grpcs", w.Spec.URL)
	}
	t.addr = net.JoinHostPort(u.Hostname(), port)
	path := orElse(o.ProbePath, "/health")
	for base := u.EscapedPath(); len(base) > 1; base = base[:len(base)-1] {
		if base[len(base)-1] != '/' {
			path = base + path
			break
		}
	}
	t.head = "GET " + path + " HTTP/1.1\r\nHost: " + u.Host + "\r\nUser-Agent: kindex\r\nAccept: */*\r\nConnection: close\r\n"
	return t, nil
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func (*httpTarget) close() {}

func (t *httpTarget) check(ctx context.Context, w *fleet.Worker, connect time.Duration, _ bool) error {
	d := net.Dialer{Timeout: connect, KeepAlive: -1}
	c, err := d.DialContext(ctx, "tcp", t.addr)
	if err != nil {
		return connectError(err)
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if t.tls != nil {
		over := tls.Client(c, t.tls)
		if err := over.HandshakeContext(ctx); err != nil {
			if ctx.Err() != nil {
				return err
			}
			return fmt.Errorf("%w: %w", errConnect, err)
		}
		c = over
	}
	ask := make([]byte, 0, 512)
	ask = append(ask, t.head...)
	if key := w.Terms().APIKey; key != "" {
		ask = append(append(append(ask, "Authorization: Bearer "...), key...), '\r', '\n')
	}
	ask = append(ask, '\r', '\n')
	if _, err := c.Write(ask); err != nil {
		return cutError(ctx, err)
	}
	status, err := readStatus(c, ask[:0])
	if err != nil {
		return cutError(ctx, err)
	}
	switch {
	case status/100 == 2:
		return nil
	case KindOf(status) == BackPressure && status != 503: // 503 of this path is its own word
		return errFull
	}
	return fmt.Errorf("it answers %d", status)
}

// connectError tells a worker that cannot be connected to from a gateway that can
// connect to nobody.
func connectError(err error) error {
	if fdwait.Exhausted(err) {
		return fmt.Errorf("%w: %w", errOurs, err)
	}
	return fmt.Errorf("%w: %w", errConnect, err)
}

// cutError is the error of a new connection that ended without an answer: before a dead
// engine, a proxy does that.
func cutError(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, errNoHTTP) {
		return err
	}
	return fmt.Errorf("%w: %w", errConnect, err)
}

var errNoHTTP = errors.New("the answer is no HTTP")

// readStatus reads an answer's first line into b, and returns its status.
func readStatus(r io.Reader, b []byte) (int, error) {
	b = b[:0]
	for bytes.IndexByte(b, '\n') < 0 {
		if len(b) == cap(b) {
			return 0, errNoHTTP
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if n == 0 && err != nil {
			if errors.Is(err, io.EOF) && len(b) > 0 {
				return 0, errNoHTTP
			}
			return 0, err
		}
	}
	// HTTP/1.1 200 OK
	if len(b) < 13 || !bytes.HasPrefix(b, []byte("HTTP/1.")) || b[8] != ' ' {
		return 0, errNoHTTP
	}
	status, err := strconv.Atoi(string(b[9:12]))
	if err != nil || status < 100 {
		return 0, errNoHTTP
	}
	return status, nil
}
