// SPDX-License-Identifier: Apache-2.0

package relayindex

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kindex/harness/publish"
	"kindex/indexsrv"
	"kindex/internal/kv"
	"kindex/relay"
	"kindex/relay/client"
	"kindex/relay/normal"
	"kindex/shard"
)

var quiet = slog.New(slog.DiscardHandler)

// patience is how long anything here may take. It is no measure of anything.
const patience = 60 * time.Second

// until waits until ok returns "", and fails the test with its last word else.
func until(t *testing.T, what string, ok func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		why := ok()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %s", what, why)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// engineAt is an engine's sockets.
type engineAt struct {
	kind, pub, replay string
	ranks, block      int
}

// startRelay starts a relay of e at address (port 0: a free one) and returns where it
// serves, and what ends it.
func startRelay(t *testing.T, e engineAt, address string, change func(*relay.Config)) (addr string, stop func()) {
	t.Helper()
	cfg := relay.DefaultConfig()
	cfg.Listen, cfg.HTTP = address, "off"
	cfg.DrainTimeout = time.Second
	cfg.Engines = []relay.EngineSpec{{Kind: e.kind, Endpoint: e.pub, Replay: e.replay, Ranks: e.ranks}}
	if change != nil {
		change(&cfg)
	}
	h, err := relay.New(cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-served; err != nil {
			t.Errorf("relay: %v", err)
		}
	}
	t.Cleanup(stop)
	return h.Addr(0), stop
}

// host is an index host with one instance, 1, of model m.
type host struct {
	*indexsrv.Host
	t     *testing.T
	ranks int
}

func startHost(t *testing.T, reg indexsrv.Registration) *host {
	t.Helper()
	cfg := indexsrv.DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	h, err := indexsrv.New(cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("index host: %v", err)
		}
	})
	reg.Instance, reg.Model = indexsrv.NumberID(1), "m"
	if err := h.Register(t.Context(), reg); err != nil {
		t.Fatal(err)
	}
	return &host{h, t, reg.Ranks}
}

func direct(t *testing.T, e engineAt) *host {
	t.Helper()
	return startHost(t, indexsrv.Registration{Endpoint: e.pub, ReplayEndpoint: e.replay, Ranks: e.ranks, BlockSize: e.block, Engine: e.kind})
}

func relayed(t *testing.T, e engineAt, addr string) *host {
	t.Helper()
	return startHost(t, indexsrv.Registration{Endpoint: addr, Ranks: e.ranks, BlockSize: e.block, Engine: e.kind, Source: "relay"})
}

// digests returns the digest of each rank's content.
func (h *host) digests() []string {
	h.t.Helper()
	resp, err := http.Get("http://" + h.Addr().String() + "/digest")
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	var all map[string]map[string]map[string]string
	if err := json.Unmarshal(b, &all); err != nil {
		h.t.Fatalf("%v: %s", err, b)
	}
	ds := make([]string, h.ranks)
	for i := range ds {
		ds[i] = all["m:default"]["1"][fmt.Sprint(i)]
	}
	return ds
}

func (h *host) listeners() []indexsrv.Listener {
	w := h.Instances("", "")[0]
	ls := make([]indexsrv.Listener, h.ranks)
	for i := range ls {
		ls[i] = w.Listeners[fmt.Sprint(i)]
	}
	return ls
}

// differs says where got is not exactly what want is, or why it does not stand exact.
func differs(want, got *host) string {
	a, b := want.digests(), got.digests()
	for i, l := range got.listeners() {
		w := want.listeners()[i]
		switch {
		case a[i] != b[i]:
			return fmt.Sprintf("rank %d: digests %s directly, %s by the relay; %+v, %+v", i, a[i], b[i], w, l)
		case l.Status != w.Status:
			return fmt.Sprintf("rank %d: %s (%s) directly, %s (%s) by the relay", i, w.Status, w.LastError, l.Status, l.LastError)
		}
	}
	return ""
}

// contentOf is a handler that keeps one rank's content in an index of its own.
type contentOf struct {
	idx   shard.Index
	h     shard.Holder
	model kv.ModelKey
	exact bool
	why   string
	last  uint64
}

