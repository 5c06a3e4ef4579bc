// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/index"
	"kindex/harness/mockworker/engine"
	"kindex/indexsrv"
	"kindex/internal/lookup"
	"kindex/relay"
)

var quiet = slog.New(slog.DiscardHandler)

// until waits for what must come; why says what is there in its stead.
func until(t *testing.T, what string, f func() (ok bool, why string)) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		ok, why := f()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: it never came: %s", what, why)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// engines starts n mock engines of two ranks.
func engines(t *testing.T, n int, c engine.Config) *engine.Fleet {
	t.Helper()
	c.Model, c.Ranks, c.Replay = "m", 2, "tcp://127.0.0.1:0"
	if c.Engine == "" {
		c.Engine = engine.VLLM
	}
	c.Pub = "tcp://127.0.0.1:0"
	f, err := engine.OpenFleet(c, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// relayOf starts a relay of ours before w.
func relayOf(t *testing.T, w *engine.Worker) string {
	t.Helper()
	pub := w.Engine.Publishers()[0]
	cfg := relay.DefaultConfig()
	cfg.Listen, cfg.HTTP = "127.0.0.1:0", "off"
	cfg.LoadInterval = 20 * time.Millisecond
	cfg.Engines = []relay.EngineSpec{{Kind: "vllm", Endpoint: pub.Live, Replay: pub.Replay, Ranks: 2, Metrics: "http://" + w.HTTP()}}
	h, err := relay.New(cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx) }()
	t.Cleanup(func() { stop(); <-served })
	return h.Addr(0)
}

// rig is a registry whose workers an index follows.
type rig struct {
	t     *testing.T
	reg   *fleet.Registry
	index index.Index
}

func newRig(t *testing.T, o index.Options) *rig {
	t.Helper()
	idx, err := index.Open(t.Context(), o, quiet)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, reg: fleet.NewRegistry(), index: idx}
	r.reg.OnJoin(idx.Joined)
	r.reg.OnLeave(idx.Left)
	t.Cleanup(func() {
		r.reg.Close()
		if err := idx.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// spec is worker i, whose events come straight from its engine.
func spec(i int, w *engine.Worker) fleet.Spec {
	pub := w.Engine.Publishers()[0]
	return fleet.Spec{
		URL: fmt.Sprintf("http://127.0.0.1:%d", 1+i), Models: []string{"m", "alias"}, Engine: fleet.VLLM, Ranks: 2, BlockSize: 16,
		Instance: w.Name, Events: fleet.Events{Endpoint: pub.Live, Replay: pub.Replay},
	}
}

func (r *rig) add(s fleet.Spec) *fleet.Worker {
	r.t.Helper()
	w, err := r.reg.Add(s)
	if err != nil {
		r.t.Fatal(err)
	}
	return w
}

// remove takes w out.
func (r *rig) remove(w *fleet.Worker) {
	r.t.Helper()
	for _, reg := range r.reg.Registrations() {
		if reg.Worker() == w {
			if _, err := r.reg.Remove(reg.ID); err != nil {
				r.t.Fatal(err)
			}
			return
		}
	}
	r.t.Fatalf("%s is not there", w.Spec.URL)
}

// prompts are prompts that begin alike.
func prompts(seed uint64, n int) [][]uint32 {
	r := rand.New(rand.NewPCG(seed, 1))
	ps := make([][]uint32, n)
	for i := range ps {
		if i > 0 && r.IntN(3) > 0 {
			before := ps[r.IntN(i)]
			ps[i] = append(ps[i], before[:r.IntN(len(before))]...)
		}
		for range 16 + r.IntN(150) {
			ps[i] = append(ps[i], r.Uint32N(1000))
		}
	}
	return ps
}

// send has w's engine compute a prompt on a rank.
func send(t testing.TB, w *engine.Worker, rank int, prompt []uint32) {
	t.Helper()
	out, err := w.Engine.Submit(engine.Request{Tokens: prompt, MaxTokens: 2, Rank: rank})
	if err != nil {
		t.Fatal(err)
	}
	for range out {
	}
}

// exact waits until lookups of all prompts say what the engines hold, for all holders
// and nobody else, and levels are their numbers of blocks.
func (r *rig) exact(what string, f *engine.Fleet, ps [][]uint32, workers ...*fleet.Worker) {
	r.t.Helper()
	until(r.t, what, func() (bool, string) {
		for _, p := range ps {
			if why := r.differs(f, p, workers); why != "" {
				return false, why
			}
		}
		for _, w := range workers {
			for n, truth := range f.Worker(w.Spec.Instance).Engine.Truth() {
				if got, known := w.Holders[n].Held(); !known || int(got) != len(truth.Blocks) {
					return false, fmt.Sprintf("%s rank %d: level %d, %v, want %d", w.Spec.Instance, n, got, known, len(truth.Blocks))
				}
			}
		}
		return true, ""
	})
}

// differs says how a lookup of a prompt differs from the truth.
func (r *rig) differs(f *engine.Fleet, prompt []uint32, workers []*fleet.Worker) string {
	a := index.GetAnswer()
	defer index.PutAnswer(a)
	want := map[*fleet.Holder]int{}
	for _, w := range workers {
		for _, u := range f.Worker(w.Spec.Instance).Engine.Reuse(prompt, "") {
			if u.Held > 0 {
				want[w.Holders[u.Rank]] = u.Held
			}
		}
	}
	err := r.index.Lookup(r.t.Context(), &lookup.Query{Model: "m", Tokens: prompt}, a)
	if err != nil && (len(workers) > 0 || lookup.KindOf(err) != lookup.ErrNotFound) {
		return err.Error()
	}
	pool := r.reg.Pool("m")
	for i := range a.Matches {
		m := &a.Matches[i]
		h := pool.Holder(m.Instance, m.Rank)
		if h == nil {
			return fmt.Sprintf("%s rank %d is no holder", m.Instance, m.Rank)
		}
		if int(m.Device) != want[h] || m.Degraded {
			return fmt.Sprintf("%s rank %d holds %d of %d blocks, want %d; degraded %v", m.Instance, m.Rank, m.Device, len(prompt)/16, want[h], m.Degraded)
		}
		delete(want, h)
	}
	if len(want) > 0 {
		return fmt.Sprintf("%d holders are missing: %v", len(want), r.index.Unready())
	}
	return ""
}

// host is an index host elsewhere.
type host struct {
	*indexsrv.Host
	path string
	stop func()
}

// startHost starts an index host that serves gRPC and shared memory; target names one
// that was there before.
func startHost(t *testing.T, old *host) *host {
	t.Helper()
	cfg := indexsrv.DefaultConfig()
	cfg.Listen, cfg.KVIndex, cfg.GRPCListen = "127.0.0.1:0", "chain", "127.0.0.1:0"
	h := &host{path: filepath.Join(t.TempDir(), "s")}
	if old != nil {
		h.path = old.path
		cfg.GRPCListen = old.GRPCAddr().String()
	}
	cfg.Shm.Listen, cfg.DrainTimeout = h.path, time.Second
	var err error
	if h.Host, err = indexsrv.New(cfg, quiet); err != nil {
		t.Fatal(err)
	}
	if err := h.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx) }()
	h.stop = func() { stop(); served <- <-served }
	t.Cleanup(h.stop)
	until(t, "the host serves", func() (bool, string) {
		resp, err := http.Get("http://" + h.Addr().String() + "/health")
		if err != nil {
			return false, err.Error()
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.Body.Close() == nil && resp.StatusCode == 200, resp.Status
	})
	return h
}

// follow registers w at h as s says.
func (h *host) follow(t *testing.T, s fleet.Spec) {
	t.Helper()
	r := indexsrv.Registration{
		Instance: indexsrv.ParseID(s.Instance), Model: "m", BlockSize: 16, Ranks: 2,
		Endpoint: s.Events.Endpoint, ReplayEndpoint: s.Events.Replay,
	}
	if s.Events.Relay != "" {
		r.Endpoint, r.ReplayEndpoint, r.Source = s.Events.Relay, "", "relay"
	}
	if err := h.Register(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

// targets are the ways to h.
func (h *host) targets() map[string]string {
	return map[string]string{"shared memory": "unix:" + h.path, "gRPC": h.GRPCAddr().String()}
}
