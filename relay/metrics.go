// SPDX-License-Identifier: Apache-2.0

// Before: /metrics. After: the engines' servers, their ranks (metrics_rank.go).

package relay

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"kindex/internal/settings"
	"kindex/relay/load"
)

// metrics are what the host counts itself. What engines and servers count is read
// from them at each scrape.
type metrics struct {
	registry *prometheus.Registry

	httpRequests   []atomic.Uint64 // by route; the last: unknown path
	httpDenied     atomic.Uint64
	httpPanics     atomic.Uint64
	httpTurnedAway atomic.Uint64
}

func newMetrics(h *Host) *metrics {
	m := &metrics{registry: prometheus.NewPedanticRegistry(), httpRequests: make([]atomic.Uint64, len(httpRoutes)+1)}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&collector{h},
	)
	return m
}

// request counts a request of route i; -1 is an unknown path.
func (m *metrics) request(i int) {
	if i < 0 {
		i = len(m.httpRequests) - 1
	}
	m.httpRequests[i].Add(1)
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kindex_relay_"+name, help, labels, nil)
}

var (
	descBuild    = desc("build_info", "What runs here; the value is always 1.", "version", "revision", "go_version")
	descReady    = desc("ready", "1 while /readyz says so, else 0.")
	descLogs     = desc("log_lines_dropped_total", "Log lines dropped because the sink was slow.")
	descHTTP     = desc("http_requests_total", "HTTP requests, by path.", "route")
	descHTTPBad  = desc("http_denied_total", "HTTP requests with a wrong token or none.")
	descHTTPOver = desc("http_connections_refused_total", "HTTP connections over the limit.")

	descPanics = desc("panics_total", "RPCs and HTTP requests that met a fault in this program.")
)

// engineMetric is one number of an engine's server.
type engineMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*served) float64
}

var engineMetrics = [...]engineMetric{
	{desc("subscriptions_refused_total", "Subscriptions refused because max-subscriptions were there.", "engine"), prometheus.CounterValue, func(e *served) float64 { return float64(e.stats.refused.Load()) }},
	{desc("passed_rpcs_total", "RPCs passed through to the engine's own server.", "engine"), prometheus.CounterValue, func(e *served) float64 { return float64(e.stats.passed.Load()) }},
	{desc("looped_rpcs_total", "RPCs refused because this relay had passed them on before.", "engine"), prometheus.CounterValue, func(e *served) float64 {
		if e.pass == nil {
			return 0
		}
		return float64(e.pass.back.Load())
	}},
	{desc("passing_rpcs", "RPCs that are being passed through.", "engine"), prometheus.GaugeValue, func(e *served) float64 { return float64(e.stats.passing.Load()) }},
	{desc("denied_rpcs_total", "RPCs with a wrong token or none.", "engine"), prometheus.CounterValue, func(e *served) float64 { return float64(e.stats.denied.Load()) }},
	{desc("tls_handshakes_failed_total", "Connections that did not get through the TLS handshake.", "engine"), prometheus.CounterValue, func(e *served) float64 { return float64(e.stats.handshakes.Load()) }},
	{desc("connections_refused_total", "Connections over max-connections.", "engine"), prometheus.CounterValue, func(e *served) float64 { return float64(e.stats.turnedAway.Load()) }},
}

// contractMetric is one number of an engine's subscriptions of one contract.
type contractMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*servedStats, contract) float64
}

func contractCounter(name, help string, of func(*servedStats) *[numContracts]atomic.Uint64) contractMetric {
	return contractMetric{desc(name, help, "engine", "contract"), prometheus.CounterValue, func(s *servedStats, c contract) float64 {
		return float64(of(s)[c].Load())
	}}
}

