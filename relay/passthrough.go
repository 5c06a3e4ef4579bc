// SPDX-License-Identifier: Apache-2.0

// Before: gRPC clients of the engine. After: the engine's own gRPC server.

package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Keepalive of the connection to an engine's own server. Engines' servers answer
// faster pings with GOAWAY.
const (
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
)

// passthrough hands whatever the relay does not serve itself to the engine's own
// gRPC server: frames undecoded, metadata, deadlines, cancellation and trailers
// as they come, streaming both ways.
//
// Concurrency: any goroutine.
type passthrough struct {
	conn *grpc.ClientConn
	// ownToken: the clients' authorization is for the relay and ends here.
	ownToken bool
	mark     string // of this engine of this process, on every RPC that is passed through
	back     atomic.Uint64
	log      *slog.Logger
}

// hopKey is the metadata that holds the mark of each relay that passed an RPC on.
const hopKey = "kindex-relay-hop"

// maxHops bounds the relays that an RPC passes through.
const maxHops = 8

// newPassthrough returns a pass-through to the server at target, host:port, which
// need not be up.
func newPassthrough(target string, ownToken bool, log *slog.Logger) (*passthrough, error) {
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(newCodec()),
			grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32),
		),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		// An engine that comes back is found within seconds.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	)
	if err != nil {
		return nil, err
	}
	return &passthrough{conn: conn, ownToken: ownToken, mark: fmt.Sprintf("%016x", rand.Uint64()), log: log}, nil
}

func (p *passthrough) close() error { return p.conn.Close() }

// serve implements grpc.StreamHandler for any method.
func (p *passthrough) serve(_ any, down grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(down)
	if !ok {
		return status.Error(codes.Internal, "a stream without a method")
	}
	if err := p.cameBack(down.Context(), method); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	up, err := p.conn.NewStream(p.outgoing(ctx), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	go func() {
		if err := forwardUp(down, up); err != nil {
			cancel() // the caller is gone: the engine must know
		}
	}()
	return forwardDown(up, down)
}

// cameBack refuses an RPC that this relay itself passed on, or that too many did.
func (p *passthrough) cameBack(ctx context.Context, method string) error {
	marks := metadata.ValueFromIncomingContext(ctx, hopKey)
	if !slices.Contains(marks, p.mark) && len(marks) < maxHops {
		return nil
	}
	if p.back.Add(1) == 1 {
		p.log.Error("an RPC came back to the relay that passed it on: grpc= leads back here; it is refused, and so are all that follow, which are counted",
			"method", method, "grpc", p.conn.Target())
	}
	return status.Errorf(codes.FailedPrecondition,
		"%s came back to the relay that passed it on: grpc=%s must name the engine's own server", method, p.conn.Target())
}

// outgoing returns ctx with the caller's metadata for the engine.
func (p *passthrough) outgoing(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	md = md.Copy()
	for key := range md {
		// The transport writes these itself.
		if strings.HasPrefix(key, ":") || key == "content-type" || key == "user-agent" || key == "te" {
			delete(md, key)
		}
	}
	if p.ownToken {
		delete(md, "authorization")
	}
	md.Append(hopKey, p.mark)
	return metadata.NewOutgoingContext(ctx, md)
}

// forwardUp sends the caller's messages on until it has no more. An error is the
// caller's end; what the engine's side refuses is told by forwardDown.
func forwardUp(down grpc.ServerStream, up grpc.ClientStream) error {
	for {
		f := &frame{}
		switch err := down.RecvMsg(f); {
		case errors.Is(err, io.EOF):
			return up.CloseSend()
		case err != nil:
			return err
		}
		if err := up.SendMsg(f); err != nil {
			return nil //nolint:nilerr // the stream's end has the reason, and forwardDown reads it
		}
	}
}

// forwardDown sends the engine's header, messages and trailer to the caller, and
// returns the engine's status.
func forwardDown(up grpc.ClientStream, down grpc.ServerStream) error {
	header, err := up.Header()
	if err == nil && header != nil {
		// Without a header, there is nothing but a status to tell.
		if err := down.SendHeader(stripped(header)); err != nil {
			return err
		}
	}
	for {
		f := &frame{}
		if err := up.RecvMsg(f); err != nil {
			down.SetTrailer(stripped(up.Trailer()))
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := down.SendMsg(f); err != nil {
			return err
		}
	}
}

// stripped returns md without what the transport writes itself.
func stripped(md metadata.MD) metadata.MD {
	md = md.Copy()
	delete(md, "content-type")
	return md
}

// notPassed answers what the relay does not serve where it knows no server of the
// engine.
func notPassed(engine, service string) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		if !strings.HasPrefix(method, "/"+service+"/") {
			return status.Errorf(codes.Unimplemented, "%.200s is no RPC of engine %s or of this relay, which serves %s and kindex.relay.v1.RelayService", method, engine, service)
		}
		return status.Errorf(codes.Unimplemented,
			"%s is not served by the relay: give engine %s a grpc=host:port and it is passed through to the engine's own server", method, engine)
	}
}
