// SPDX-License-Identifier: Apache-2.0

// Before: a gateway that subscribes to events over gRPC. After: a relay within this
// process, which reads the worker's sockets as any relay does.

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"kindex/proto/peer/common"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
	"kindex/relay"
)

// events is a relay beside one worker, begun when somebody first subscribes. Gateways
// take the worker so for one whose server relays its own events.
//
// Concurrency: any goroutine.
type events struct {
	worker *Worker

	mu    sync.Mutex
	conn  *grpc.ClientConn // to the relay; nil: not begun; guarded by mu
	stop  context.CancelFunc
	ended chan struct{}
	over  bool // guarded by mu
}

// dial begins the relay, if it is not there yet, and returns the way to it.
func (v *events) dial() (*grpc.ClientConn, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over {
		return nil, errEnded
	}
	if v.conn != nil {
		return v.conn, nil
	}
	c := relay.DefaultConfig()
	w, e := v.worker, v.worker.Engine
	first := e.Publishers()[0]
	c.Listen, c.HTTP = "127.0.0.1:0", "off"
	c.HistoryBatches = e.cfg.Buffer
	c.MaxMessageBytes, c.MaxFrameBytes = maxMessage, maxMessage
	c.Engines = []relay.EngineSpec{{
		Kind: e.cfg.Engine, Endpoint: here(first.Live), Replay: here(first.Replay), Ranks: e.cfg.Ranks, GRPC: w.GRPC(), Name: w.Name, Block: e.cfg.BlockSize,
	}}
	h, err := relay.New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if err := h.Listen(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	conn, err := grpc.NewClient(h.Addr(0), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	v.conn, v.stop, v.ended = conn, cancel, make(chan struct{})
	go func() {
		defer close(v.ended)
		_ = h.Serve(ctx) // what it had to say its subscribers heard
	}()
	return conn, nil
}

// here returns where this host reaches an endpoint that was bound.
func here(endpoint string) string { return strings.Replace(endpoint, "*", "127.0.0.1", 1) }

// close ends the relay, if it was begun.
func (v *events) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.over = true
	if v.conn == nil {
		return
	}
	_ = v.conn.Close()
	v.stop()
	<-v.ended
	v.conn = nil
}

// subscribe hands a subscription's batches on.
func (v *events) subscribe(q *common.SubscribeKvEventsRequest, out grpc.ServerStreamingServer[common.KvEventBatch]) error {
	conn, err := v.dial()
	if err != nil {
		return status.Error(codes.Unavailable, fmt.Sprintf("the events' relay: %v", err))
	}
	var in grpc.ServerStreamingClient[common.KvEventBatch]
	if v.worker.Engine.cfg.Engine == SGLang {
		in, err = sglang.NewSglangSchedulerClient(conn).SubscribeKvEvents(out.Context(), q, grpc.WaitForReady(true))
	} else {
		in, err = vllm.NewVllmEngineClient(conn).SubscribeKvEvents(out.Context(), q, grpc.WaitForReady(true))
	}
	if err != nil {
		return err
	}
	// A gateway waits for the header with a deadline; the first batch may be hours away.
	if _, err := in.Header(); err != nil {
		return err
	}
	if err := out.SendHeader(nil); err != nil {
		return err
	}
	for {
		b, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = out.Send(b)
		}
		if err != nil {
			return err
		}
	}
}

func (f *vllmFront) SubscribeKvEvents(q *common.SubscribeKvEventsRequest, out grpc.ServerStreamingServer[common.KvEventBatch]) error {
	return f.worker.events.subscribe(q, out)
}

func (f *sglangFront) SubscribeKvEvents(q *common.SubscribeKvEventsRequest, out grpc.ServerStreamingServer[common.KvEventBatch]) error {
	return f.worker.events.subscribe(q, out)
}
