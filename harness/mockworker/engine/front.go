// SPDX-License-Identifier: Apache-2.0

// Before: a gateway, or a relay that passes its calls through. After: engine.go.

package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// maxMessage bounds a request, in bytes: a long prompt's token ids and its text.
const maxMessage = 64 << 20

// pingFloor is how far apart a client's pings must be at least. Engines' servers
// are of grpc-core, which answers faster ones with GOAWAY after the second.
const pingFloor = 10 * time.Second

// Front answers an engine's gRPC contract on a socket.
type Front struct {
	Addr string // host:port where it listens

	gate   *gate
	server *grpc.Server
	served sync.WaitGroup
	err    error // of Serve
}

// openFront begins to serve w's contract at addr.
func openFront(w *Worker, addr string) (*Front, error) {
	l, err := openGate(addr)
	if err != nil {
		return nil, fmt.Errorf("--grpc: %w", err)
	}
	e := w.Engine
	f := &Front{Addr: l.addr, gate: l, server: grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingFloor}),
	)}
	switch e.cfg.Engine {
	case VLLM:
		vllm.RegisterVllmEngineServer(f.server, &vllmFront{worker: w, engine: e})
	case SGLang:
		sglang.RegisterSglangSchedulerServer(f.server, &sglangFront{worker: w, engine: e})
	}
	f.served.Go(func() { f.err = f.server.Serve(l) })
	return f, nil
}

// Close ends every call and the socket.
func (f *Front) Close() {
	f.server.Stop()
	f.served.Wait()
}

// answered is the status of what [Worker.answer] said.
func answered(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codeOf(err), err.Error())
}

func codeOf(err error) codes.Code {
	var asked *faultError
	switch {
	case errors.As(err, &asked):
		return asked.code()
	case errors.Is(err, errEnded):
		return codes.Unavailable
	case errors.Is(err, errTaken):
		return codes.AlreadyExists
	}
	return codes.InvalidArgument
}

// code returns the code that stands for a fault's HTTP status.
func (e *faultError) code() codes.Code {
	switch e.status {
	case http.StatusTooManyRequests:
		return codes.ResourceExhausted
	case http.StatusNotFound:
		return codes.NotFound
	case http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return codes.DeadlineExceeded
	case http.StatusNotImplemented:
		return codes.Unimplemented
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return codes.Unavailable
	}
	if e.status < http.StatusInternalServerError {
		return codes.InvalidArgument
	}
	return codes.Internal
}

// abortNamed ends the request of an id, and all choices of it, and reports whether there
// was one.
func (e *Engine) abortNamed(id string) bool {
	return e.abortWhere(func(other string) bool { return begins(other, id) })
}

// rankOf returns the rank that a request names, below 0 where it names none.
func rankOf(r *int32) int {
	if r == nil {
		return -1
	}
	return int(*r)
}

// flush is FlushCache's answer in either contract.
func (e *Engine) flush() (ok bool, message string) {
	if e.Reset() {
		return true, "cleared: told with the next pass"
	}
	return false, "requests are running: not cleared"
}

// chosen tells whether a load belongs into an answer to a request for rank.
func chosen(l *Load, rank *int32) bool { return rank == nil || int(*rank) == l.Rank }

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