func newContent(t *testing.T) *contentOf {
	t.Helper()
	idx, err := shard.NewSharded("reference", shard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := &contentOf{idx: idx, model: kv.MakeModelKey("default", "m", "default")}
	if c.h, err = idx.AddHolder(c.model); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *contentOf) must(err error) {
	if err != nil {
		panic(err)
	}
}

func (c *contentOf) apply(ops []client.Op) {
	for i := range ops {
		switch op := &ops[i]; op.Kind {
		case normal.Store:
			st := shard.Store{
				Tier: op.Tier, Group: op.Group, Stated: op.Stated, Parent: op.Parent, HasParent: op.HasParent,
				Engines: op.Engines, Contents: op.Contents, Blocks: op.Blocks,
			}
			if len(op.Contents) > 0 {
				st.Namespace = c.model.Namespace(op.Seed)
			}
			c.must(c.idx.Store(c.h, &st))
		case normal.Remove:
			c.must(c.idx.Remove(c.h, &shard.Remove{Tier: op.Tier, Group: op.Group, Engines: op.Engines}))
		case normal.Clear:
			c.must(c.idx.Clear(c.h))
		case normal.Mismatch:
		}
	}
}

func (c *contentOf) Connected(client.Contract)   {}
func (c *contentOf) Disconnected(why string)     { c.exact, c.why = false, why }
func (c *contentOf) Reset(uint64, string)        { c.must(c.idx.Clear(c.h)) }
func (c *contentOf) Begin(*client.Snapshot)      { c.must(c.idx.Clear(c.h)) }
func (c *contentOf) Chunk(ops []client.Op)       { c.apply(ops) }
func (c *contentOf) End(s *client.Snapshot)      { c.last = s.Through }
func (c *contentOf) Hole(*client.Hole)           {}
func (c *contentOf) Standing(s client.Standing)  { c.exact, c.why = s.Exact, s.Why }
func (c *contentOf) Batch(b *client.Batch)       { c.apply(b.Ops); c.last = b.Sequence }
func (c *contentOf) digest() (d uint64, e error) { return shard.Digest(c.idx, c.h) }

// byPeerContract subscribes to a relay under a peers' contract, waits until it is
// quiet, and returns each rank's digest.
func byPeerContract(t *testing.T, e engineAt, addr string, newest []*uint64) []string {
	t.Helper()
	contents := make([]*contentOf, e.ranks)
	cfg := client.Config{Address: addr, Contract: client.ContractVLLM, BlockSize: e.block, StatedNames: e.kind == "sglang"}
	if e.kind == "sglang" {
		cfg.Contract = client.ContractSGLang
	}
	for i := range contents {
		contents[i] = newContent(t)
		cfg.Ranks = append(cfg.Ranks, uint32(i))
	}
	c, err := client.New(cfg, func(n uint32) client.Handler { return contents[n] })
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the peers' contract", func() string {
		for i := range contents {
			st := c.Rank(uint32(i))
			if newest[i] != nil && (!st.HasSeq || st.Seq != *newest[i]) || !st.Standing.Exact {
				return fmt.Sprintf("rank %d: %+v; %+v", i, st, c.Status())
			}
		}
		return ""
	})
	c.Close()
	ds := make([]string, e.ranks)
	for i, content := range contents {
		d, err := content.digest()
		if err != nil {
			t.Fatal(err)
		}
		ds[i] = fmt.Sprintf("%016x", d)
	}
	return ds
}

// startPublisher publishes at rate batches a second.
func startPublisher(t *testing.T, rate int) (*publish.Publisher, engineAt) {
	t.Helper()
	o := publish.DefaultOptions()
	o.Rate = rate
	p, err := publish.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("publisher: %v", err)
		}
	})
	return p, engineAt{"vllm", p.Pub(), p.Replay(), p.Ranks(), p.Block()}
}

func fixtures(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, dir := range []string{"given", "made"} {
		found, err := filepath.Glob(filepath.Join("..", "testdata", "fixtures", dir, "*.jsonl.gz"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	if len(all) < 20 {
		t.Fatalf("%d recordings are there", len(all))
	}
	return all
}

func nameOf(path string) string { return strings.TrimSuffix(filepath.Base(path), ".jsonl.gz") }
