// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// gapError ends a stream in which a batch is missing.
type gapError struct{ last, next uint64 }

func (e *gapError) Error() string {
	return fmt.Sprintf("batch %d came after batch %d", e.next, e.last)
}

// rankError is what is wrong with one rank's messages.
type rankError struct {
	r   *rank
	err error
}

func (e *rankError) Error() string { return fmt.Sprintf("rank %d: %v", e.r.number, e.err) }
func (e *rankError) Unwrap() error { return e.err }

// errSilent ends a stream whose link gave no sign of life.
var errSilent = errors.New("no sign of life")

// errAgain ends a stream for another one, with other cursors.
var errAgain = errors.New("asking anew")

// verdict is what the end of a stream means for what comes next.
type verdict struct {
	why string
	// redial: the connection is of no use any more.
	redial bool
	// atOnce: nothing is gained by waiting, if it is the first time.
	atOnce bool
	// refused: trying often is of no use, so that the wait may become long.
	// Otherwise it stays short, for the link may come back at any moment.
	refused bool
	// unimplemented: the server does not serve this contract.
	unimplemented bool
	// forget all cursors; lost: the content is gone at the server, too.
	forget, lost bool
	// bad is the rank whose messages were wrong: its cursor is worth nothing.
	bad *rank
	// gapped is the rank in which a batch was missing.
	gapped *rank
	// broken: a message could not be read. When it comes again only another
	// beginning can avoid it.
	broken bool
}

// judge says what err, which ended a stream, means.
func judge(err error) verdict {
	var bad *rankError
	switch {
	case errors.Is(err, errAgain):
		return verdict{why: err.Error(), atOnce: true}
	case errors.Is(err, errSilent):
		return verdict{why: err.Error(), redial: true, atOnce: true}
	case errors.As(err, &bad):
		if _, ok := errors.AsType[*gapError](err); ok {
			return verdict{why: err.Error(), redial: true, atOnce: true, gapped: bad.r}
		}
		return verdict{why: err.Error(), redial: true, refused: true, bad: bad.r}
	case errors.Is(err, io.EOF):
		return verdict{why: "the server ended the stream"}
	case errors.Is(err, errToken):
		return verdict{why: err.Error(), refused: true}
	}
	st := status.Convert(err)
	v := verdict{why: fmt.Sprintf("%s: %s", st.Code(), oneLine(st.Message()))}
	switch st.Code() {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.Unknown:
		v.redial = true
		v.why = oneLine(st.Message())
	case codes.Unimplemented:
		v.unimplemented, v.refused = true, true
	case codes.OutOfRange:
		v.forget, v.atOnce = true, true
	case codes.DataLoss:
		v.forget, v.lost, v.atOnce = true, true, true
	case codes.Internal, codes.ResourceExhausted:
		// A broken frame, a message that is too long: another connection, later.
		v.redial, v.refused, v.broken = true, true, true
	default:
		v.refused = true
	}
	return v
}

// ended reports whether err is only that the client was closed.
func ended(ctx context.Context) bool { return ctx.Err() != nil }
