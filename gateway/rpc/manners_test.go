// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"kindex/gateway/openai"
	"kindex/gateway/route"
	"kindex/harness/mockworker/engine"
	"kindex/proto/peer/vllm"
)

// TestForeignID: an id that no header can carry, or none should, costs the client only
// that it is not told again.
func TestForeignID(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.VLLM}, 1, nil)
	for _, id := range []string{"é", "a b", "a\nb", strings.Repeat("x", 10_000)} {
		if _, err := generateVLLM(t.Context(), r.conn, vllmRequest(id, prompt(40, 40, 0), 1)); err != nil {
			t.Errorf("%.10q: %v", id, err)
		}
	}
	r.idle(t)
	for _, told := range r.told {
		if told.ID != "" {
			t.Errorf("the log is told %.10q", told.ID)
		}
	}
}

// TestPushback: who finds no place is told when to come again.
func TestPushback(t *testing.T) {
	r := newRig(t, engine.Config{Engine: engine.VLLM}, 1, func(o *Options) {
		o.Enter = func(context.Context) (func(), error) {
			return nil, &openai.Error{Status: 503, Code: "queue_full", Message: "full", RetryAfter: 7 * time.Second}
		}
	})
	s, err := r.conn.NewStream(t.Context(), &upstream, "/"+vllm.VllmEngine_ServiceDesc.ServiceName+"/Generate")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(vllmRequest("a", prompt(40, 40, 0), 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(new(vllm.GenerateResponse)); status.Code(err) != codes.Unavailable {
		t.Errorf("refused with %v", err)
	}
	if got := first(s.Trailer(), mdPushback); got != "7000" {
		t.Errorf("%s is %q, want 7000", mdPushback, got)
	}
}

// TestTransportsStay: what the transport of one side says is not told to the other.
func TestTransportsStay(t *testing.T) {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(
		"grpc-accept-encoding", "zstd", "grpc-previous-rpc-attempts", "2", "grpc-trace-bin", "x", "mine", "y"))
	r := newRig(t, engine.Config{Engine: engine.VLLM}, 1, nil)
	c := &call{f: &r.server.fronts[0], ctx: ctx}
	got := c.outgoing(&route.Placement{Holder: r.workers[0].Holders[0]})
	if len(got["grpc-accept-encoding"])+len(got["grpc-previous-rpc-attempts"]) != 0 || first(got, "grpc-trace-bin") != "x" || first(got, "mine") != "y" {
		t.Errorf("the engine is told %v", got)
	}
}
