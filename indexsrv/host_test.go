// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/shard"
)

// fakeSource delivers nothing by itself: tests put content into the index, and
// say how streams stand.
type fakeSource struct {
	mu      sync.Mutex
	opened  map[string]int // by endpoint, now open
	refuse  error
	closing chan struct{} // where not nil, taps close when it is closed
	closed  bool
}

type fakeTap struct {
	src      *fakeSource
	endpoint string
}

func (f *fakeSource) Open(cfg *feed.Config, _ *feed.Stream) (feed.Tap, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return nil, f.refuse
	}
	if f.opened == nil {
		f.opened = map[string]int{}
	}
	f.opened[cfg.Endpoint]++
	return fakeTap{f, cfg.Endpoint}, nil
}

func (f *fakeSource) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for endpoint, n := range f.opened {
		if n != 0 {
			return errors.New("closed with an open tap at " + endpoint)
		}
	}
	f.closed = true
	return nil
}

func (t fakeTap) Close() {
	t.src.mu.Lock()
	wait := t.src.closing
	t.src.mu.Unlock()
	if wait != nil {
		<-wait
	}
	t.src.mu.Lock()
	t.src.opened[t.endpoint]--
	t.src.mu.Unlock()
}

// testHost is a host over a fake source, serving on a port of its own.
type testHost struct {
	*Host
	t    *testing.T
	src  *fakeSource
	url  string
	stop func() error // drains; once
}

func startTestHost(t *testing.T, change func(*Config)) *testHost {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	cfg.CleanupTimeout = 5 * time.Second
	cfg.DrainTimeout = 5 * time.Second
	if change != nil {
		change(&cfg)
	}
	src := &fakeSource{}
	h, err := newHost(cfg, src, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return serveTestHost(t, h, src)
}

func serveTestHost(t *testing.T, h *Host, src *fakeSource) *testHost {
	t.Helper()
	if err := h.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-served
	})
	th := &testHost{Host: h, t: t, src: src, url: "http://" + h.Addr().String(), stop: stop}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := th.stop(); err != nil {
			t.Errorf("drain: %v", err)
		}
	})
	return th
}

// do asks and returns status and body.
func (h *testHost) do(method, path, body string) (int, string) {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), method, h.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		h.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, string(b)
}

// must asks and fails on another status.
func (h *testHost) must(status int, method, path, body string) string {
	h.t.Helper()
	got, reply := h.do(method, path, body)
	if got != status {
		h.t.Fatalf("%s %s %.300s: got %d %.300s, want %d", method, path, body, got, reply, status)
	}
	return reply
}

// want asks and compares status and body.
func (h *testHost) want(method, path, body string, status int, reply string) {
	h.t.Helper()
	got, b := h.do(method, path, body)
	if got != status || b != reply {
		h.t.Errorf("%s %s %.300s:\n got %d %.2000s\nwant %d %.2000s", method, path, body, got, b, status, reply)
	}
}

// error asks and checks that the reply is {"error":"..."} of one line.
func (h *testHost) error(method, path, body string, status int) string {
	h.t.Helper()
	got, b := h.do(method, path, body)
	var e struct{ Error *string }
	if err := json.Unmarshal([]byte(b), &e); err != nil || e.Error == nil || *e.Error == "" || bytes.ContainsAny([]byte(*e.Error), "\r\n") {
		h.t.Errorf("%s %s %.200q: got %d %.300s, want one line of error (%v)", method, path, body, got, b, err)
		return ""
	}
	if got != status {
		h.t.Errorf("%s %s %.200q: got %d %.300s, want %d", method, path, body, got, b, status)
	}
	return *e.Error
}

// rank returns a registered rank.
func (h *testHost) rank(model, group, id string, number int) *rank {
	h.t.Helper()
	m := h.reg.find(makeModelName("", model, group))
	if m == nil {
		h.t.Fatalf("no model %s", model)
	}
	h.reg.mu.Lock()
	defer h.reg.mu.Unlock()
	r := m.workers[id].rank(number)
	if r == nil {
		h.t.Fatalf("no rank %d of %s", number, id)
	}
	return r
}

// setState makes lookups see r's stream in state s.
func setState(r *rank, s feed.State) { r.stream.state.Store(uint32(s)) }

// tokens returns n tokens from first on.
func tokens(first, n int) []uint32 {
	ts := make([]uint32, n)
	for i := range ts {
		ts[i] = uint32(first + i)
	}
	return ts
}

// put makes r hold the blocks of ts under engine hashes from first on.
func (h *testHost) put(r *rank, tier kv.Tier, lora, salt string, first kv.EngineHash, ts []uint32, extra [][]byte) {
	h.t.Helper()
	seed := kv.ContentSeed(lora, salt)
	b := kv.Blocks{Tokens: ts, BlockSize: r.cfg.BlockSize, Extra: extra}
	st := shard.Store{Tier: tier, Namespace: r.cfg.Model.Namespace(seed), Contents: b.AppendHashes(nil, seed)}
	for i := range st.Contents {
		st.Engines = append(st.Engines, first+kv.EngineHash(i))
	}
	if err := h.idx.Store(r.holder, &st); err != nil {
		h.t.Fatal(err)
	}
}

func (h *testHost) take(r *rank, tier kv.Tier, engines ...kv.EngineHash) {
	h.t.Helper()
	if err := h.idx.Remove(r.holder, &shard.Remove{Tier: tier, Engines: engines}); err != nil {
		h.t.Fatal(err)
	}
}

// register registers and marks all ranks exact.
func (h *testHost) register(body string) {
	h.t.Helper()
	h.must(201, "POST", "/register", body)
	for _, w := range h.reg.workers(nil) {
		for _, r := range *w.ranks.Load() {
			if r.stream.current() == feed.StatePending {
				setState(r, feed.StateActive)
			}
		}
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
