// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/relay/wire"
	"kindex/shard"
)

// startZMQHost is a test host with real sockets, and more shards and lanes than
// streams in most tests.
func startZMQHost(t *testing.T, change func(*Config)) *testHost {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	cfg.DrainTimeout = 5 * time.Second
	cfg.ShardsPerNode, cfg.LanesPerNode = 3, 2
	if change != nil {
		change(&cfg)
	}
	h, err := New(cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return serveTestHost(t, h, nil)
}

func registerEngine(t *testing.T, h *testHost, id string, e *engine, more string) {
	t.Helper()
	h.must(201, "POST", "/register", fmt.Sprintf(`{"instance_id":%s,"endpoint":%q,"replay_endpoint":%q,"model_name":"m","block_size":%d%s}`,
		id, e.live, e.back, testBlock, more))
}

// depth asks how many blocks of the chain instance id holds, by HTTP.
func (h *testHost) depth(id string, blocks ...uint64) (n int, degraded bool) {
	h.t.Helper()
	var ts []uint32
	for _, b := range blocks {
		ts = append(ts, blockTokens(b)...)
	}
	var reply struct {
		Instances map[string]struct {
			Longest  int  `json:"longest_matched"`
			Degraded bool `json:"degraded"`
		} `json:"instances"`
	}
	if err := json.Unmarshal([]byte(h.must(200, "POST", "/query", query(h.t, ts, ""))), &reply); err != nil {
		h.t.Fatal(err)
	}
	return reply.Instances[id].Longest / testBlock, reply.Instances[id].Degraded
}

// listener returns a rank of instance id, 0 where none is named.
func (h *testHost) listener(id string, rank ...string) Listener {
	h.t.Helper()
	for _, w := range h.Instances("", "") {
		if string(w.Instance) == id {
			return w.Listeners[strings.Join(append(rank, "0")[:1], "")]
		}
	}
	h.t.Fatalf("no worker %s", id)
	return Listener{}
}

// TestHostEndToEnd: from an engine's sockets to every route, through a join, a
// removal, a restart and another engine's silence.
func TestHostEndToEnd(t *testing.T) {
	h := startZMQHost(t, nil)
	e := startEngine(t, nil, nil)
	e.publish(storeOf(0, 1, 2)) // before anybody listens
	registerEngine(t, h, "1", e, "")
	waitFor(t, "ready", func() bool { return len(h.Unready()) == 0 })
	if n, degraded := h.depth("1", 1, 2, 3); n != 2 || degraded {
		t.Errorf("after the join: depth %d, degraded %v, want 2 and exact", n, degraded)
	}
	e.publish(storeOf(2, 3, 4))
	waitFor(t, "the second batch", func() bool { n, _ := h.depth("1", 1, 2, 3, 4); return n == 4 })
	e.publish(removeOf(2))
	waitFor(t, "the removal", func() bool { n, _ := h.depth("1", 1, 2, 3, 4); return n == 1 })
	l := h.listener("1")
	if l.Status != "active" || l.LastSeq == nil || *l.LastSeq != 2 || l.Epoch != 1 || l.Memberships != 3 || l.Recovered < 1 || l.Lost != 0 || l.Endpoint != e.live {
		t.Errorf("listener: %s", jsonOf(t, l))
	}
	text := h.must(200, "GET", "/metrics", "")
	for _, want := range []string{"kindex_stream_last_sequence{", "kindex_stream_memberships{", "kindex_stream_age_seconds{", "kindex_stream_exact{", "kindex_streams{status=\"active\"} 1"} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no metric %s", want)
		}
	}
	if strings.Contains(text, "kindex_apply_seconds_count 0\n") {
		t.Error("no message was timed")
	}
	before := h.must(200, "GET", "/digest", "")
	var d dumped
	if err := json.Unmarshal([]byte(h.must(200, "GET", "/dump", "")), &d); err != nil {
		t.Fatal(err)
	}
	if c := d["m:default"].Streams["1"]["0"]; c.Epoch != 1 || c.LastSeq == nil || *c.LastSeq != 2 {
		t.Errorf("cursor of the dump: %s", jsonOf(t, c))
	}

	// A restart forgets the old life, and tells another content.
	e.kill()
	e2 := startEngine(t, e, nil)
	e2.publish(storeOf(0, 7))
	waitFor(t, "the new life", func() bool { n, _ := h.depth("1", 7); return n == 1 })
	if n, _ := h.depth("1", 1); n != 0 {
		t.Errorf("the old life still answers: depth %d", n)
	}
	if after := h.must(200, "GET", "/digest", ""); after == before {
		t.Error("the digest is that of the old life")
	}
	waitFor(t, "exact again", func() bool { _, degraded := h.depth("1", 7); return !degraded })
	if l := h.listener("1"); l.Restarts != 1 || l.Epoch != 2 {
		t.Errorf("listener: %s", jsonOf(t, l))
	}
}

