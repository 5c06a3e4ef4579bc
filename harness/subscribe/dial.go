// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// How a subscriber waits: the contract's keepalive, and reconnects fast enough to tell a
// relay's time from its own.
const (
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	retryMin         = 20 * time.Millisecond
	retryMax         = 100 * time.Millisecond
	connectTimeout   = 2 * time.Second
	maxMessage       = 64 << 20
)

// Dial returns a connection to a relay at addr, host:port, that is made when it is used.
func Dial(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: retryMin, Multiplier: 1.5, Jitter: 0.2, MaxDelay: retryMax},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
}

// again runs once, which ends with an error when a stream does, until ctx ends.
func again(ctx context.Context, once func() (at bool)) {
	t := time.NewTimer(0)
	defer t.Stop()
	for ctx.Err() == nil {
		wait := retryMin
		if once() {
			wait = 0
		}
		t.Reset(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
}
