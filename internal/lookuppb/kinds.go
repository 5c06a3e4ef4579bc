// SPDX-License-Identifier: Apache-2.0

package lookuppb

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/internal/lookup"
	kindexv1 "kindex/proto/kindex/v1"
)

// kinds pairs the kinds of errors with what stands for them on the wire.
var kinds = [...]struct {
	kind error
	wire kindexv1.Kind
	code codes.Code
}{
	{lookup.ErrInvalid, kindexv1.Kind_KIND_INVALID, codes.InvalidArgument},
	{lookup.ErrNotFound, kindexv1.Kind_KIND_NOT_FOUND, codes.NotFound},
	{lookup.ErrConflict, kindexv1.Kind_KIND_CONFLICT, codes.FailedPrecondition},
	{lookup.ErrUnavailable, kindexv1.Kind_KIND_UNAVAILABLE, codes.Unavailable},
	{lookup.ErrDenied, kindexv1.Kind_KIND_DENIED, codes.PermissionDenied},
	{lookup.ErrDeadline, kindexv1.Kind_KIND_DEADLINE, codes.DeadlineExceeded},
	// What only the other end or gRPC itself says.
	{lookup.ErrDenied, kindexv1.Kind_KIND_DENIED, codes.Unauthenticated},
	{lookup.ErrInvalid, kindexv1.Kind_KIND_INVALID, codes.ResourceExhausted}, // a message over the limit
	{lookup.ErrInvalid, kindexv1.Kind_KIND_INVALID, codes.Unimplemented},     // another server listens there
}

// ErrInternal is the text of what has no kind.
var ErrInternal = errors.New("internal error: this host's log has it")

// WireKind returns err's kind for a Refusal.
func WireKind(err error) kindexv1.Kind {
	for _, k := range kinds {
		if errors.Is(err, k.kind) {
			return k.wire
		}
	}
	return kindexv1.Kind_KIND_INTERNAL
}

// Status returns err as a status of gRPC; one without a kind is not told.
func Status(err error) error {
	if err == nil {
		return nil
	}
	for _, k := range kinds {
		if errors.Is(err, k.kind) {
			return status.Error(k.code, err.Error())
		}
	}
	if errors.Is(err, context.Canceled) {
		return status.FromContextError(context.Canceled).Err()
	}
	return status.Error(codes.Internal, ErrInternal.Error())
}

// Refusal returns the error that a Refusal is.
func Refusal(kind int32, text string) error {
	for _, k := range kinds {
		if k.wire == kindexv1.Kind(kind) {
			return &lookup.Refusal{Kind: k.kind, Text: text}
		}
	}
	return errors.New(text)
}

// FromStatus returns the error that a status of gRPC is. ctx is the call's: where it
// has ended, that is the reason.
func FromStatus(ctx context.Context, err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	if s.Code() == codes.Canceled || s.Code() == codes.DeadlineExceeded {
		if ended := lookup.OfContext(ctx); ended != nil {
			return ended
		}
		if s.Code() == codes.Canceled { // by the other end, or the connection
			return &lookup.Refusal{Kind: lookup.ErrUnavailable, Text: s.Message()}
		}
	}
	for _, k := range kinds {
		if k.code == s.Code() {
			return &lookup.Refusal{Kind: k.kind, Text: s.Message()}
		}
	}
	return errors.New(s.Code().String() + ": " + s.Message())
}
