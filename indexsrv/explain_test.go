// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/internal/lookuppb"
	kindexv1 "kindex/proto/kindex/v1"
)

// explainBody asks about the blocks that tests call by number.
func explainBody(t *testing.T, more string, blocks ...uint64) string {
	t.Helper()
	ts := []uint32{}
	for _, b := range blocks {
		ts = append(ts, blockTokens(b)...)
	}
	return `{"model_name":"m","token_ids":` + jsonOf(t, ts) + more + `}`
}

func (h *testHost) explain(body string) lookup.Explanation {
	h.t.Helper()
	var e lookup.Explanation
	if err := json.Unmarshal([]byte(h.must(200, "POST", "/explain", body)), &e); err != nil {
		h.t.Fatal(err)
	}
	return e
}

// ends is why the match of each holder ends, and where.
func ends(e *lookup.Explanation) (all []string) {
	for _, d := range e.Holders {
		all = append(all, fmt.Sprintf("%s/%d %d,%d,%d %s", d.Instance.Text, d.Rank, d.Device, d.Host, d.Any, strings.Join(d.Reasons, "+")))
	}
	return all
}

// TestExplain: each reason from real sockets, in the order of depth.
func TestExplain(t *testing.T) {
	h := startZMQHost(t, withGRPC(nil))
	engines := map[string]*engine{}
	for _, id := range []string{"1", "2", "3", "4", "5"} {
		engines[id] = startEngine(t, nil, func(e *engine) { e.noReplay = id == "5" })
	}
	host := storeOf(1, 2, 3)
	host.Medium = "CPU"
	engines["1"].publish(storeOf(0, 1, 2, 3, 4))
	engines["2"].publish(storeOf(0, 1, 2, 3, 4), removeOf(2))
	engines["3"].publish(storeOf(0, 1), storeOf(77, 2, 3)) // of a parent that nobody told
	engines["4"].publish(storeOf(0, 1), host)
	for _, id := range []string{"1", "2", "3", "4"} {
		registerEngine(t, h, id, engines[id], "")
	}
	waitFor(t, "ready", func() bool { return len(h.Unready()) == 0 })
	e := h.explain(explainBody(t, "", 1, 2, 3, 4))
	got := strings.Join(ends(&e), "\n")
	want := strings.Join([]string{
		"1/0 4,4,4 complete",
		"4/0 1,3,3 not_stored",
		"2/0 1,1,1 hole",
		"3/0 1,1,1 orphan_waiting",
	}, "\n")
	if got != want {
		t.Errorf("ends:\n%s\nwant\n%s", got, want)
	}
	if e.BlockSize != testBlock || e.Blocks != 4 || e.Tail != 0 || e.Group != "default" || e.Tenant != "default" || e.More != 0 {
		t.Errorf("head: %+v", e)
	}
	hole := e.Holders[2]
	if hole.Below != 2 || hole.Next == nil || *hole.Next != 2 || len(hole.Runs) != 3 || hole.Runs[1].First != 1 || len(hole.Runs[1].Tiers) != 0 || hole.Status != "active" {
		t.Errorf("hole: %s", jsonOf(t, hole))
	}
	wait := e.Holders[3]
	if wait.Orphans != 2 || len(wait.Runs) != 3 || !wait.Runs[1].Waiting || wait.Runs[1].Blocks != 2 || wait.Runs[2].Waiting {
		t.Errorf("waiting: %s", jsonOf(t, wait))
	}
	if r := e.Holders[1].Runs; len(r) != 3 || r[1].Tiers[0] != "host" || r[0].Tiers[0] != "device" {
		t.Errorf("tiers: %s", jsonOf(t, r))
	}

	// gRPC says the same.
	rpc := kindexv1.NewExplainServiceClient(dialRPC(t, h.Host).conn)
	for _, q := range []*lookup.Query{
		{Model: "m", Hashes: chainOf(kv.HashSeed, 1, 2, 3, 4)},
		{Model: "m", Tokens: append(blockTokens(1), 5), Only: []string{"1", "4"}, Limit: 1},
	} {
		m, err := rpc.Explain(t.Context(), &kindexv1.ExplainRequest{Query: lookuppb.EncodeQuery(q)})
		if err != nil {
			t.Fatal(err)
		}
		want, err := h.Explain(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if got := lookuppb.DecodeExplanation(m); jsonOf(t, got) != jsonOf(t, want) {
			t.Errorf("over gRPC:\n%s\nwant\n%s", jsonOf(t, got), jsonOf(t, want))
		}
	}
	_, err := rpc.Explain(t.Context(), &kindexv1.ExplainRequest{Query: &kindexv1.Query{ModelName: "zz"}})
	wantStatus(t, "no such model", err, codes.NotFound, "model_name: ")

	// A tail, a limit, a filter, hashes, and another namespace.
	var ts []uint32
	for _, b := range []uint64{1, 2, 3, 4} {
		ts = append(ts, blockTokens(b)...)
	}
	e = h.explain(`{"model_name":"m","max_results":1,"token_ids":` + jsonOf(t, append(ts, 9, 9)) + `}`)
	if got := ends(&e); len(got) != 1 || got[0] != "1/0 4,4,4 tail" || e.Tail != 2 || e.More != 3 {
		t.Errorf("limited, with a tail: %v, %+v", got, e)
	}
	e = h.explain(`{"model_name":"m","instances":[2],"block_hashes":` + jsonOf(t, chainOf(kv.HashSeed, 1, 2)) + `}`)
	if got := ends(&e); len(got) != 1 || got[0] != "2/0 1,1,1 not_stored" || e.Blocks != 2 {
		t.Errorf("by hash: %v", got)
	}
	e = h.explain(explainBody(t, `,"lora_name":"l"`, 1, 2))
	if got := ends(&e); len(got) != 4 || got[0] != "1/0 0,0,0 not_stored" {
		t.Errorf("of a LoRA: %v", got)
	}
	e = h.explain(explainBody(t, ``))
	if got := ends(&e); len(got) != 4 || got[0] != "1/0 0,0,0 complete" {
		t.Errorf("of an empty prompt: %v", got)
	}
}

// TestExplainStreams: a stream that is not exact is a reason of its own.
func TestExplainStreams(t *testing.T) {
	h := startZMQHost(t, nil)
	small := storeOf(1, 2)
	small.BlockSize, small.Tokens = testBlock/2, small.Tokens[:testBlock/2]
	e := startEngine(t, nil, nil)
	e.publish(storeOf(0, 1), small)
	registerEngine(t, h, "1", e, "")
	waitFor(t, "degraded", func() bool { return strings.Contains(h.listener("1").LastError, "block size") })
	h.must(201, "POST", "/register", `{"instance_id":"away","endpoint":"tcp://127.0.0.1:1","model_name":"m","block_size":16}`)
	got := h.explain(explainBody(t, "", 1, 2))
	if r := strings.Join(ends(&got), "\n"); r != "1/0 1,1,1 not_stored+other_block_size+stream_degraded\naway/0 0,0,0 stream_pending" {
		t.Errorf("ends:\n%s", r)
	}
	if w := got.Holders[0].Why; len(w) != 3 || !strings.Contains(w[1], "not of 16 tokens") || !strings.Contains(w[2], "block size is 8") {
		t.Errorf("why: %q", w)
	}
}

// TestExplainRefuses: what cannot be explained, in one line that names the field.
func TestExplainRefuses(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	for body, want := range map[string]string{
		`{"model_name":"m"}`: "token_ids: ",
		`{"model_name":"m","token_ids":[1],"block_hashes":[1]}`:            "token_ids: ",
		`{"model_name":"m","token_ids":[1],"extra_keys":[null,null,null]}`: "extra_keys: ",
		`{"model_name":"m","block_hashes":[1],"extra_keys":[["a"],["b"]]}`: "extra_keys: ",
		`{"token_ids":[1]}`: "model_name: ",
		`{"model_name":"m","token_ids":[1],"max_results":0}`:                                         "max_results: ",
		`{"model_name":"m","block_hashes":[1` + strings.Repeat(",1", lookup.MaxExplainBlocks) + `]}`: "token_ids: must be at most",
	} {
		if got := h.error("POST", "/explain", body, 400); !strings.HasPrefix(got, want) {
			t.Errorf("%.60s: got %q, want %q...", body, got, want)
		}
	}
	if got := h.error("POST", "/explain", `{"model_name":"zz","token_ids":[1]}`, 404); !strings.HasPrefix(got, `model_name: no worker is registered for model "zz"`) {
		t.Errorf("no such model: %q", got)
	}
	for range maxExplains {
		h.explains <- struct{}{}
	}
	if got := h.error("POST", "/explain", explainBody(t, "", 1), 503); !strings.HasPrefix(got, "busy: ") {
		t.Errorf("busy: %q", got)
	}
	for range maxExplains {
		<-h.explains
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Explain(ctx, &lookup.Query{Model: "m", Tokens: []uint32{1}}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
