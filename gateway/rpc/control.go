// SPDX-License-Identifier: Apache-2.0

// Before: a client that takes the fleet for one engine. After: one worker's server, or
// what the fleet knows.

package rpc

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
)

// alone are the methods that concern one engine alone.
var alone = []string{
	"FlushCache", "StartProfile", "StopProfile", "SubscribeKvEvents", "LoadLoRAAdapter", "UnloadLoRAAdapter", "ListLoadedLoRAAdapters",
}

func notServed(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	return status.Errorf(codes.Unimplemented, "%s concerns one engine: this is a gateway before several, ask the engine itself", method)
}

// controlTime bounds what is asked of a worker besides requests.
const controlTime = 10 * time.Second

// pool returns the workers that a client means.
func (f *front) pool(ctx context.Context) (*fleet.Pool, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	model := first(md, mdModel)
	if model == "" {
		var sole *fleet.Pool
		for _, p := range f.fleet.Models() {
			switch {
			case p.Base != "" || sole != nil && sole.Model == p.Model:
			case sole != nil:
				return nil, status.Errorf(codes.InvalidArgument, "%s: must be given where several models are served", mdModel)
			default:
				sole = p
			}
		}
		if sole == nil {
			return nil, f.nobody()
		}
		return sole, nil
	}
	if p := f.fleet.Pool(model); p != nil {
		return p, nil
	}
	return nil, asStatus(&openai.Error{Status: 404, Code: "model_not_found", Message: "no " + f.engine + " worker serves the model over gRPC"})
}

func (f *front) nobody() error {
	return status.Errorf(codes.Unavailable, "no_available_workers: no %s worker that speaks gRPC is ready", f.engine)
}

// ready returns any worker of the kind that is ready, one that is usable where there is
// one; nil: nobody is.
func (f *front) ready() (some *fleet.Worker) {
	for _, p := range f.fleet.Models() {
		if w := readyOf(p); w != nil && (some == nil || !some.Usable()) {
			some = w
		}
	}
	return some
}

func readyOf(p *fleet.Pool) (some *fleet.Worker) {
	for _, w := range p.Workers {
		switch {
		case w.Usable():
			return w
		case w.State() == fleet.Ready:
			some = w
		}
	}
	return some
}

// one returns a worker that can be asked for what all of a pool have alike.
func (f *front) one(ctx context.Context) (*fleet.Worker, error) {
	p, err := f.pool(ctx)
	if err != nil {
		return nil, err
	}
	if w := readyOf(p); w != nil {
		return w, nil
	}
	return nil, f.nobody()
}

// servePassed has any worker answer: all give the same.
func (f *front) servePassed(down grpc.ServerStream) error {
	var q frame
	if err := down.RecvMsg(&q); err != nil {
		return noMessage(err)
	}
	w, err := f.one(down.Context())
	if err != nil {
		return err
	}
	method, _ := grpc.MethodFromServerStream(down)
	return f.ask(down.Context(), w, method, &q, func(a *frame) error { return down.SendMsg(a) })
}

// noMessage is the end of a call whose request did not come.
func noMessage(err error) error {
	if errors.Is(err, io.EOF) {
		return status.Error(codes.InvalidArgument, "a request must have a message")
	}
	return err
}

// ask sends w one message and calls each with what it answers.
func (f *front) ask(ctx context.Context, w *fleet.Worker, method string, q any, each func(*frame) error) error {
	conn, err := f.s.dialed.get(w)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer f.s.dialed.put(conn)
	ctx, cancel := context.WithTimeout(ctx, controlTime)
	defer cancel()
	if t := w.Terms(); t != nil && t.APIKey != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+t.APIKey)
	}
	up, err := conn.NewStream(ctx, &upstream, method)
	if err != nil {
		return err
	}
	if err := up.SendMsg(q); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := up.CloseSend(); err != nil {
		return err
	}
	for {
		var a frame
		switch err := up.RecvMsg(&a); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := each(&a); err != nil {
			return err
		}
	}
}

// maxAborts bounds the ids of one abort.
const maxAborts = 4096

// serveAbort ends requests by the ids that their clients gave them, wherever they are.
func (f *front) serveAbort(down grpc.ServerStream) error {
	var q frame
	if err := down.RecvMsg(&q); err != nil {
		return noMessage(err)
	}
	var ids []string
	if err := fields(q.data, func(fd field) error {
		if fd.num == f.abortIDs && len(fd.bytes) > 0 {
			ids = append(ids, string(fd.bytes))
		}
		return nil
	}); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if len(ids) > maxAborts {
		return status.Errorf(codes.InvalidArgument, "at most %d ids can be aborted at once", maxAborts)
	}
	aborted := false
	for _, id := range ids {
		for _, w := range f.calls.workers(id) {
			ok, err := f.abort(down.Context(), w, id)
			if err != nil {
				return err
			}
			aborted = aborted || ok
		}
	}
	if f.engine == fleet.VLLM {
		return down.SendMsg(&vllm.AbortResponse{})
	}
	a := &sglang.AbortResponse{Success: aborted}
	if !aborted {
		a.Message = "no such request runs"
	}
	return down.SendMsg(a)
}

// abort has one worker end a request.
func (f *front) abort(ctx context.Context, w *fleet.Worker, id string) (ok bool, err error) {
	method := "/" + f.service + "/Abort"
	if f.engine == fleet.VLLM {
		err = f.ask(ctx, w, method, &vllm.AbortRequest{RequestIds: []string{id}}, func(*frame) error { return nil })
		return err == nil, err
	}
	err = f.ask(ctx, w, method, &sglang.AbortRequest{RequestId: id}, func(a *frame) error {
		return fields(a.data, func(fd field) error {
			ok = ok || fd.num == 1 && fd.value != 0
			return nil
		})
	})
	return ok, err
}

// serveHealth answers for the fleet: it is well while anybody is ready.
func (f *front) serveHealth(down grpc.ServerStream) error {
	var q frame
	if err := down.RecvMsg(&q); err != nil {
		return noMessage(err)
	}
	well, message := f.ready() != nil, "healthy"
	if !well {
		message = "no " + f.engine + " worker is ready"
	}
	if f.engine == fleet.VLLM {
		return down.SendMsg(&vllm.HealthCheckResponse{Healthy: well, Message: message})
	}
	return down.SendMsg(&sglang.HealthCheckResponse{Healthy: well, Message: message})
}
