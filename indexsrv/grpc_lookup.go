// SPDX-License-Identifier: Apache-2.0

// Before: the gRPC server, with a message as it came. After: Host.Lookup; then back,
// encoded.

package indexsrv

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"kindex/internal/lookup"
	"kindex/internal/lookuppb"
	kindexv1 "kindex/proto/kindex/v1"
)

// lookupService is IndexService with handlers that are given messages undecoded.
var lookupService = grpc.ServiceDesc{
	ServiceName: kindexv1.IndexService_ServiceDesc.ServiceName,
	HandlerType: (*lookupHandler)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: "Lookup", Handler: handleLookup}},
	Streams:     []grpc.StreamDesc{{StreamName: "LookupStream", Handler: handleLookupStream, ServerStreams: true, ClientStreams: true}},
	Metadata:    kindexv1.IndexService_ServiceDesc.Metadata,
}

type lookupHandler interface {
	lookup(ctx context.Context, c *rpcCall) (any, error)
	lookupStream(stream grpc.ServerStream) error
}

var _ lookupHandler = (*rpcServer)(nil)

// rpcCall is the memory of one lookup after the other.
type rpcCall struct {
	in, out lookuppb.Raw
	request lookuppb.Request
	answer  lookup.Answer
	encoder lookuppb.AnswerEncoder
}

func newRPCCall(s *rpcServer) *rpcCall {
	c := &rpcCall{}
	c.out.Sent = func() {
		if cap(c.in.Bytes)+cap(c.out.Bytes)+c.request.Size()+64*cap(c.answer.Matches) <= maxKeptBytes {
			s.calls.Put(c)
		}
	}
	return c
}

//nolint:revive // the order of arguments is gRPC's
func handleLookup(srv any, ctx context.Context, decode func(any) error, admit grpc.UnaryServerInterceptor) (any, error) {
	s, ok := srv.(*rpcServer)
	if !ok {
		panic("BUG: indexsrv: the service of lookups is another's")
	}
	c, ok := s.calls.Get().(*rpcCall)
	if !ok {
		panic("BUG: indexsrv: the pool holds something else than calls")
	}
	if err := decode(&c.in); err != nil {
		return nil, err
	}
	return admit(ctx, c, &grpc.UnaryServerInfo{Server: srv, FullMethod: kindexv1.IndexService_Lookup_FullMethodName},
		func(ctx context.Context, _ any) (any, error) { return s.lookup(ctx, c) })
}

func handleLookupStream(srv any, stream grpc.ServerStream) error {
	s, ok := srv.(*rpcServer)
	if !ok {
		panic("BUG: indexsrv: the service of lookups is another's")
	}
	return s.lookupStream(stream)
}

// lookup answers one call.
func (s *rpcServer) lookup(ctx context.Context, c *rpcCall) (any, error) {
	err := c.request.Decode(c.in.Bytes)
	if err == nil {
		err = s.h.Lookup(ctx, &c.request.Query, &c.answer)
	}
	s.met.lookup(err)
	if err != nil {
		return nil, lookuppb.Status(err)
	}
	c.out.Bytes = c.encoder.AppendResponse(c.out.Bytes[:0], &c.answer)
	return &c.out, nil
}

// lookupStream answers what comes, in order: a lookup takes less than handing it
// to another goroutine would. A client that does not read is not read from.
func (s *rpcServer) lookupStream(stream grpc.ServerStream) error {
	g := guardOf(stream.Context())
	c := &rpcCall{}
	ctx := stream.Context()
	for {
		if err := stream.RecvMsg(&c.in); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if !g.begin() {
			return errRPCShutdown
		}
		err := c.request.DecodeStream(c.in.Bytes)
		if err == nil {
			err = s.h.Lookup(ctx, &c.request.Query, &c.answer)
		}
		s.met.lookup(err)
		if err == nil {
			c.out.Bytes = c.encoder.AppendStreamResponse(c.out.Bytes[:0], c.request.ID, &c.answer)
		} else {
			text := err.Error()
			kind := lookuppb.WireKind(err)
			if kind == kindexv1.Kind_KIND_INTERNAL {
				text = lookuppb.ErrInternal.Error()
			}
			c.out.Bytes = lookuppb.AppendRefusal(c.out.Bytes[:0], c.request.ID, int32(kind), text)
		}
		if err := stream.SendMsg(&c.out); err != nil {
			return err
		}
		if cap(c.in.Bytes)+c.request.Size() > maxKeptBytes { // one that was long does not cost as long as the stream lasts
			c = &rpcCall{}
		}
		g.rest()
	}
}
