// SPDX-License-Identifier: Apache-2.0

// Before: HTTP. After: peers.go, and state.go for whoever copies this host.

package indexsrv

import (
	"bufio"
	"context"
	"log/slog"

	"github.com/valyala/fasthttp"

	"kindex/internal/jsonscan"
	"kindex/internal/secure"
)

func (h *Host) serveRegisterPeer(ctx *fasthttp.RequestCtx, q *queryScratch) {
	// The token of peers may be stronger than the caller's own, and the address is
	// anybody's: it is shown only where the caller could do all that it can.
	trusted := requestActor(ctx).role == secure.RoleAdmin
	h.servePeer(ctx, q, "register_peer", func(url string) error {
		if !h.peers.add(url) {
			return refuse(ErrUnavailable, "url: %d peers are registered, the most that a host knows", maxPeers)
		}
		h.peers.copyAside(url, trusted)
		return nil
	}, fasthttp.StatusCreated)
}

func (h *Host) serveDeregisterPeer(ctx *fasthttp.RequestCtx, q *queryScratch) {
	h.servePeer(ctx, q, "deregister_peer", func(url string) error {
		if !h.peers.remove(url) {
			return refuse(ErrNotFound, "peer not found")
		}
		return nil
	}, fasthttp.StatusOK)
}

// servePeer reads the body {"url":"http://..."} and does what is asked with it.
func (h *Host) servePeer(ctx *fasthttp.RequestCtx, q *queryScratch, action string, do func(url string) error, status int) {
	var url string
	q.scan.Reset(q.body)
	err := q.scan.Object([]jsonscan.Field{textInto(&q.scan, "url", true, &url)})
	if err == nil {
		if url, err = peerURL(url); err != nil {
			err = refuse(ErrInvalid, "url: %v", err)
		}
	}
	if err == nil {
		err = do(url)
	}
	h.gate.audit.mutation(requestActor(ctx), action, err, slog.String("peer", cut(url)))
	if err != nil {
		refuseErr(ctx, err)
		return
	}
	h.changed(context.Background()) // bounded
	replyJSON(ctx, status, []byte(`{"status":"ok"}`))
}

func (h *Host) servePeers(ctx *fasthttp.RequestCtx, _ *queryScratch) {
	urls := h.peers.list()
	if urls == nil {
		urls = []string{}
	}
	replyValue(ctx, fasthttp.StatusOK, urls)
}

// contentState is the media type of a state.
const contentState = "application/vnd.kindex.state"

// serveState answers with all that another host needs to go on beside this one.
func (h *Host) serveState(ctx *fasthttp.RequestCtx, _ *queryScratch) {
	if b := h.beginning.Load(); b != nil && b.why == waitsForState {
		refuseHTTP(ctx, fasthttp.StatusServiceUnavailable, "this host is "+b.why+": try again")
		return
	}
	ctx.SetContentType(contentState)
	if ctx.IsHead() {
		return
	}
	end, err := h.beginDump()
	if err != nil {
		refuseErr(ctx, err)
		return
	}
	ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
		defer end()
		_, _, err := h.writeState(context.Background(), w)
		if err == nil {
			err = w.Flush()
		}
		if err != nil {
			h.log.Info("state cut short", "error", err) // the client went away
		}
	})
}
