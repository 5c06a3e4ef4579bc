// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kindex/gateway/fleet"
	mock "kindex/harness/mockworker/engine"
)

// standing is a gateway that serves.
func standing(t *testing.T, change func(*Config)) *Gateway {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	change(&cfg)
	g, err := New(&cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx) }()
	t.Cleanup(func() {
		end()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return g
}

// caller is a client of one streamed request.
type caller struct {
	conn net.Conn
	in   *bufio.Reader
}

func call(t *testing.T, g *Gateway, i int) *caller {
	t.Helper()
	conn, err := net.Dial("tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"model":"m","prompt":[%d,7,8,9],"max_tokens":2000,"stream":true}`, 100+i)
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	return &caller{conn, bufio.NewReader(conn)}
}

// events reads n events.
func (c *caller) events(t *testing.T, n int) {
	t.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	for seen := 0; seen < n; {
		line, err := c.in.ReadString('\n')
		if err != nil {
			t.Errorf("the stream ended: %v", err)
			return
		}
		if strings.HasPrefix(line, "HTTP/1.1 ") && !strings.HasPrefix(line, "HTTP/1.1 200") {
			rest, _ := io.ReadAll(io.LimitReader(c.in, 500))
			t.Errorf("refused: %s%s", line, rest)
			return
		}
		if strings.HasPrefix(line, "data: ") {
			seen++
		}
	}
}

// Clients hang up after the fifth token and before the first, while a worker is removed
// and added again under its URL.
func TestHangUpsLeaveNothingBehind(t *testing.T) {
	const late, early = 32, 16
	var aborted atomic.Int64
	engines, err := mock.OpenFleet(mock.Config{
		Engine: mock.VLLM, Model: "m", HTTP: "127.0.0.1:0", Pub: "tcp://127.0.0.1:0", PassTime: 5 * time.Millisecond,
		Ended: func(s mock.Stats) {
			if s.Finish == "abort" {
				aborted.Add(1)
			}
		},
	}, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer engines.Close()
	g := standing(t, func(c *Config) {
		for _, w := range engines.Workers() {
			c.Workers = append(c.Workers, fleet.Spec{URL: "http://" + w.HTTP()})
		}
		c.KVIndex = noIndex
	})
	var mu sync.Mutex
	var ever []*fleet.Worker
	g.fleet.OnJoin(func(w *fleet.Worker) { mu.Lock(); ever = append(ever, w); mu.Unlock() })
	known := func() []*fleet.Worker { mu.Lock(); defer mu.Unlock(); return slices.Clone(ever) }
	inFlight := func() (n int64) {
		for _, w := range known() {
			n += w.InFlight()
		}
		return n
	}
	waitFor(t, "ready workers", func() bool {
		return len(g.fleet.Workers()) == 3 && !slices.ContainsFunc(g.fleet.Workers(), func(w *fleet.Worker) bool { return w.State() != fleet.Ready })
	})
	stop := make(chan struct{})
	var looks sync.WaitGroup
	looks.Go(func() {
		for {
			for _, w := range known() {
				for _, h := range w.Holders {
					if p := h.Progress(); h.InFlight() < 0 || h.PrefillInFlight() < 0 || p.Streams < 0 || p.Unmoved < 0 {
						t.Errorf("below 0: %d, %d, %+v", h.InFlight(), h.PrefillInFlight(), p)
						return
					}
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})

	var all []*caller
	for i := range late {
		all = append(all, call(t, g, i))
	}
	for _, c := range all {
		c.events(t, 5)
	}
	for _, w := range engines.Workers() {
		w.Engine.Pause(true)
	}
	for i := range early {
		all = append(all, call(t, g, late+i))
	}
	waitFor(t, "all requests", func() bool { return inFlight() == late+early })
	first := g.fleet.Workers()[0]
	g.workers.must(t, 202, "DELETE", "/workers/"+first.ID, "")
	g.workers.must(t, 202, "POST", "/workers", fmt.Sprintf(`{"url":%q}`, first.Spec.URL))
	waitFor(t, "the worker again", func() bool { r := g.fleet.Get(first.Spec.URL); return r != nil && r.Worker() != nil })
	if again := g.fleet.Get(first.Spec.URL).Worker(); first.InFlight() == 0 || again.InFlight() != 0 {
		t.Errorf("in flight at the removed one %d, at the one in its place %d: want some, and 0", first.InFlight(), again.InFlight())
	}
	for _, c := range all {
		_ = c.conn.Close()
	}
	waitFor(t, "the end of all leases", func() bool { return inFlight() == 0 })
	for _, w := range engines.Workers() {
		w.Engine.Pause(false)
	}
	waitFor(t, "all aborts", func() bool { return aborted.Load() == late+early })
	close(stop)
	looks.Wait()
	for _, w := range known() {
		for _, h := range w.Holders {
			if p := h.Progress(); h.InFlight() != 0 || h.PrefillInFlight() != 0 || p.Streams != 0 || p.Unmoved != 0 {
				t.Errorf("left behind at %s: %d, %d, %+v", w.ID, h.InFlight(), h.PrefillInFlight(), p)
			}
		}
	}
}
