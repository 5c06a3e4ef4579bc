// SPDX-License-Identifier: Apache-2.0

// Before: poller.go, which has a worker that is due. After: the worker's server.

package load

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"kindex/gateway/fleet"
	"kindex/relay/load"
)

// closer is what is held open to ask a worker; nil: nothing is.
type closer interface{ Close() error }

// close lets go of what it holds open.
func (it *item) close() {
	if it.conn != nil {
		_ = it.conn.Close() // nothing is asked any more
		it.conn = nil
	}
}

// idleConn is how long a connection to a gRPC worker is kept that nothing is asked on.
// No pings go over it: engines cut who pings often.
const idleConn = time.Minute

// open makes it's meter.
func (p *Poller) open(it *item) error {
	c := load.Config{Engine: fleet.VLLM, Ranks: max(len(it.w.Holders), 1), Timeout: p.o.Timeout, MaxBody: p.o.MaxBody}
	if it.w.Spec.Engine == fleet.SGLang {
		c.Engine = fleet.SGLang
	}
	switch {
	case it.w.Spec.GRPC():
		conn, err := p.dial(it.w)
		if err != nil {
			return err
		}
		it.conn, c.Ask = conn, asker(it.w, conn, c.Engine)
	case p.o.Get == nil:
		return errors.New("no way to ask an HTTP worker is given")
	default:
		c.Get = func(ctx context.Context, path string, limit int) (int, []byte, error) {
			return p.o.Get(ctx, it.w, path, limit)
		}
	}
	m, err := load.New(c)
	if err != nil {
		it.close()
		return err
	}
	it.meter = m
	return nil
}

// dial makes a connection that connects when it is first asked.
func (p *Poller) dial(w *fleet.Worker) (*grpc.ClientConn, error) {
	scheme, addr, _ := strings.Cut(w.Spec.URL, "://")
	addr, _, _ = strings.Cut(addr, "/")
	creds := insecure.NewCredentials()
	if scheme == "grpcs" {
		cfg := &tls.Config{MinVersion: tls.VersionTLS12}
		if p.o.TLS != nil {
			cfg = p.o.TLS.Clone()
		}
		creds = credentials.NewTLS(cfg)
	}
	return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(idleConn), grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(int(p.o.MaxBody))))
}

// asker asks for GetLoads by the contract of the engine's kind, or where the server does
// not know that by the other, and remembers which.
func asker(w *fleet.Worker, conn *grpc.ClientConn, engine string) load.Ask {
	asks := []load.Ask{load.AskVLLM(conn), load.AskSGLang(conn)}
	if engine == fleet.SGLang {
		asks[0], asks[1] = asks[1], asks[0]
	}
	at := 0
	return func(ctx context.Context) ([]load.Reading, error) {
		if key := w.Terms().APIKey; key != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
		}
		rs, err := asks[at](ctx)
		if status.Code(err) == codes.Unimplemented {
			other, otherErr := asks[1-at](ctx)
			if otherErr == nil {
				at = 1 - at
				return other, nil
			}
		}
		return rs, err
	}
}
