// SPDX-License-Identifier: Apache-2.0

// Before: a gateway, or a relay that passes its calls through. After: engine.go.

package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
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

	server *grpc.Server
	served sync.WaitGroup
	err    error // of Serve
}

// OpenFront begins to serve e's contract at addr.
func OpenFront(e *Engine, addr string) (*Front, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--grpc: %w", err)
	}
	f := &Front{Addr: l.Addr().String(), server: grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingFloor}),
	)}
	switch e.cfg.Engine {
	case VLLM:
		vllm.RegisterVllmEngineServer(f.server, &vllmFront{engine: e})
	case SGLang:
		sglang.RegisterSglangSchedulerServer(f.server, &sglangFront{engine: e})
	}
	f.served.Go(func() { f.err = f.server.Serve(l) })
	return f, nil
}

// Close ends every call and the socket.
func (f *Front) Close() {
	f.server.Stop()
	f.served.Wait()
}

// answer runs a request and hands each output on. A client that goes away aborts
// its request.
func answer(ctx context.Context, e *Engine, q Request, each func(Output, []uint32) error) error {
	if q.ID == "" {
		q.ID = fmt.Sprintf("unnamed-%d", e.named.Add(1))
	}
	out, err := e.Submit(q)
	if err != nil {
		return status.Error(codeOf(err), err.Error())
	}
	var tokens []uint32
	for {
		select {
		case o, more := <-out:
			if !more {
				return nil
			}
			if o.Finish != aborted {
				tokens = append(tokens, o.Token)
			}
			if err := each(o, tokens); err != nil {
				e.Abort(q.ID)
				return err
			}
		case <-ctx.Done():
			e.Abort(q.ID)
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func codeOf(err error) codes.Code {
	switch {
	case errors.Is(err, errEnded):
		return codes.Unavailable
	case errors.Is(err, errTaken):
		return codes.AlreadyExists
	}
	return codes.InvalidArgument
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