// TestHostReady: not ready while a stream is neither exact nor given up on.
func TestHostReady(t *testing.T) {
	h := startZMQHost(t, func(c *Config) { c.ConnectPeriod = 500 * time.Millisecond })
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := nobody.Addr().String()
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}
	h.must(201, "POST", "/register", `{"instance_id":1,"endpoint":"tcp://`+at+`","model_name":"m","block_size":4}`)
	if got := h.error("GET", "/readyz", "", 503); !strings.Contains(got, "pending") {
		t.Errorf("got %q", got)
	}
	waitFor(t, "given up on", func() bool { code, _ := h.do("GET", "/readyz", ""); return code == 200 })
	if l := h.listener("1"); l.Status != "failed" || l.LastError == "" {
		t.Errorf("listener: %s", jsonOf(t, l))
	}
}

// TestHostWrongBlockSize: silent zero hits are a reason on the page.
func TestHostWrongBlockSize(t *testing.T) {
	h := startZMQHost(t, nil)
	e := startEngine(t, nil, nil)
	e.publish(storeOf(0, 1, 2))
	h.must(201, "POST", "/register", fmt.Sprintf(`{"instance_id":1,"endpoint":%q,"replay_endpoint":%q,"model_name":"m","block_size":%d}`, e.live, e.back, 2*testBlock))
	waitFor(t, "the events", func() bool { return h.listener("1").Dropped["block_size"] > 0 })
	if l := h.listener("1"); l.Status != "degraded" || l.Memberships != 0 || !strings.Contains(l.LastError, "block") {
		t.Errorf("listener: %s", jsonOf(t, l))
	}
	waitFor(t, "ready all the same", func() bool { code, _ := h.do("GET", "/readyz", ""); return code == 200 })
}

// TestHostPromptStop: connects, subscriptions and replays that hang hold up
// neither an unregistration nor the drain.
func TestHostPromptStop(t *testing.T) {
	h := startZMQHost(t, nil)
	// One that accepts and says nothing, for live and for replay.
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	deaf := startEngine(t, nil, func(e *engine) { e.deaf = true })
	mutedAt := mute.Addr().String()
	for id, endpoints := range []string{
		fmt.Sprintf(`"endpoint":"tcp://%s"`, mutedAt),
		fmt.Sprintf(`"endpoint":%q,"replay_endpoint":"tcp://%s"`, deaf.live, mutedAt),
		`"endpoint":"tcp://192.0.2.1:5557","replay_endpoint":"tcp://192.0.2.1:5558"`, // TEST-NET: nobody answers
		`"endpoint":"tcp://no-such-host.invalid:5557"`,
		fmt.Sprintf(`"endpoint":%q,"replay_endpoint":%q`, deaf.live, deaf.back),
		`"endpoint":"tcp://*:47113"`,
	} {
		h.must(201, "POST", "/register", fmt.Sprintf(`{"instance_id":%d,"model_name":"m","block_size":16,%s}`, id, endpoints))
	}
	deaf.publish(storeOf(0, 1))
	begun := time.Now()
	h.must(200, "POST", "/unregister", `{"instance_id":4,"model_name":"m"}`)
	h.must(200, "POST", "/unregister", `{"instance_id":2,"model_name":"m"}`)
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("unregistering took %s", took)
	}
	begun = time.Now()
	if err := h.stop(); err != nil {
		t.Errorf("drain: %v", err)
	}
	if took := time.Since(begun); took > 4*time.Second {
		t.Errorf("the drain took %s", took)
	}
}

// TestHostDumpCursor: dumps taken while batches pour in hold exactly the content
// of their cursor: each batch here stores one block.
func TestHostDumpCursor(t *testing.T) {
	h := startZMQHost(t, nil)
	e := startEngine(t, nil, nil)
	registerEngine(t, h, "1", e, "")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		for b := uint64(1); ctx.Err() == nil; b++ {
			e.publish(storeOf(b-1, b))
		}
	})
	seen := map[uint64]bool{}
	for ctx.Err() == nil {
		var d dumped
		if err := json.Unmarshal([]byte(h.must(200, "GET", "/dump", "")), &d); err != nil {
			t.Fatal(err)
		}
		blocks := uint64(0)
		for _, ev := range d["m:default"].Events {
			blocks += uint64(len(ev.Event.Data.Stored.Blocks))
		}
		c := d["m:default"].Streams["1"]["0"]
		want := uint64(0)
		if c.LastSeq != nil {
			want = *c.LastSeq + 1
		}
		if blocks != want {
			t.Fatalf("a dump at %d batches has %d blocks", want, blocks)
		}
		seen[want] = true
	}
	wg.Wait()
	if len(seen) < 5 {
		t.Errorf("only %d different cursors: the test shows too little", len(seen))
	}
}

