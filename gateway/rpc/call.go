// SPDX-License-Identifier: Apache-2.0

// Before: a client's Generate or Embed. After: the router, and try.go.

package rpc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/route"
)

// Metadata that is for this gateway.
const (
	mdModel   = "x-kindex-model"
	mdKey     = "x-kindex-routing-key"
	mdTarget  = "x-kindex-target-worker"
	mdExplain = "x-kindex-explain"
	mdWorker  = "x-kindex-worker" // of an answer
	mdRank    = "x-data-parallel-rank"
	mdID      = "x-request-id"
)

// call is one request, over all its tries.
type call struct {
	f      *front
	down   grpc.ServerStream
	ctx    context.Context //nolint:containedctx // the call's own: it ends with it
	method string
	in     *request
	embed  bool

	msg   frame
	asked asked
	oc    openai.Call
	req   *route.Request
	told  Told

	trailer metadata.MD // of the engine that answered last

	mu     sync.Mutex
	worker *fleet.Worker // of the try under way; guarded by mu
}

var pooled = sync.Pool{New: func() any { return &call{req: route.NewRequest()} }}

func (f *front) serveGenerate(down grpc.ServerStream) error {
	return f.serve(down, "Generate", &f.generate)
}

func (f *front) serveEmbed(down grpc.ServerStream) error { return f.serve(down, "Embed", &f.embed) }

// serve answers one request.
func (f *front) serve(down grpc.ServerStream, method string, in *request) error {
	f.s.active.Add(1)
	defer f.s.active.Add(-1)
	c := pooled.Get().(*call) //nolint:errcheck // nothing else is in there
	defer c.recycle()
	c.f, c.down, c.ctx, c.method, c.in, c.embed = f, down, down.Context(), "/"+f.service+"/"+method, in, method == "Embed"
	c.told = Told{Method: c.method, Outcome: route.ClientError, Start: fleet.Now()}
	gaveUp := c.run()
	err := asStatus(gaveUp)
	down.SetTrailer(metadata.Join(c.trailer, pushback(gaveUp)))
	if c.told.Tries == 0 && c.ctx.Err() != nil {
		c.told.Outcome = route.ClientGone
	}
	c.told.Err, c.told.Marks, c.told.End = err, c.req.Marks, fleet.Now()
	if f.s.o.Answered != nil {
		f.s.o.Answered(&c.told)
	}
	return err
}

// keptTokens bounds the memory for tokens that a call keeps for the next.
const keptTokens = 1 << 16

// recycle makes c free for the next request.
func (c *call) recycle() {
	c.req.Reset()
	if tokens := c.asked.tokens; cap(tokens) <= keptTokens {
		c.asked = asked{tokens: tokens[:0]}
		c.f, c.down, c.ctx, c.in, c.msg, c.oc, c.told, c.worker = nil, nil, nil, nil, frame{}, openai.Call{}, Told{}, nil
		c.trailer = nil
		pooled.Put(c)
	}
}

// run takes the request through admission, tries and answers.
func (c *call) run() error {
	if err := c.down.RecvMsg(&c.msg); err != nil {
		if errors.Is(err, io.EOF) {
			return status.Error(codes.InvalidArgument, "a request must have a message")
		}
		return err
	}
	if err := c.read(); err != nil {
		return err
	}
	s := c.f.s
	if s.o.Enter != nil {
		leave, err := s.o.Enter(c.ctx)
		if err != nil {
			return err
		}
		defer leave()
	}
	if c.asked.id != "" {
		defer c.f.calls.add(c.asked.id, c)()
	}
	var last error
	for try := 1; ; try++ {
		p, err := c.f.router.Place(c.ctx, c.req)
		if err != nil {
			if last != nil && c.ctx.Err() == nil {
				return last // says more than that nobody is left
			}
			return err
		}
		c.told.Worker, c.told.Rank, c.told.Tries = p.Holder.Worker.ID, p.Holder.Rank, try
		if try == 1 {
			c.told.Placed = fleet.Now()
		}
		again, err := c.try(p)
		if err == nil || !again || try > int(s.retries.Load()) || c.ctx.Err() != nil {
			return err
		}
		last = err
		c.req.Failed(p.Holder.Worker)
	}
}

