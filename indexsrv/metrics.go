// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bytes"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
	"github.com/valyala/fasthttp"

	"kindex/asm"
	"kindex/internal/settings"
	"kindex/shard"
)

// statuses are the HTTP statuses with a counter of their own; others share the
// last.
var statuses = [...]int{200, 201, 400, 401, 403, 404, 405, 408, 409, 413, 415, 431, 500, 501, 503}

// metrics are what the host counts itself. What streams and the index count is
// read from them at each scrape.
type metrics struct {
	registry *prometheus.Registry

	lookup histogram // one index lookup
	apply  histogram // one live message from socket to index
	panics atomic.Uint64

	shardApply shardApply // one message's operations, by shard

	// requests by route (the last: unknown path) and status (the last: others).
	requests [numRoutes + 1][len(statuses) + 1]atomic.Uint64
}

func newMetrics(h *Host) *metrics {
	m := &metrics{registry: prometheus.NewPedanticRegistry(), shardApply: make(shardApply, h.pool.Shards())}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&collector{h},
	)
	return m
}

// streamHooks returns the hooks of the stream that holder h of a shard belongs to.
func (m *metrics) streamHooks(h shard.Holder, shard int) streamHooks {
	return streamHooks{
		Applied: func(d time.Duration) { m.apply.observe(int(h), d) },
		Shard:   m.shardApply.hook(shard),
	}
}

func (m *metrics) request(route, status int) {
	i := 0
	for i < len(statuses) && statuses[i] != status {
		i++
	}
	m.requests[route][i].Add(1)
}

func (h *Host) serveMetrics(ctx *fasthttp.RequestCtx, _ *queryScratch) {
	families, err := h.met.registry.Gather()
	if err != nil {
		h.log.Error("metrics", "error", err)
		refuseHTTP(ctx, fasthttp.StatusInternalServerError, "internal error: this host's log has it")
		return
	}
	var b bytes.Buffer
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	enc := expfmt.NewEncoder(&b, format)
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			h.log.Error("metrics", "error", err)
		}
	}
	ctx.SetContentType(string(format))
	ctx.SetBody(b.Bytes())
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kindex_"+name, help, labels, nil)
}

var (
	descBuild    = desc("build_info", "What runs here; the value is always 1.", "version", "revision", "go_version", "kv_index", "cpu_features")
	descRequests = desc("http_requests_total", "HTTP requests answered, by path and status.", "route", "code")
	descPanics   = desc("http_panics_total", "HTTP requests that met a fault in this program.")
	descLogs     = desc("log_lines_dropped_total", "Log lines dropped because the sink was slow.")
	descLookup   = desc("lookup_seconds", "Time of one index lookup.")
	descApply    = desc("apply_seconds", "Time to apply one live message of a stream, from socket to index; replayed ones are not in it.")

	descHolders     = desc("index_holders", "(worker, rank) pairs the index knows, those being cleaned up included.")
	descMemberships = desc("index_memberships", "Blocks held, each counted once for each holder.")
	descBlocks      = desc("index_blocks", "Distinct blocks held by any holder.")
	descRuns        = desc("index_runs", "Runs that the blocks are kept in; 0 for an index without runs.")
	descBytes       = desc("index_bytes", "Index memory by purpose and the memory node that its shards belong to.", "purpose", "node")
	descStreams     = desc("streams", "Registered streams by status.", "status")
	descWorkers     = desc("workers", "Registered instances.")
)

// collector reads streams and index at a scrape.
type collector struct{ h *Host }

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descBuild, descRequests, descPanics, descLogs, descLookup, descApply,
		descHolders, descMemberships, descBlocks, descRuns, descBytes, descStreams, descWorkers, descDropped, descRefused, descSuppressed,
		descShmClients, descShmBytes, descShmRequests, descShmEnded,
	} {
		ch <- d
	}
	for i := range streamMetrics {
		ch <- streamMetrics[i].desc
	}
	describeShards(ch)
	describeRPC(ch)
	describeState(ch)
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.host(ch)
	c.shards(ch)
	c.lanes(ch)
	c.memory(ch)
	c.rpc(ch)
	c.streams(ch)
	c.secure(ch)
	c.state(ch)
	c.sharedMemory(ch)
}

func gauge(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func counter(d *prometheus.Desc, v uint64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (c *collector) host(ch chan<- prometheus.Metric) {
	m := c.h.met
	version, revision := settings.BuildVersion()
	ch <- gauge(descBuild, 1, version, revision, runtime.Version(), c.h.cfg.KVIndex, asm.Level())
	for r := range m.requests {
		route := "unknown"
		if r < len(routes) {
			route = routes[r].path
		}
		for s := range m.requests[r] {
			n := m.requests[r][s].Load()
			code := "other"
			if s < len(statuses) {
				code = strconv.Itoa(statuses[s])
			}
			if n > 0 {
				ch <- counter(descRequests, n, route, code)
			}
		}
	}
	ch <- counter(descPanics, m.panics.Load())
	var dropped uint64
	if c.h.logSink != nil {
		dropped = c.h.logSink.Dropped()
	}
	ch <- counter(descLogs, dropped)
	ch <- m.lookup.metric(descLookup)
	ch <- m.apply.metric(descApply)
}
