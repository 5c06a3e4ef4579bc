// SPDX-License-Identifier: Apache-2.0

// Before: try.go, which has a worker. After: the worker's own server.

package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"net"
	"net/url"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"kindex/gateway/fleet"
)

// Keepalive of connections to engines. Their servers answer faster pings with GOAWAY.
const (
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
)

// conns are the connections to workers, one each, made when first needed.
//
// Concurrency: any goroutine.
type conns struct {
	o *Options

	mu     sync.Mutex
	of     map[*fleet.Worker]*conn // guarded by mu
	closed bool                    // guarded by mu
}

// conn is one worker's connection. It is closed when the worker has left and nobody
// uses it any more.
type conn struct {
	*grpc.ClientConn
	users int  // guarded by conns.mu
	left  bool // guarded by conns.mu
}

var errClosed = errors.New("the gateway is stopping")

// get returns the connection to w, to be given back with put.
func (c *conns) get(w *fleet.Worker) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.of[w]
	if have == nil {
		if c.closed {
			return nil, errClosed
		}
		dialed, err := c.dial(w)
		if err != nil {
			return nil, err
		}
		have = &conn{ClientConn: dialed, left: w.State() == fleet.Removed} // nobody would tell of it again
		if !have.left {
			c.of[w] = have
		}
	}
	have.users++
	return have, nil
}

// put ends a use of the connection.
func (c *conns) put(conn *conn) {
	c.mu.Lock()
	conn.users--
	over := conn.left && conn.users == 0
	c.mu.Unlock()
	if over {
		_ = conn.Close() // nothing to tell
	}
}

func (c *conns) dial(w *fleet.Worker) (*grpc.ClientConn, error) {
	u, err := url.Parse(w.Spec.URL)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if u.Scheme == "grpcs" {
		creds = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Hostname()})
	}
	connect := c.o.Connect
	return grpc.NewClient(
		"passthrough:///"+u.Host,
		grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(newCodec()), grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32),
		),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: connect,
		}),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			d := net.Dialer{Timeout: connect}
			return d.DialContext(ctx, "tcp", addr)
		}),
	)
}

// forget closes w's connection once the calls that it carries have ended.
func (c *conns) forget(w *fleet.Worker) {
	c.mu.Lock()
	conn := c.of[w]
	delete(c.of, w)
	over := conn != nil && conn.users == 0
	if conn != nil {
		conn.left = true
	}
	c.mu.Unlock()
	if over {
		_ = conn.Close() // nothing to tell
	}
}

// close closes all.
func (c *conns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for w, conn := range c.of {
		_ = conn.Close() // nothing to tell
		delete(c.of, w)
	}
}