// read makes the router's request of the client's.
func (c *call) read() error {
	if err := c.asked.scan(c.msg.data, c.in); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	a := &c.asked
	md, _ := metadata.FromIncomingContext(c.ctx)
	c.oc = openai.Call{
		Kind: openai.Generate, Model: first(md, mdModel), Form: openai.IDs, Tokens: a.tokens, Prompts: 1, N: a.n,
		LoRA: a.lora, Stream: a.stream, Rank: a.rank, Multimodal: a.items,
	}
	if c.embed {
		c.oc.Kind = openai.Embedding
	}
	q := c.req
	q.Call, q.ID, q.RoutingKey, q.TargetWorker, q.Explain = &c.oc, a.id, first(md, mdKey), first(md, mdTarget), first(md, mdExplain) == "1"
	if v := first(md, mdRank); v != "" && a.rank < 0 {
		rank, err := strconv.ParseUint(v, 10, 16)
		if err != nil {
			return status.Errorf(codes.InvalidArgument, "%s: must be a number from 0 to 65535", mdRank)
		}
		q.Rank = int(rank)
	}
	c.told.Model, c.told.Stream = c.oc.Model, a.stream
	if printable(a.id) {
		c.told.ID = a.id
	}
	return nil
}

func first(md metadata.MD, key string) string {
	if v := md[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// given are the prompts of such requests: their token ids.
type given struct{}

// Resolve implements route.Prompts. Where more than text stands among the tokens these
// do not say what is cached.
func (given) Resolve(_ context.Context, _ *fleet.Pool, c *openai.Call, p *route.Prompt) {
	if !c.Multimodal {
		p.Tokens = append(p.Tokens[:0], c.Tokens...)
		p.LoRA, p.Salt = c.LoRA, c.Salt
	}
}

// Confirm implements route.Prompts: there is nothing to be wrong about.
func (given) Confirm(*openai.Call, *route.Prompt, openai.Usage) {}

// asStatus is err as gRPC's clients get it.
func asStatus(err error) error {
	var e *openai.Error
	if !errors.As(err, &e) {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return status.FromContextError(err).Err()
		}
		return err
	}
	code := codes.Internal
	switch e.Status {
	case http.StatusBadRequest:
		code = codes.InvalidArgument
	case http.StatusUnauthorized:
		code = codes.Unauthenticated
	case http.StatusForbidden:
		code = codes.PermissionDenied
	case http.StatusNotFound:
		code = codes.NotFound
	case http.StatusRequestEntityTooLarge, http.StatusTooManyRequests:
		code = codes.ResourceExhausted
	case http.StatusServiceUnavailable:
		code = codes.Unavailable
	}
	return status.Error(code, e.Code+": "+e.Message)
}

// mdPushback tells clients that retry by themselves when to, in milliseconds (gRFC A6).
const mdPushback = "grpc-retry-pushback-ms"

// leastPushback is what clients are told that find no place, where nothing better is
// known.
const leastPushback = time.Second

// pushback is the trailer of a refusal that is over after a while; nil: of none.
func pushback(err error) metadata.MD {
	var e *openai.Error
	if !errors.As(err, &e) || e.Status != http.StatusServiceUnavailable && e.Status != http.StatusTooManyRequests {
		return nil
	}
	return metadata.Pairs(mdPushback, strconv.FormatInt(max(e.RetryAfter, leastPushback).Milliseconds(), 10))
}

// calls are the requests under way, by the ids that their clients gave them.
type calls struct {
	mu sync.Mutex
	of map[string][]*call // guarded by mu
}

// add enters c, and returns what takes it out.
func (m *calls) add(id string, c *call) func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = make(map[string][]*call)
	}
	m.of[id] = append(m.of[id], c)
	return func() { m.remove(id, c) }
}

func (m *calls) remove(id string, c *call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.of[id]
	for i := range all {
		if all[i] == c {
			all = append(all[:i], all[i+1:]...)
			break
		}
	}
	if len(all) == 0 {
		delete(m.of, id)
	} else {
		m.of[id] = all
	}
}

// workers returns who has a request of that id.
func (m *calls) workers(id string) (out []*fleet.Worker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.of[id] {
		c.mu.Lock()
		if c.worker != nil {
			out = append(out, c.worker)
		}
		c.mu.Unlock()
	}
	return out
}

// at notes where the request is now.
func (c *call) at(w *fleet.Worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.worker = w
}
