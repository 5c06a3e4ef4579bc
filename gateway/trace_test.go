// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/route"
)

// receiver is a collector that keeps what it is sent.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans map[string]*tracepb.Span // by name; the last of each
	all   int
}

// Export implements collector.TraceServiceServer.
func (r *receiver) Export(_ context.Context, q *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range q.GetResourceSpans() {
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				r.spans[s.GetName()] = s
				r.all++
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// startReceiver returns a collector and its address.
func startReceiver(t *testing.T) (r *receiver, addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r = &receiver{spans: map[string]*tracepb.Span{}}
	s := grpc.NewServer()
	collector.RegisterTraceServiceServer(s, r)
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(s.Stop)
	return r, ln.Addr().String()
}

func (r *receiver) attr(span, key string) string {
	for _, kv := range r.spans[span].GetAttributes() {
		if kv.GetKey() == key {
			return strings.Trim(strings.SplitN(kv.GetValue().String(), ":", 2)[1], `"`)
		}
	}
	return ""
}

// TestTrace: what a collector gets of one request: its spans, joined to the caller's and
// handed on to the worker.
func TestTrace(t *testing.T) {
	r, addr := startReceiver(t)
	cfg := &TraceConfig{OTLPEndpoint: addr, OTLPInsecure: true, OTLPRatio: 0}
	tr, err := newTracing(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var h fasthttp.RequestHeader
	h.Set("Traceparent", parent)
	h.Set("Tracestate", "congo=t61rcWkgMzE")
	began := fleet.Now()
	q := tr.begin(&h, "/v1/completions", "req-1", began)
	if q == nil {
		t.Fatal("a sampled caller's request is not traced")
	}
	w := fleet.NewWorker("w-1", &fleet.Spec{URL: "http://w:1", Models: []string{"m"}, Ranks: 1})
	placed := route.NewRequest()
	placed.Call = &openai.Call{Stream: true}
	placed.Marks = route.Marks{Lookup: began, LookedUp: began + 1_000, Decide: began + 2_000, Decided: began + 2_500} // there was nothing to tokenise
	p := &route.Placement{Holder: w.Holders[0], Pool: fleet.NewPool("m", 1, []*fleet.Worker{w}), Expected: 3}
	q.placed(placed, p)
	q.send(&h, w, 1)
	sent := string(h.Peek("Traceparent"))
	q.firstByte(fleet.Now())
	q.answered(&route.Outcome{Kind: route.OK, Status: 200, Usage: openai.Usage{Known: true, CachedKnown: true, Prompt: 150, Cached: 128}})
	q.end(200, "")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := tr.close(ctx); err != nil {
		t.Fatal(err)
	}
	if r.all != 4 {
		t.Fatalf("%d spans, want request, lookup, decide and upstream: %v", r.all, r.spans)
	}
	request, upstream := r.spans["request"], r.spans["upstream"]
	trace := parent[3:35]
	if got := hexOf(request.GetTraceId()); got != trace || hexOf(request.GetParentSpanId()) != parent[36:52] {
		t.Errorf("request: trace %s parent %x, want the caller's", got, request.GetParentSpanId())
	}
	if want := "00-" + trace + "-" + hexOf(upstream.GetSpanId()) + "-01"; sent != want {
		t.Errorf("the worker is sent %s, want %s", sent, want)
	}
	if got := string(h.Peek("Tracestate")); got != "congo=t61rcWkgMzE" {
		t.Errorf("tracestate %q", got)
	}
	for _, s := range []string{"lookup", "decide", "upstream"} {
		if hexOf(r.spans[s].GetParentSpanId()) != hexOf(request.GetSpanId()) {
			t.Errorf("%s is no child of the request", s)
		}
	}
	if d := r.spans["lookup"].GetEndTimeUnixNano() - r.spans["lookup"].GetStartTimeUnixNano(); d != 1_000 {
		t.Errorf("the lookup took %d ns, want 1,000", d)
	}
	for _, c := range [][3]string{
		{"request", "http.route", "/v1/completions"},
		{"request", "kindex.request_id", "req-1"},
		{"request", "kindex.model", "m"},
		{"decide", "kindex.branch", p.Decision.Branch.String()},
		{"decide", "kindex.worker", "http://w:1"},
		{"lookup", "kindex.expected_blocks", "3"},
		{"upstream", "kindex.worker", "http://w:1"},
		{"upstream", "kindex.cached_tokens", "128"},
		{"upstream", "kindex.outcome", "ok"},
	} {
		if got := r.attr(c[0], c[1]); got != c[2] {
			t.Errorf("%s: %s is %q, want %q", c[0], c[1], got, c[2])
		}
	}
	if len(upstream.GetEvents()) != 1 {
		t.Errorf("upstream: %d events, want the first byte", len(upstream.GetEvents()))
	}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	s := make([]byte, 0, 2*len(b))
	for _, c := range b {
		s = append(s, digits[c>>4], digits[c&15])
	}
	return string(s)
}

// TestTraceWho: whose requests are traced.
func TestTraceWho(t *testing.T) {
	out := new(discard)
	begin := func(ratio float64, parent string) bool {
		tr := newTracingTo(&TraceConfig{OTLPRatio: ratio}, out)
		defer func() { _ = tr.close(context.Background()) }()
		var h fasthttp.RequestHeader
		if parent != "" {
			h.Set("traceparent", parent)
		}
		q := tr.begin(&h, "/", "", fleet.Now())
		q.end(200, "")
		return q != nil
	}
	const p = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"
	for _, c := range []struct {
		ratio  float64
		parent string
		want   bool
	}{
		{1, "", true},
		{0, "", false},
		{1, p + "00", false},
		{0, p + "01", true},
		{0, p + "0b", true},
		{1, p + "0a", false},
		{0, "nonsense", false},
		{1, "nonsense", true},
	} {
		if got := begin(c.ratio, c.parent); got != c.want {
			t.Errorf("ratio %g, traceparent %q: traced %t, want %t", c.ratio, c.parent, got, c.want)
		}
	}
}

// discard is an exporter that sends nothing.
type discard struct{}

func (discard) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	return errors.New("nowhere")
}
func (discard) Shutdown(context.Context) error { return nil }

// TestTraceOff: without a collector nothing is done, and nothing allocated.
func TestTraceOff(t *testing.T) {
	tr, err := newTracing(&TraceConfig{OTLPRatio: 1}, nil)
	if err != nil || tr != nil {
		t.Fatalf("%v, %v: want none", tr, err)
	}
	var h fasthttp.RequestHeader
	h.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	w, outcome := &fleet.Worker{Spec: &fleet.Spec{}}, route.Outcome{}
	if n := testing.AllocsPerRun(100, func() {
		q := tr.begin(&h, "/", "id", 1)
		q.placed(nil, nil)
		q.send(&h, w, 1)
		q.firstByte(3)
		q.answered(&outcome)
		q.end(200, "")
	}); n != 0 {
		t.Errorf("%g allocations a request, want none", n)
	}
	if got := string(h.Peek("Traceparent")); !strings.HasSuffix(got, "3331-01") {
		t.Errorf("the caller's header became %q", got)
	}
	if err := tr.close(context.Background()); err != nil {
		t.Error(err)
	}
}