// TestHostReregister: an instance that comes back under its address has what its
// publisher has, no more: nothing of the old registration gets in.
func TestHostReregister(t *testing.T) {
	h := startZMQHost(t, nil)
	e := startEngine(t, nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for b := uint64(1); ctx.Err() == nil && b < 3_000; b++ {
			e.publish(storeOf(0, b))
			if b > 50 {
				e.publish(removeOf(b - 50))
			}
		}
	})
	for range 40 {
		registerEngine(t, h, "1", e, "")
		for range 3 {
			h.depth("1", 1)
		}
		h.must(200, "POST", "/unregister", `{"instance_id":1,"model_name":"m"}`)
		if st := h.idx.Stats(); st.Holders != 0 || st.Memberships != 0 {
			t.Fatalf("after /unregister: %d holders, %d memberships", st.Holders, st.Memberships)
		}
	}
	registerEngine(t, h, "1", e, "")
	var last uint64
	waitFor(t, "enough batches", func() bool {
		e.do(func(th *engineThread) { last = th.seq })
		return last > 300
	})
	cancel()
	wg.Wait()
	e.do(func(th *engineThread) { last = th.seq - 1 })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last %d: %s", last, jsonOf(t, h.Instances("", "")))
		}
	})
	waitFor(t, "the last batch", func() bool {
		l := h.listener("1")
		return l.Status == "active" && l.LastSeq != nil && *l.LastSeq == last
	})
	// A reference that takes every batch in order has the truth.
	ref := NewWriter(shard.NewReference(shard.Options{}))
	key := h.rank("m", "", "1", 0).cfg.Model
	holder, err := ref.AddHolder(key)
	if err != nil {
		t.Fatal(err)
	}
	feed := NewFeed(StreamConfig{Model: key, BlockSize: testBlock}, ref, holder)
	feed.Connected(time.Now())
	e.do(func(th *engineThread) {
		for _, m := range th.buffer {
			feed.Live(m.Seq, m.Payload, time.Now())
		}
	})
	want, err := shard.Digest(ref, holder)
	if err != nil {
		t.Fatal(err)
	}
	got := h.must(200, "GET", "/digest", "")
	if wantJSON := fmt.Sprintf(`{"m:default":{"1":{"0":"%016x"}}}`, want); got != wantJSON {
		t.Errorf("digest %s, the reference has %s", got, wantJSON)
	}
}

// TestHostRanks: ranks are subscribed at port plus rank, and answer apart.
func TestHostRanks(t *testing.T) {
	h := startZMQHost(t, nil)
	// Two neighbouring free ports, found by trying.
	var a, b *engine
	for b == nil {
		a = startEngine(t, nil, func(e *engine) { e.noReplay = true })
		next, err := feed.RankEndpoint(a.live, 1)
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", strings.TrimPrefix(next, "tcp://"))
		if err != nil {
			continue
		}
		_ = l.Close()
		b = startEngine(t, &engine{live: next, back: "tcp://127.0.0.1:*"}, func(e *engine) { e.noReplay = true })
	}
	h.must(201, "POST", "/register", fmt.Sprintf(`{"instance_id":1,"endpoint":%q,"model_name":"m","block_size":%d,"dp_size":2}`, a.live, testBlock))
	waitFor(t, "both connected", func() bool {
		w := h.Instances("", "")[0]
		return w.Listeners["0"].Status == "active" && w.Listeners["1"].Status == "active"
	})
	a.publish(storeOf(0, 1, 2, 3, 4))
	b.send(true, rankPayload(1, storeOf(0, 1, 2, 3, 4)))
	b.send(true, rankPayload(1, removeOf(3)))
	ts := append(append(append(blockTokens(1), blockTokens(2)...), blockTokens(3)...), blockTokens(4)...)
	want := fmt.Sprintf(`{"scores":{"1":{"0":%d,"1":%d}},"frequencies":[],"instances":{"1":{"longest_matched":%[1]d,"gpu":%[1]d,"cpu":%[1]d,"disk":%[1]d,"dp":{"0":%[1]d,"1":%d}}}}`, 4*testBlock, 2*testBlock, 2*testBlock)
	waitFor(t, "both ranks' answers", func() bool {
		return h.must(200, "POST", "/query", query(t, ts, "")) == want
	})
}

func rankPayload(rank int, events ...kv.Event) []byte {
	return wire.AppendBatch(nil, &kv.Batch{Timestamp: 1_800_000_000, Rank: rank, HasRank: true, Events: events}, testLayout)
}
