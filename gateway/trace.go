// SPDX-License-Identifier: Apache-2.0

// Before: the front, at each step of a request. After: an OpenTelemetry collector.

package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/valyala/fasthttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/credentials"

	"kindex/gateway/fleet"
	"kindex/gateway/route"
	"kindex/internal/settings"
)

// Limits of what waits for a collector. A slow or dead one costs spans, never a
// request. Chosen, not measured.
const (
	traceQueue  = 2_048
	traceBatch  = 256
	traceExport = 10 * time.Second
)

// tracing makes spans of requests. A nil one makes none and costs a comparison.
//
// Concurrency: any goroutine.
type tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	ratio    float64
	began    time.Time // when fleet.Now was 0
}

// newTracing returns what c asks for; nil: nothing. It does not wait for the collector.
func newTracing(c *TraceConfig, log *slog.Logger) (*tracing, error) {
	if c.OTLPEndpoint == "" {
		return nil, nil
	}
	o := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(c.OTLPEndpoint), otlptracegrpc.WithTimeout(traceExport)}
	if c.OTLPInsecure {
		o = append(o, otlptracegrpc.WithInsecure())
	} else {
		o = append(o, otlptracegrpc.WithTLSCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})))
	}
	exporter, err := otlptracegrpc.New(context.Background(), o...)
	if err != nil {
		return nil, fmt.Errorf("otlp-endpoint: %w", err)
	}
	return newTracingTo(c, told{exporter, log}), nil
}

// newTracingTo is newTracing with another way out.
func newTracingTo(c *TraceConfig, out sdktrace.SpanExporter) *tracing {
	name := c.OTLPService
	if name == "" {
		name = "kindex-gateway"
	}
	version, _ := settings.BuildVersion()
	p := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // who is traced is decided before there is a span
		sdktrace.WithBatcher(out, sdktrace.WithMaxQueueSize(traceQueue), sdktrace.WithMaxExportBatchSize(traceBatch), sdktrace.WithBatchTimeout(time.Second)),
		sdktrace.WithResource(sdkresource.NewSchemaless(attribute.String("service.name", name), attribute.String("service.version", version))),
	)
	return &tracing{provider: p, tracer: p.Tracer("kindex/gateway"), ratio: c.OTLPRatio, began: time.Now().Add(-time.Duration(fleet.Now()))}
}

// told says in the log what an exporter cannot send: a line for each batch, which are
// few.
type told struct {
	sdktrace.SpanExporter
	log *slog.Logger
}

// ExportSpans implements sdktrace.SpanExporter.
func (e told) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := e.SpanExporter.ExportSpans(ctx, spans); err != nil {
		e.log.Warn("traces lost", "spans", len(spans), "error", err)
	}
	return nil
}

// close sends what waits, no longer than ctx.
func (t *tracing) close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// at is the wall clock at a mark of fleet.Now.
func (t *tracing) at(mark int64) trace.SpanEventOption {
	return trace.WithTimestamp(t.began.Add(time.Duration(mark)))
}

// traced is one request that is traced; a nil one is not.
//
// Concurrency: one goroutine.
type traced struct {
	t        *tracing
	ctx      context.Context //nolint:containedctx // the span's, handed to its children
	request  trace.Span
	upstream trace.Span // nil: none is open
}

// headerCarrier are a request's headers.
type headerCarrier struct{ h *fasthttp.RequestHeader }

// Get implements propagation.TextMapCarrier.
func (c headerCarrier) Get(key string) string { return string(c.h.Peek(key)) }

// Set implements propagation.TextMapCarrier.
func (c headerCarrier) Set(key, value string) { c.h.Set(key, value) }

// Keys implements propagation.TextMapCarrier.
func (c headerCarrier) Keys() []string { return propagation.TraceContext{}.Fields() }

// sampled reports whether a traceparent header says that whoever sent it traces; known:
// it is one.
func sampled(parent []byte) (yes, known bool) {
	// version "-" trace id "-" span id "-" flags
	if len(parent) < 55 || parent[2] != '-' || parent[35] != '-' || parent[52] != '-' {
		return false, false
	}
	flags := parent[54] // the last hex digit
	if flags > '9' {
		flags++ // a is even, and its letter odd
	}
	return flags&1 != 0, true
}

