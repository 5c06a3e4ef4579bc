// SPDX-License-Identifier: Apache-2.0

// Before: a person's browser. After: what the host knows of streams, lookups and
// memory.

package indexsrv

import (
	"embed"
	"fmt"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/internal/kv"
	"kindex/internal/settings"
	"kindex/shard"
)

// The page: no build step, nothing from elsewhere.
//
//go:embed ui
var uiFiles embed.FS

// uiTypes are the files of the page, by their path below /ui.
var uiTypes = map[string]struct{ file, content string }{
	"/ui":           {"ui/index.html", "text/html; charset=utf-8"},
	"/ui/":          {"ui/index.html", "text/html; charset=utf-8"},
	"/ui/page.js":   {"ui/page.js", "text/javascript; charset=utf-8"},
	"/ui/style.css": {"ui/style.css", "text/css; charset=utf-8"},
}

const (
	uiPrefixes = 20
	// uiPeriod is how old what the page shows may be: many viewers cost as much as one.
	uiPeriod = 500 * time.Millisecond
)

// uiData is what /ui/data answers. Counters grow from the host's start; what is of
// sampled lookups is of one in uiData.Lookups.SampleEvery.
type uiData struct {
	Version  string         `json:"version"`
	Index    string         `json:"index"` // its kind
	Time     int64          `json:"time"`  // Unix ms
	Streams  map[string]int `json:"streams"`
	Workers  []uiWorker     `json:"workers"`
	Lookups  uiLookups      `json:"lookups"`
	Memory   []uiShard      `json:"memory"`
	Prefixes []uiPrefix     `json:"prefixes"`
}

// uiWorker is a worker as /workers shows it, and its part in sampled lookups.
type uiWorker struct {
	Worker
	Memberships uint64 `json:"memberships"`
	Hits        uint64 `json:"hits"`       // sampled lookups that it held something of
	HitBlocks   uint64 `json:"hit_blocks"` // that it held of those, the deepest rank's
}

type uiLookups struct {
	Count       uint64   `json:"count"`
	BoundsUS    []uint64 `json:"bounds_us"` // upper bounds of the first buckets; the last has none
	Buckets     []uint64 `json:"buckets"`   // not cumulative
	SampleEvery int      `json:"sample_every"`
	Sampled     uint64   `json:"sampled"`
	Found       uint64   `json:"found"`          // of them, that anybody held something of
	Blocks      uint64   `json:"blocks"`         // asked for by them
	Deepest     uint64   `json:"deepest_blocks"` // held by the deepest holder of each shard
}

type uiShard struct {
	Shard       int               `json:"shard"`
	Node        int               `json:"node"`
	Memberships uint64            `json:"memberships"`
	Blocks      uint64            `json:"blocks"`
	Bytes       map[string]uint64 `json:"bytes"` // by purpose
	Used        uint64            `json:"used_bytes"`
	Bound       uint64            `json:"bound_bytes"` // 0: none
	Refused     uint64            `json:"refused_workers"`
}

// uiPrefix is a prefix that many of the sampled lookups began with.
type uiPrefix struct {
	Model   string `json:"model_name"`
	Group   string `json:"routing_group"`
	Tenant  string `json:"tenant_id"`
	Blocks  int    `json:"blocks"`
	Hash    string `json:"hash"`    // of its last block's content, hexadecimal in groups
	Lookups uint64 `json:"lookups"` // sampled; at most
	Least   uint64 `json:"least"`   // and at least
	Holders int    `json:"holders"` // ranks that hold all of it now
}

// uiCache keeps what /ui/data answered last.
type uiCache struct {
	mu   sync.Mutex
	body []byte
	made time.Time
}

