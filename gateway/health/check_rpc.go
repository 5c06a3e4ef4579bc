// SPDX-License-Identifier: Apache-2.0

// Before: check.go, which has a gRPC worker. After: its health services.

package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"kindex/gateway/fleet"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// dials is the peer's pace, below which servers cut who pings them.
var dials = keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}

// rpcTarget is where a gRPC worker is asked. A connection of HTTP/2 is dear, so that one
// is kept while the worker is well.
//
// Concurrency: any goroutine.
type rpcTarget struct {
	addr  string
	creds credentials.TransportCredentials
	asks  atomic.Int32 // index into services of the one that it has

	mu   sync.Mutex
	kept *grpc.ClientConn // guarded by mu
	done bool             // guarded by mu
}

// services are the ways to ask, each with what follows from its answer.
var services = [...]func(ctx context.Context, c *grpc.ClientConn) error{
	func(ctx context.Context, c *grpc.ClientConn) error {
		a, err := vllm.NewVllmEngineClient(c).HealthCheck(ctx, &vllm.HealthCheckRequest{})
		return verdict(a.GetHealthy(), a.GetMessage(), err)
	},
	func(ctx context.Context, c *grpc.ClientConn) error {
		a, err := sglang.NewSglangSchedulerClient(c).HealthCheck(ctx, &sglang.HealthCheckRequest{})
		return verdict(a.GetHealthy(), a.GetMessage(), err)
	},
	func(ctx context.Context, c *grpc.ClientConn) error {
		a, err := healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{})
		return verdict(a.GetStatus() == healthpb.HealthCheckResponse_SERVING, a.GetStatus().String(), err)
	},
}

func verdict(well bool, message string, err error) error {
	if err == nil && !well {
		return fmt.Errorf("it says %q", message)
	}
	return err
}

func newRPCTarget(w *fleet.Worker, o *Options) (*rpcTarget, error) {
	scheme, addr, _ := strings.Cut(w.Spec.URL, "://")
	addr, _, _ = strings.Cut(addr, "/")
	t := &rpcTarget{addr: addr, creds: insecure.NewCredentials()}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fmt.Errorf("%s: must be %s://host:port", w.Spec.URL, scheme)
	}
	if scheme == "grpcs" {
		cfg := &tls.Config{MinVersion: tls.VersionTLS12}
		if o.TLS != nil {
			cfg = o.TLS.Clone()
		}
		t.creds = credentials.NewTLS(cfg)
	}
	if w.Spec.Engine == fleet.SGLang {
		t.asks.Store(1)
	}
	return t, nil
}

func (t *rpcTarget) check(ctx context.Context, w *fleet.Worker, connect time.Duration, fresh bool) error {
	if key := w.Terms().APIKey; key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	}
	conn, err := t.conn(connect, fresh)
	if err != nil {
		return err
	}
	err = t.ask(ctx, conn)
	if !t.keep(conn, err == nil) {
		_ = conn.Close()
	}
	return err
}

// conn returns the kept connection, or a new one that is the caller's until keep.
func (t *rpcTarget) conn(connect time.Duration, fresh bool) (*grpc.ClientConn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept != nil && !fresh {
		return t.kept, nil
	}
	return grpc.NewClient(
		"passthrough:///"+t.addr, grpc.WithTransportCredentials(t.creds), grpc.WithKeepaliveParams(dials), grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(), grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1, MaxDelay: 100 * time.Millisecond},
			// A server that is connected to and says nothing is not one that cannot be
			// connected to: the call waits.
			MinConnectTimeout: time.Hour,
		}),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			d := net.Dialer{Timeout: connect}
			return d.DialContext(ctx, "tcp", addr)
		}))
}

// keep makes conn the kept connection where the worker is well, in the place of one
// before it; it reports whether conn stays open.
func (t *rpcTarget) keep(conn *grpc.ClientConn, well bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return false
	}
	if !well {
		if t.kept == conn {
			t.kept = nil
		}
		return false
	}
	if t.kept != conn {
		if t.kept != nil {
			_ = t.kept.Close()
		}
		t.kept = conn
	}
	return true
}

func (t *rpcTarget) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done = true
	if t.kept != nil {
		_ = t.kept.Close()
		t.kept = nil
	}
}

// ask asks the service that the worker has, and looks for it first.
func (t *rpcTarget) ask(ctx context.Context, conn *grpc.ClientConn) error {
	at := t.asks.Load()
	var err error
	for range services {
		err = services[at](ctx, conn)
		if status.Code(err) != codes.Unimplemented {
			t.asks.Store(at)
			break
		}
		at = (at + 1) % int32(len(services))
	}
	if ctx.Err() != nil {
		return err
	}
	switch status.Code(err) {
	case codes.Unavailable:
		return connectError(err)
	case codes.ResourceExhausted:
		return errFull
	case codes.Unimplemented:
		return errors.New("it has no health service")
	default:
		return err
	}
}