// begin returns the trace of a request that came by route at the mark began; nil: it is
// not traced.
func (t *tracing) begin(h *fasthttp.RequestHeader, route, id string, began int64) *traced {
	if t == nil {
		return nil
	}
	yes, known := sampled(h.Peek("Traceparent"))
	if known && !yes || !known && (t.ratio <= 0 || rand.Float64() >= t.ratio) {
		return nil
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), headerCarrier{h})
	ctx, span := t.tracer.Start(ctx, "request", trace.WithSpanKind(trace.SpanKindServer), t.at(began),
		trace.WithAttributes(attribute.String("http.route", route), attribute.String("kindex.request_id", id)))
	return &traced{t: t, ctx: ctx, request: span}
}

// step adds a part of the request that is over, between two marks.
func (r *traced) step(name string, began, ended int64, attrs ...attribute.KeyValue) {
	if r == nil || began == 0 || ended == 0 {
		return
	}
	_, span := r.t.tracer.Start(r.ctx, name, r.t.at(began), trace.WithAttributes(attrs...))
	span.End(r.t.at(ended))
}

// placed adds the parts of the first placement, and what came of it.
func (r *traced) placed(q *route.Request, p *route.Placement) {
	if r == nil {
		return
	}
	m := &q.Marks
	r.step("tokenise", m.Resolve, m.Resolved, attribute.Int("kindex.tokens", len(q.Prompt.Tokens)))
	r.step("lookup", m.Lookup, m.LookedUp, attribute.Int64("kindex.expected_blocks", int64(p.Expected)))
	r.step("decide", m.Decide, m.Decided,
		attribute.String("kindex.branch", p.Decision.Branch.String()), attribute.Int64("kindex.expected_tokens", p.Decision.Cached),
		attribute.String("kindex.worker", p.Holder.Worker.Spec.URL), attribute.Int("kindex.rank", p.Holder.Rank))
	r.request.SetAttributes(attribute.String("kindex.model", p.Pool.Model), attribute.Bool("kindex.stream", q.Call.Stream))
}

// send begins a try on w and has its request carry the context.
func (r *traced) send(h *fasthttp.RequestHeader, w *fleet.Worker, try int) {
	if r == nil {
		return
	}
	ctx, span := r.t.tracer.Start(r.ctx, "upstream", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("kindex.worker", w.Spec.URL), attribute.Int("kindex.try", try)))
	r.upstream = span
	propagation.TraceContext{}.Inject(ctx, headerCarrier{h})
}

// firstByte notes that the answer began at a mark.
func (r *traced) firstByte(mark int64) {
	if r != nil && r.upstream != nil {
		r.upstream.AddEvent("first byte", r.t.at(mark))
	}
}

// answered ends the try.
func (r *traced) answered(o *route.Outcome) {
	if r == nil || r.upstream == nil {
		return
	}
	outcome := o.Kind.String()
	r.upstream.SetAttributes(attribute.String("kindex.outcome", outcome), attribute.Int("http.response.status_code", o.Status))
	if u := &o.Usage; u.Known {
		r.upstream.SetAttributes(attribute.Int64("kindex.prompt_tokens", u.Prompt), attribute.Int64("kindex.completion_tokens", u.Completion))
		if u.CachedKnown {
			r.upstream.SetAttributes(attribute.Int64("kindex.cached_tokens", u.Cached))
		}
	}
	if o.Kind != route.OK && o.Kind != route.ClientError {
		r.upstream.SetStatus(codes.Error, outcome)
	}
	r.upstream.End()
	r.upstream = nil
}

// end ends the request. A refusal has a code.
func (r *traced) end(status int, code string) {
	if r == nil {
		return
	}
	r.answered(&route.Outcome{Kind: route.ClientGone}) // where none was told
	r.request.SetAttributes(attribute.Int("http.response.status_code", status))
	if code != "" {
		r.request.SetAttributes(attribute.String("error.type", code))
	}
	if status >= fasthttp.StatusInternalServerError {
		r.request.SetStatus(codes.Error, code)
	}
	r.request.End()
}
