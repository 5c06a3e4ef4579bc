// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/shard"
)

func registration(id uint64, endpoint string) Registration {
	return Registration{Instance: NumberID(id), Endpoint: endpoint, Model: "m", BlockSize: 4}
}

// TestFence: while an old stream is being cleaned up, lookups no longer name it,
// who comes under its name or its bound port waits, and others do not.
func TestFence(t *testing.T) {
	h := startTestHost(t, nil)
	old := registration(1, "tcp://*:31000")
	if err := h.Register(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	r := h.rank("m", "", "1", 0)
	h.put(r, kv.TierDevice, "", "", 1, tokens(1, 8), nil)
	hold := make(chan struct{})
	h.src.mu.Lock()
	h.src.closing = hold
	h.src.mu.Unlock()

	gone := make(chan error, 1)
	go func() { gone <- h.Unregister(context.Background(), old, false) }()
	waitFor(t, "the rank is on its way out", func() bool {
		h.reg.mu.Lock()
		defer h.reg.mu.Unlock()
		return len(h.reg.leaving) == 1
	})
	h.error("POST", "/query", query(t, tokens(1, 8), ""), 404)

	again := make(chan error, 2)
	go func() { again <- h.Register(context.Background(), old) }()
	other := registration(2, "tcp://0.0.0.0:31000") // the same port, another spelling
	other.Model = "other"
	go func() { again <- h.Register(context.Background(), other) }()
	if err := h.Register(t.Context(), registration(3, "tcp://h:1")); err != nil {
		t.Errorf("an unrelated worker was kept out: %v", err)
	}
	select {
	case err := <-gone:
		t.Errorf("/unregister answered before the cleanup: %v", err)
	case err := <-again:
		t.Errorf("/register got in before the cleanup: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(hold)
	if err := <-gone; err != nil {
		t.Errorf("unregister: %v", err)
	}
	// One of the two gets the port, the other is told who has it.
	first, second := <-again, <-again
	if (first == nil) == (second == nil) || !errors.Is(errors.Join(first, second), ErrConflict) {
		t.Errorf("for one port: got %v and %v, want one success and one conflict", first, second)
	}
	if _, err := h.idx.HolderStats(r.holder); err == nil {
		t.Error("the old holder is still there")
	}
}

// TestFenceBounded: a cleanup that does not end holds nobody for ever.
func TestFenceBounded(t *testing.T) {
	h := startTestHost(t, func(c *Config) { c.CleanupTimeout = 100 * time.Millisecond; c.DrainTimeout = 100 * time.Millisecond })
	if err := h.Register(t.Context(), registration(1, "tcp://h:1")); err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	h.src.mu.Lock()
	h.src.closing = hold
	h.src.mu.Unlock()
	begun := time.Now()
	h.error("POST", "/unregister", `{"instance_id":1,"model_name":"m"}`, 503)
	h.error("POST", "/register", reg("1", "m", ""), 503)
	h.error("POST", "/unregister", `{"instance_id":1,"model_name":"m"}`, 404)
	if err := h.stop(); err != nil {
		t.Errorf("drain: %v", err) // cut short is no failure
	}
	if err := h.Close(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("close: got %v, want to be told of the cleanup that still runs", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it all took %s, the bounds are 100ms each", took)
	}
	if err := h.Register(t.Context(), registration(2, "tcp://h:2")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("registered while stopping: %v", err)
	}
	close(hold)
	waitFor(t, "the cleanup ends", func() bool {
		h.reg.mu.Lock()
		defer h.reg.mu.Unlock()
		return len(h.reg.leaving) == 0
	})
}

// TestRegisterAllOrNothing: a rank that cannot start takes its siblings along.
func TestRegisterAllOrNothing(t *testing.T) {
	h := startTestHost(t, nil)
	r := registration(1, "tcp://h:100")
	r.Ranks = 3
	h.src.refuse = errors.New("no such protocol")
	if err := h.Register(t.Context(), r); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "endpoint: no such protocol") {
		t.Errorf("got %v, want a refusal for good", err)
	}
	h.src.refuse = fmt.Errorf("%w: too many open files", feed.ErrNoSockets)
	if err := h.Register(t.Context(), r); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "too many open files") {
		t.Errorf("got %v, want a refusal for now", err)
	}
	h.src.refuse = nil
	if got := h.idx.Stats().Holders; got != 0 {
		t.Errorf("%d holders are left of a refused registration", got)
	}
	if err := h.Register(t.Context(), r); err != nil {
		t.Error(err)
	}
	if err := h.Register(t.Context(), r); !errors.Is(err, ErrConflict) {
		t.Errorf("twice: got %v, want a conflict", err)
	}
	r.Rank, r.Ranks = 1, 1
	if err := h.Register(t.Context(), r); !errors.Is(err, ErrConflict) {
		t.Errorf("one rank twice: got %v, want a conflict", err)
	}
}

// TestHolderTable holds the table against a map.
func TestHolderTable(t *testing.T) {
	var table holderTable
	want := map[shard.Holder]*rank{}
	rng := rand.New(rand.NewPCG(1, 2))
	next := shard.Holder(0)
	for range 20_000 {
		if len(want) < 10 || rng.IntN(2) == 0 && len(want) < 2_000 {
			next += shard.Holder(1 + rng.IntN(3)*rng.IntN(200))
			want[next] = &rank{holder: next, worker: &worker{order: uint64(next)}}
			table.set(next, want[next])
			continue
		}
		for h := range want {
			delete(want, h)
			table.set(h, nil)
			break
		}
	}
	reader := table.reader()
	for h := range next + 1_000 {
		if got := table.get(h); got != want[h] {
			t.Fatalf("holder %d: got %v, want %v", h, got, want[h])
		}
		key, name := reader.key(h), reader.name(h)
		if x := want[h]; (key != 0) != (x != nil) || x != nil && (key != x.place() || name != nameHash(x.worker.id.text)) {
			t.Fatalf("holder %d: key %d, name %d", h, key, name)
		}
	}
	pages := 0
	for _, p := range *table.pages.Load() {
		if p != nil {
			pages++
		}
	}
	if pages > len(want) {
		t.Errorf("%d pages for %d ranks: empty pages are kept", pages, len(want))
	}
	table.set(next+100_000, nil) // never set: nothing happens
	if got := table.get(1 << 31); got != nil {
		t.Errorf("got %v past the end", got)
	}
}

// TestChurn: parallel clients ask while workers come and go. A worker that stays
// is always answered exactly; one that comes and goes by no more than it holds;
// an answer never names who was gone before it was asked.
func TestChurn(t *testing.T) {
	for _, kind := range shard.Kinds {
		t.Run(kind, func(t *testing.T) { churn(t, kind) })
	}
}

func churn(t *testing.T, kind string) {
	t.Helper()
	h := startTestHost(t, func(c *Config) { c.KVIndex = kind })
	h.register(reg("1", "m", ""))
	h.put(h.rank("m", "", "1", 0), kv.TierDevice, "", "", 1, tokens(1, 64), nil)
	const stays = `"1":{"longest_matched":64,"gpu":64,"cpu":64,"disk":64,"dp":{"0":64}}`
	const comers = 4
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	var asked, seen, came atomic.Int64
	for c := range comers {
		wg.Go(func() {
			id := fmt.Sprint(100 + c)
			for ctx.Err() == nil {
				if code, body := h.do("POST", "/register", strings.Replace(reg(id, "m", `,"dp_size":2`), "21001", fmt.Sprint(22000+10*c), 1)); code != 201 {
					t.Errorf("register %s: %d %s", id, code, body)
					return
				}
				for rank := range 2 {
					r := h.rank("m", "", id, rank)
					setState(r, feed.StateActive)
					h.put(r, kv.TierDevice, "", "", 1, tokens(1, 32), nil)
				}
				came.Add(1)
				if code, body := h.do("POST", "/unregister", `{"instance_id":`+id+`,"model_name":"m"}`); code != 200 {
					t.Errorf("unregister %s: %d %s", id, code, body)
					return
				}
				if _, body := h.do("POST", "/query", query(t, tokens(1, 64), `,"instances":[`+id+`]`)); body != nobody {
					t.Errorf("%s is named after /unregister answered: %s", id, body)
					return
				}
			}
		})
	}
	body := query(t, tokens(1, 64), "")
	for range 16 {
		wg.Go(func() {
			client := http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				resp, err := client.Post(h.url+"/query", "application/json", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				var reply struct {
					Instances map[string]json.RawMessage `json:"instances"`
					Scores    map[string]map[string]int  `json:"scores"`
				}
				err = json.NewDecoder(resp.Body).Decode(&reply)
				_ = resp.Body.Close()
				if err != nil || resp.StatusCode != 200 {
					t.Errorf("got %d, %v", resp.StatusCode, err)
					return
				}
				asked.Add(1)
				if got := `"1":` + string(reply.Instances["1"]); got != stays {
					t.Errorf("who stays: got %s, want %s", got, stays)
					return
				}
				for id, byRank := range reply.Scores {
					for rank, n := range byRank {
						if id != "1" && (n < 4 || n > 32 || n%4 != 0) {
							t.Errorf("instance %s rank %s: got %d, want 1 to 8 blocks of 4", id, rank, n)
							return
						}
						if id != "1" {
							seen.Add(1)
						}
					}
				}
			}
		})
	}
	wg.Wait()
	if asked.Load() < 100 || came.Load() < 20 || seen.Load() == 0 {
		t.Errorf("only %d queries, %d registrations, %d answers that name one: the test shows nothing", asked.Load(), came.Load(), seen.Load())
	}
	if got := h.idx.Stats(); got.Holders != 1 || got.Memberships != 16 {
		t.Errorf("at the end: %d holders, %d memberships, want 1 and 16", got.Holders, got.Memberships)
	}
}

// TestManyStreams registers as many ranks as the index takes.
func TestManyStreams(t *testing.T) {
	h := startTestHost(t, nil)
	n := 0
	for id := uint64(0); n+1_000 <= shard.MaxHolders; id++ {
		r := registration(id, "tcp://h:1000")
		r.Ranks = 1_000
		if err := h.Register(t.Context(), r); err != nil {
			t.Fatalf("after %d ranks: %v", n, err)
		}
		n += 1_000
	}
	r := registration(999, "tcp://h:1000")
	r.Ranks = 1_000
	if err := h.Register(t.Context(), r); !errors.Is(err, ErrUnavailable) {
		t.Errorf("past the bound: got %v, want a refusal", err)
	}
	if n < 10_000 {
		t.Errorf("%d streams fit, want 10,000", n)
	}
}
