// SPDX-License-Identifier: Apache-2.0

// Before: replicas. After: the host's gRPC server.

package indexclient

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"kindex/internal/lookup"
	"kindex/internal/lookuppb"
	kindexv1 "kindex/proto/kindex/v1"
)

// minConnect is the least time that a connection may take to be made.
const minConnect = 2 * time.Second

// grpcHost is one host over gRPC.
//
// Concurrency: any goroutine.
type grpcHost struct {
	o       *Options
	conn    *grpc.ClientConn
	workers kindexv1.WorkersServiceClient
	names   lookuppb.Names
	pipe    *pipe     // nil: lookups are calls of their own
	calls   sync.Pool // *unaryCall
	closed  atomic.Bool
}

// unaryCall is the memory of one call.
type unaryCall struct {
	request, response lookuppb.Raw
	decoded           lookuppb.Response
}

// maxKept is how much memory of a large call is kept.
const maxKept = 1 << 20

// dialGRPC returns the host at address. It connects when it is first asked.
func dialGRPC(address string, o *Options) (lookup.Index, error) {
	creds := insecure.NewCredentials()
	if o.TLS != nil {
		creds = credentials.NewTLS(o.TLS)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: o.RetryDelay, Multiplier: 1.6, Jitter: 0.25, MaxDelay: o.RetryMax},
			MinConnectTimeout: max(o.Timeout, minConnect),
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: o.Silence / 2, Timeout: o.Silence / 2, PermitWithoutStream: true}),
		grpc.WithIdleTimeout(0),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithUserAgent("kindex"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxMessage), grpc.ForceCodecV2(lookuppb.NewCodec())),
	}
	if o.Token != nil {
		options = append(options, grpc.WithPerRPCCredentials(lookuppb.Bearer(o.Token)))
	}
	authority := address
	if o.TLS != nil && o.TLS.ServerName != "" {
		authority = o.TLS.ServerName
	}
	options = append(options, grpc.WithAuthority(authority))
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		return nil, lookup.Refuse(ErrInvalid, "target: %s: %v", address, err)
	}
	h := &grpcHost{o: o, conn: conn, workers: kindexv1.NewWorkersServiceClient(conn)}
	h.calls.New = func() any { return new(unaryCall) }
	if !o.Unary {
		h.pipe = newPipe(h)
	}
	conn.Connect()
	return h, nil
}

// Lookup implements [Client].
func (h *grpcHost) Lookup(ctx context.Context, q *lookup.Query, a *lookup.Answer) error {
	a.Reset()
	if err := q.Check(); err != nil { // what the wire cannot carry would come as something else
		return err
	}
	ctx, cancel := h.o.bounded(ctx)
	defer cancel()
	for tries := 0; ; tries++ {
		var err error
		if h.pipe != nil {
			err = h.pipe.lookup(ctx, q, a)
		} else {
			err = h.unary(ctx, q, a)
		}
		if broken, ok := errors.AsType[*brokenError](err); ok {
			err = broken.error
			if tries == 0 && errors.Is(err, ErrUnavailable) && !errors.Is(err, errClosed) {
				continue // the stream has ended, perhaps not the host
			}
		}
		return err
	}
}

// reconnect makes the next try to connect come at once.
func (h *grpcHost) reconnect() { h.conn.ResetConnectBackoff() }

// unary asks by a call of its own.
func (h *grpcHost) unary(ctx context.Context, q *lookup.Query, a *lookup.Answer) error {
	c, ok := h.calls.Get().(*unaryCall)
	if !ok {
		panic("BUG: indexclient: the pool holds something else than calls")
	}
	c.request.Bytes = lookuppb.AppendRequest(c.request.Bytes[:0], q)
	err := h.conn.Invoke(ctx, kindexv1.IndexService_Lookup_FullMethodName, &c.request, &c.response)
	if err != nil {
		return h.fault(ctx, err) // gRPC may still hold what was sent
	}
	err = c.decoded.Decode(c.response.Bytes, &h.names, a)
	if cap(c.request.Bytes)+cap(c.response.Bytes) <= maxKept {
		h.calls.Put(c)
	}
	return err
}

// errClosed is what a call gets after Close.
var errClosed = lookup.Refuse(ErrUnavailable, "the client is closed")

// fault returns what err, a status, says.
func (h *grpcHost) fault(ctx context.Context, err error) error {
	if h.closed.Load() {
		return errClosed
	}
	if errors.Is(err, io.EOF) {
		return lookup.Refuse(ErrUnavailable, "the host ended the stream")
	}
	return lookuppb.FromStatus(ctx, err)
}

// Workers implements [Client].
func (h *grpcHost) Workers(ctx context.Context, f lookup.Filter) ([]lookup.Worker, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := h.o.bounded(ctx)
	defer cancel()
	m, err := h.workers.ListWorkers(ctx, &kindexv1.ListWorkersRequest{ModelName: f.Model, RoutingGroup: f.Group, TenantId: f.Tenant})
	if err != nil {
		return nil, h.fault(ctx, err)
	}
	return lookuppb.DecodeWorkers(m.GetWorkers()), nil
}

// Watch implements [Client], until the connection breaks.
func (h *grpcHost) Watch(ctx context.Context, f lookup.Filter, fn func(*lookup.Update) error) error {
	if err := f.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the call where fn does
	defer cancel()
	stream, err := h.workers.WatchWorkers(ctx, &kindexv1.WatchWorkersRequest{ModelName: f.Model, RoutingGroup: f.Group, TenantId: f.Tenant})
	if err != nil {
		return h.fault(ctx, err)
	}
	var u *lookup.Update
	for {
		m, err := stream.Recv()
		if err != nil {
			return h.fault(ctx, err)
		}
		var all bool
		if u, all = lookuppb.JoinUpdate(u, m); !all {
			continue
		}
		if err := fn(u); err != nil {
			return err
		}
		u = nil
	}
}

// Loads implements [Client], until the connection breaks.
func (h *grpcHost) Loads(ctx context.Context, f lookup.Filter, fn func(*lookup.LoadUpdate) error) error {
	if err := f.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the call where fn does
	defer cancel()
	stream, err := h.workers.WatchLoads(ctx, &kindexv1.WatchLoadsRequest{ModelName: f.Model, RoutingGroup: f.Group, TenantId: f.Tenant})
	if err != nil {
		return h.fault(ctx, err)
	}
	var dec lookuppb.LoadDecoder
	for {
		m, err := stream.Recv()
		if err != nil {
			return h.fault(ctx, err)
		}
		u, err := dec.Decode(m)
		if err != nil {
			return err
		}
		if u == nil {
			continue
		}
		if err := fn(u); err != nil {
			return err
		}
	}
}

// Close implements [Client].
func (h *grpcHost) Close() error {
	h.closed.Store(true)
	if h.pipe != nil {
		h.pipe.close()
	}
	return h.conn.Close()
}