var contractMetrics = [...]contractMetric{
	{desc("subscribers", "Subscriptions that are there.", "engine", "contract"), prometheus.GaugeValue, func(s *servedStats, c contract) float64 {
		return float64(s.subscribers[c].Load())
	}},
	contractCounter("subscriptions_total", "Subscriptions begun.", func(s *servedStats) *[numContracts]atomic.Uint64 { return &s.subscribed }),
	contractCounter("sent_messages_total", "Messages handed to the transport.", func(s *servedStats) *[numContracts]atomic.Uint64 { return &s.messages }),
	contractCounter("sent_bytes_total", "Bytes of those messages.", func(s *servedStats) *[numContracts]atomic.Uint64 { return &s.bytes }),
	contractCounter("sent_snapshots_total", "Snapshots sent whole.", func(s *servedStats) *[numContracts]atomic.Uint64 { return &s.snapshots }),
	contractCounter("sent_snapshot_chunks_total", "Chunks of snapshots sent.", func(s *servedStats) *[numContracts]atomic.Uint64 { return &s.chunks }),
}

var descEnded = desc("subscriptions_ended_total", "Subscriptions that ended or were refused, by why.", "engine", "contract", "reason")

// endNames are the values of descEnded's reason.
var endNames = [endReasons]string{
	EndInvalid: "invalid", EndNoForm: "no_form", EndOutOfRange: "out_of_range", EndDataLoss: "data_loss", EndClosed: "closed",
	endReasons - 1: "subscriber",
}

var (
	descLoadGood   = desc("load_readings_total", "Readings of the engine's load.", "engine")
	descLoadFailed = desc("load_failures_total", "Readings that failed, by why.", "engine", "reason")
)

// collector reads engines at a scrape.
type collector struct{ h *Host }

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descBuild, descReady, descLogs, descHTTP, descHTTPBad, descHTTPOver, descPanics,
		descEnded, descLoadGood, descLoadFailed, descLoadAge, descDropped, descHashNot,
	} {
		ch <- d
	}
	for i := range engineMetrics {
		ch <- engineMetrics[i].desc
	}
	for i := range contractMetrics {
		ch <- contractMetrics[i].desc
	}
	for i := range rankMetrics {
		ch <- rankMetrics[i].desc
	}
}

func gauge(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func counter(d *prometheus.Desc, v uint64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func fromBool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	h, m := c.h, c.h.met
	version, revision := settings.BuildVersion()
	ch <- gauge(descBuild, 1, version, revision, runtime.Version())
	ch <- gauge(descReady, fromBool(h.ready().Ready))
	var dropped uint64
	if h.logSink != nil {
		dropped = h.logSink.Dropped()
	}
	ch <- counter(descLogs, dropped)
	for i := range m.httpRequests {
		route := "unknown"
		if i < len(httpRoutes) {
			route = httpRoutes[i].path
		}
		ch <- counter(descHTTP, m.httpRequests[i].Load(), route)
	}
	ch <- counter(descHTTPBad, m.httpDenied.Load())
	ch <- counter(descHTTPOver, m.httpTurnedAway.Load())
	panics := m.httpPanics.Load()
	if h.serving.Load() {
		now := time.Now()
		for _, e := range h.engines {
			panics += e.stats.panics.Load()
			collectEngine(ch, e, now)
		}
	}
	ch <- counter(descPanics, panics)
}

func collectEngine(ch chan<- prometheus.Metric, e *served, now time.Time) {
	name := e.engine.Name()
	for i := range engineMetrics {
		m := &engineMetrics[i]
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(e), name)
	}
	for c := range numContracts {
		for i := range contractMetrics {
			m := &contractMetrics[i]
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&e.stats, c), name, c.String())
		}
		for i, reason := range endNames {
			ch <- counter(descEnded, e.stats.ended[c][i].Load(), name, c.String(), reason)
		}
	}
	if e.meter != nil {
		st := e.meter.Stats()
		ch <- counter(descLoadGood, st.Good, name)
		for _, f := range load.Failures() {
			ch <- counter(descLoadFailed, st.Failures[f], name, f.String())
		}
	}
	for _, r := range e.engine.Ranks() {
		collectRank(ch, e, r, now)
	}
}
