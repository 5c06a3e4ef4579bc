// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"context"
	"sync"
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

// The windows of flow control, bytes: those of the peer's gateway. Without them gRPC
// asks for an answer to a ping with nearly every message, to measure what is under way:
// the relay would be measured at answering pings.
const (
	streamWindow = 256 << 10
	connWindow   = 512 << 20
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
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
}

// line is one subscription after the other, until it is closed.
//
// Concurrency: any goroutine; run is one's.
type line struct {
	mu   sync.Mutex
	end  context.CancelFunc // of the stream that runs; nil: none
	rest time.Duration      // before the next
}

// Rest ends the stream that runs, without a word, and has the next begin after d.
func (l *line) Rest(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = d
	if l.end != nil {
		l.end()
	}
}

// run runs stream again and again until ctx ends. It returns whether the next should
// begin at once.
func (l *line) run(ctx context.Context, stream func(context.Context) bool) {
	t := time.NewTimer(0)
	defer t.Stop()
	for ctx.Err() == nil {
		one, cancel := context.WithCancel(ctx)
		l.mu.Lock()
		l.end = cancel
		l.mu.Unlock()
		wait := retryMin
		if stream(one) {
			wait = 0
		}
		cancel()
		l.mu.Lock()
		if l.end = nil; l.rest > 0 {
			wait, l.rest = l.rest, 0
		}
		l.mu.Unlock()
		t.Reset(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
}
