// SPDX-License-Identifier: Apache-2.0

// Before: call.go, with a placement. After: the worker's server; the client, with what
// it answers.

package rpc

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/route"
)

// upstream describes every method that passes through: one message up, any number down.
var upstream = grpc.StreamDesc{ServerStreams: true}

// attempt is one try on one worker.
type attempt struct {
	c       *call
	p       *route.Placement
	conn    *conn
	up      grpc.ClientStream
	stalled atomic.Bool
	sent    bool // something reached the client
	client  error
	usage   openai.Usage
}

// try sends the request to the worker that was chosen and its answer to the client. It
// reports whether another worker may be tried.
func (c *call) try(p *route.Placement) (again bool, err error) {
	a := &attempt{c: c, p: p}
	o := route.Outcome{Kind: route.ConnectFailed}
	defer func() {
		o.SentToClient, o.Usage = a.sent, a.usage
		c.told.Outcome, c.told.Usage = o.Kind, a.usage
		p.Done(o)
	}()
	if a.conn, err = c.f.s.dialed.get(p.Holder.Worker); err != nil {
		return true, status.Error(codes.Unavailable, err.Error())
	}
	defer c.f.s.dialed.put(a.conn)
	c.at(p.Holder.Worker)
	defer c.at(nil)
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(c.ctx, c.outgoing(p)))
	defer cancel() // the client is gone, or the answer is over: the engine must know
	err = a.run(ctx, cancel)
	o.Kind = a.outcome(err)
	if a.stalled.Load() && o.Kind == route.Stalled {
		err = status.Errorf(codes.Unavailable, "the worker gave nothing for %v", c.f.s.o.Answer)
	}
	return !a.sent && o.Kind != route.Stalled && status.Code(err) == codes.Unavailable, err
}

// run passes one answer on.
//
// Errors: the status for the client; nil at its end.
func (a *attempt) run(ctx context.Context, cancel context.CancelFunc) (err error) {
	c := a.c
	if limit := c.f.s.o.Answer; limit > 0 {
		t := time.AfterFunc(limit, func() {
			a.stalled.Store(true)
			cancel()
		})
		defer t.Stop()
		a.p.Sent()
		return a.pass(ctx, func(on bool) {
			if on {
				t.Reset(limit)
			} else {
				t.Stop()
			}
		})
	}
	a.p.Sent()
	return a.pass(ctx, func(bool) {})
}

// pass sends the request and then each message of the answer as it comes. clock runs
// while the worker is waited for, and not while the client is.
func (a *attempt) pass(ctx context.Context, clock func(on bool)) (err error) {
	c := a.c
	if a.up, err = a.conn.NewStream(ctx, &upstream, c.method); err != nil {
		return err
	}
	msg := frame{c.msg.data}
	if h := a.p.Holder; len(h.Worker.Holders) > 1 && c.in.rank != 0 {
		msg.data = withRank(c.msg.data, c.in.rank, h.Rank)
	}
	if err := a.up.SendMsg(&msg); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := a.up.CloseSend(); err != nil {
		return err
	}
	for {
		var f frame
		if err := a.up.RecvMsg(&f); err != nil {
			c.trailer = stripped(a.up.Trailer()) // the last try's alone is the client's
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		clock(false)
		a.heard(f.data)
		if !a.sent {
			if err := c.down.SetHeader(a.header()); err != nil {
				a.client = err
				return err
			}
			a.sent = true
		}
		if err := c.down.SendMsg(&f); err != nil {
			a.client = err
			return err
		}
		clock(true)
	}
}

// heard takes in what a message of the answer tells.
func (a *attempt) heard(b []byte) {
	now := fleet.Now()
	if !a.sent {
		a.p.FirstByte()
		a.c.told.First = now
	}
	if a.c.embed {
		a.p.Token(now)
		return
	}
	var n counted
	n.scan(b, &a.c.f.answer)
	if n.part || n.whole {
		a.p.Token(now)
		u := &a.usage
		u.Known, u.CachedKnown = true, true
		u.Prompt, u.Cached = max(u.Prompt, n.prompt), max(u.Cached, n.cached)
		u.Completion = max(u.Completion, n.completion)
	}
}

// outcome says how the try ended that ended with err.
func (a *attempt) outcome(err error) route.OutcomeKind {
	switch {
	case err == nil:
		return route.OK
	case a.c.ctx.Err() != nil || a.client != nil:
		return route.ClientGone
	case a.stalled.Load():
		return route.Stalled
	}
	switch status.Code(err) {
	case codes.Unavailable:
		switch {
		case a.sent:
			return route.Broken
		case a.conn.GetState() == connectivity.Ready:
			return route.BackPressure // its own word
		}
		return route.ConnectFailed
	case codes.ResourceExhausted:
		return route.BackPressure
	case codes.Canceled:
		return route.ClientGone // somebody had it aborted
	case codes.DeadlineExceeded:
		return route.Stalled
	case codes.Unknown, codes.Internal, codes.DataLoss, codes.Aborted:
		return route.WorkerError
	default: // what was asked cannot be answered
		return route.ClientError
	}
}

// outgoing is the client's metadata, for the engine.
func (c *call) outgoing(p *route.Placement) metadata.MD {
	in, _ := metadata.FromIncomingContext(c.ctx)
	out := make(metadata.MD, len(in)+2)
	for key, v := range in {
		switch {
		case strings.HasPrefix(key, ":"), strings.HasPrefix(key, "x-kindex-"):
		case key == "content-type", key == "user-agent", key == "te", key == mdRank:
		case transports(key):
		case key == "authorization" && c.f.s.o.OwnsAuthorization:
		default:
			out[key] = v
		}
	}
	w := p.Holder.Worker
	if t := w.Terms(); t != nil && t.APIKey != "" {
		out["authorization"] = []string{"Bearer " + t.APIKey}
	}
	if len(w.Holders) > 1 {
		out[mdRank] = []string{strconv.Itoa(p.Holder.Rank)}
	}
	return out
}

// transports reports whether a key is of the transport between two sides: what a client
// can decompress an engine must not take for what this gateway can.
func transports(key string) bool {
	return strings.HasPrefix(key, "grpc-") && key != "grpc-trace-bin" && key != "grpc-tags-bin"
}

// header is the engine's header, for the client, and who answers.
func (a *attempt) header() metadata.MD {
	md, err := a.up.Header()
	if err != nil {
		md = nil
	}
	md = stripped(md)
	md.Set(mdWorker, a.p.Holder.Worker.ID)
	if id := a.c.asked.id; printable(id) {
		md.Set(mdID, a.c.asked.id)
	}
	if r := a.p.Decision.Record; r != nil {
		md.Set(mdExplain, string(r.AppendJSON(nil)))
	}
	return md
}

// maxID bounds the ids that are told again, in bytes.
const maxID = 128

// printable reports whether a client's id can stand in an answer's header and in a line
// of a log.
func printable(id string) bool {
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return id != "" && len(id) <= maxID
}

// stripped returns md without what the transport writes itself.
func stripped(md metadata.MD) metadata.MD {
	if md == nil {
		return metadata.MD{}
	}
	md = md.Copy()
	delete(md, "content-type")
	return md
}
