// SPDX-License-Identifier: Apache-2.0

// Before: a network. After: client.go (one connection whose handshake is done).

package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// The windows of flow control, bytes: what the server may send while a handler
// runs. Chosen, not measured: a chunk of a snapshot at full size fits.
const (
	streamWindow = 2 << 20
	connWindow   = 4 << 20
)

// The pings of a connection. gRPC servers of engines end a connection that pings
// more often than every 5 minutes without, or every 30 s with, a stream.
const (
	pingPeriod  = 30 * time.Second
	pingTimeout = 10 * time.Second
)

// dialOptions returns what every connection is made with.
func (c *Client) dialOptions() []grpc.DialOption {
	creds := insecure.NewCredentials()
	if c.cfg.TLS != nil {
		creds = credentials.NewTLS(c.cfg.TLS)
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", c.cfg.Address)
		}),
		// An attempt is never repeated by gRPC: dial does it.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Hour, Multiplier: 1, MaxDelay: time.Hour},
			MinConnectTimeout: c.cfg.DialTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingPeriod, Timeout: pingTimeout}),
		grpc.WithIdleTimeout(0),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithUserAgent("kindex"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.cfg.MaxMessageBytes)),
	}
}

// attempted is how one attempt ended: a connection or an error.
type attempted struct {
	conn *grpc.ClientConn
	err  error
}

// dial returns the first connection that becomes ready. It begins an attempt every
// DialPeriod, a quarter more or less, and goes on until one succeeds or ctx ends.
// failed is told why attempts fail.
func (c *Client) dial(ctx context.Context, failed func(error)) (*grpc.ClientConn, error) {
	trying, stop := context.WithCancel(ctx)
	ended := make(chan attempted)
	running := 0
	begin := func() {
		running++
		go func() {
			conn, err := c.attempt(trying)
			ended <- attempted{conn, err}
		}()
	}
	defer func() {
		stop()
		for ; running > 0; running-- {
			if late := <-ended; late.conn != nil {
				_ = late.conn.Close() // not needed: nothing was sent on it
			}
		}
	}()
	begin()
	timer := time.NewTimer(c.dialPause())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
			if running < maxAttempts {
				begin()
			}
			timer.Reset(c.dialPause())
		case a := <-ended:
			running--
			if a.err == nil {
				return a.conn, nil
			}
			failed(a.err)
		}
	}
}

func (c *Client) dialPause() time.Duration {
	return time.Duration(float64(c.cfg.DialPeriod) * (0.75 + rand.Float64()/2))
}

// attempt makes one connection and waits for its handshake.
func (c *Client) attempt(ctx context.Context) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+c.cfg.Address, c.dialOptions()...)
	if err != nil {
		return nil, err
	}
	conn.Connect()
	for {
		s := conn.GetState()
		switch s {
		case connectivity.Ready:
			return conn, nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			err := whyNot(ctx, conn)
			_ = conn.Close() // it never carried anything
			return nil, err
		case connectivity.Idle, connectivity.Connecting:
		}
		if !conn.WaitForStateChange(ctx, s) {
			_ = conn.Close() // as above
			return nil, fmt.Errorf("no answer within %v", c.cfg.DialTimeout)
		}
	}
}

// whyNot returns why conn, which failed, did: only a call is told.
func whyNot(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	if err == nil {
		return errors.New("the connection ended")
	}
	return errors.New(oneLine(status.Convert(err).Message()))
}

// maxWhy bounds a reason that a server gave, in bytes.
const maxWhy = 300

// oneLine makes a reason fit for a log line and a status, whoever wrote it.
func oneLine(s string) string {
	s = strings.TrimPrefix(s, "connection error: desc = ")
	if len(s) > 1 && s[0] == '"' && s[len(s)-1] == '"' {
		s = s[1 : len(s)-1]
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	s = strings.ToValidUTF8(s, "?")
	if len(s) > maxWhy {
		s = strings.ToValidUTF8(s[:maxWhy], "") + "..."
	}
	return s
}