// serveUI answers the page, its files and its data.
func (h *Host) serveUI(ctx *fasthttp.RequestCtx, _ *queryScratch) {
	f, ok := uiTypes[string(ctx.Path())]
	if !ok {
		refuseHTTP(ctx, fasthttp.StatusNotFound, "unknown path: the page is at /ui, its data at /ui/data")
		return
	}
	b, err := uiFiles.ReadFile(f.file)
	if err != nil {
		panic("BUG: indexsrv: a file of the page is missing: " + err.Error())
	}
	head := &ctx.Response.Header
	head.Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; img-src data:")
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Cache-Control", "no-cache")
	ctx.SetContentType(f.content)
	ctx.SetBody(b)
}

// serveUIData answers /ui/data.
func (h *Host) serveUIData(ctx *fasthttp.RequestCtx, _ *queryScratch) {
	c := &h.ui
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.body == nil || time.Since(c.made) >= uiPeriod {
		replyValue(ctx, fasthttp.StatusOK, h.uiData())
		c.body, c.made = append(c.body[:0], ctx.Response.Body()...), time.Now()
		return
	}
	replyJSON(ctx, fasthttp.StatusOK, c.body)
}

func (h *Host) uiData() *uiData {
	version, _ := settings.BuildVersion()
	d := &uiData{
		Version: version, Index: h.cfg.KVIndex, Time: time.Now().UnixMilli(), Streams: map[string]int{},
		Workers: []uiWorker{}, Prefixes: []uiPrefix{},
	}
	for _, w := range h.reg.workers(nil) {
		shown := w.show()
		one := uiWorker{Worker: describe(&shown)}
		for _, l := range one.Listeners {
			d.Streams[l.Status]++
			one.Memberships += l.Memberships
		}
		one.Hits, one.HitBlocks = h.traffic.of(w)
		d.Workers = append(d.Workers, one)
	}
	d.Lookups = h.uiLookups()
	for i := range h.pool.Shards() {
		st := h.idx.shardStats(i)
		s := uiShard{Shard: i, Node: h.pool.NodeOf(i), Memberships: st.Memberships, Blocks: st.Blocks, Bytes: map[string]uint64{}}
		for p := range shard.NumPurposes {
			s.Bytes[p.String()] = st.Bytes[p]
		}
		if b := h.idx.budgets[i]; b != nil {
			s.Used, s.Bound, s.Refused = b.used.Load(), b.bound, b.refused.Load()
		}
		d.Memory = append(d.Memory, s)
	}
	var matches []kv.Match
	for _, p := range h.traffic.top(uiPrefixes) {
		n := p.model.name
		matches = h.idx.Lookup(p.model.key.Namespace(p.seed), p.chain, matches[:0])
		one := uiPrefix{
			Model: n.model, Group: n.group, Tenant: n.tenant, Blocks: len(p.chain), Lookups: p.count, Least: p.count - p.excess,
			Hash: groupedHash(p.chain[len(p.chain)-1]),
		}
		for _, m := range matches {
			if int(m.Any) == len(p.chain) {
				one.Holders++
			}
		}
		d.Prefixes = append(d.Prefixes, one)
	}
	return d
}

// groupedHash writes c in groups of four hexadecimal digits, as people read them.
func groupedHash(c kv.ContentHash) string {
	return fmt.Sprintf("%04x-%04x-%04x-%04x", uint16(c>>48), uint16(c>>32), uint16(c>>16), uint16(c))
}

func (h *Host) uiLookups() uiLookups {
	t := &h.traffic
	t.mu.Lock()
	l := uiLookups{SampleEvery: sampleEvery, Sampled: t.lookups, Found: t.found, Blocks: t.blocks, Deepest: t.deepest}
	t.mu.Unlock()
	for _, b := range bucketBounds {
		l.BoundsUS = append(l.BoundsUS, uint64(b.Microseconds()))
	}
	l.Buckets = h.met.lookup.counts()
	for _, n := range l.Buckets {
		l.Count += n
	}
	return l
}

// of returns w's part in the sampled lookups: the most that one of its ranks has.
func (t *traffic) of(w *worker) (lookups, blocks uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range *w.ranks.Load() {
		if r.traffic.lookups > lookups {
			lookups, blocks = r.traffic.lookups, r.traffic.blocks
		}
	}
	return lookups, blocks
}
