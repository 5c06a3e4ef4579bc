// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"kindex/gateway/fleet"
	"kindex/gateway/index"
	"kindex/gateway/overlay"
	"kindex/gateway/policy"
	"kindex/gateway/route"
	"kindex/harness/mockworker/engine"
)

// rig is a gateway's gRPC side before mock engines, with an index of their events.
type rig struct {
	engines *engine.Fleet
	fleet   *fleet.Registry
	index   index.Index
	overlay *overlay.Overlay
	routers []*route.Router
	server  *Server
	conn    *grpc.ClientConn
	workers []*fleet.Worker
	spread  int // engines of a prefix; 0: no bound

	mu    sync.Mutex
	told  []Told         // guarded by mu
	ended []engine.Stats // guarded by mu
}

func (r *rig) ends() []engine.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]engine.Stats(nil), r.ended...)
}

func (r *rig) outcomes() (n map[route.OutcomeKind]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = map[route.OutcomeKind]int{}
	for _, t := range r.told {
		n[t.Outcome]++
	}
	return n
}

// newRig starts n engines of a config and a gateway before them.
func newRig(t testing.TB, c engine.Config, n int, change func(*Options)) *rig {
	t.Helper()
	return newSpreadRig(t, c, n, 0, change)
}

func newSpreadRig(t testing.TB, c engine.Config, n, spread int, change func(*Options)) *rig {
	t.Helper()
	r := &rig{fleet: fleet.NewRegistry(), spread: spread}
	c.GRPC, c.Pub, c.Model = "127.0.0.1:0", "tcp://127.0.0.1:0", "m"
	c.Ended = func(s engine.Stats) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ended = append(r.ended, s)
	}
	var err error
	if r.engines, err = engine.OpenFleet(c, n); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.engines.Close)
	log := slog.New(slog.DiscardHandler)
	if r.index, err = index.Open(context.Background(), index.Options{Kind: index.Chain}, log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.index.Close() })
	r.fleet.OnJoin(r.index.Joined)
	r.fleet.OnLeave(r.index.Left)
	oo := overlay.DefaultOptions()
	oo.Grace = 200 * time.Millisecond
	r.overlay = overlay.New(oo)
	o := Options{
		Fleet: r.fleet, Retries: 3, Log: log,
		Answered: func(told *Told) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told = append(r.told, *told)
		},
		Router: func(of route.Fleet, prompts route.Prompts) (Placer, error) {
			po := policy.DefaultOptions()
			po.Spread = r.spread
			pol, err := policy.New(policy.CacheAware, po)
			if err != nil {
				return nil, err
			}
			router := route.New(route.Options{Fleet: of, Prompts: prompts, Index: r.index, Overlay: r.overlay, Policy: pol})
			r.routers = append(r.routers, router)
			return router, nil
		},
	}
	if change != nil {
		change(&o)
	}
	if r.server, err = New(o); err != nil {
		t.Fatal(err)
	}
	r.fleet.OnLeave(r.server.Left)
	go r.routers[0].Run(t.Context())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		r.server.Stop(ctx)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	if r.conn, err = grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.conn.Close() })
	for _, w := range r.engines.Workers() {
		r.join(t, w, c.Engine, max(c.Ranks, 1))
	}
	waitFor(t, "the index to follow all workers", func() bool { return len(r.index.Unready()) == 0 })
	return r
}

func (r *rig) join(t testing.TB, w *engine.Worker, kind string, ranks int) *fleet.Worker {
	t.Helper()
	fw, err := r.fleet.Add(fleet.Spec{URL: "grpc://" + w.GRPC(), Models: []string{"m"}, Engine: kind, Ranks: ranks, BlockSize: 16, Terms: fleet.Terms{Priority: 50, Cost: 1}})
	if err != nil {
		t.Fatal(err)
	}
	fw.SetState(fleet.Ready)
	r.workers = append(r.workers, fw)
	return fw
}

func waitFor(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// idle waits until nothing is in flight anywhere.
func (r *rig) idle(t testing.TB) {
	t.Helper()
	waitFor(t, "all leases to be given back", func() bool {
		for _, w := range r.workers {
			for _, h := range w.Holders {
				if h.InFlight() != 0 || h.PrefillInFlight() != 0 {
					return false
				}
			}
		}
		return r.server.Active() == 0
	})
}

// prompt is n tokens that differ from other tails' from the one at from on.
func prompt(n, from, tail int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(100 + i)
		if i >= from {
			out[i] = uint32(1000 + 37*tail + i)
		}
	}
	return out
}

func post(t testing.TB, url string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if body, _ := io.ReadAll(a.Body); a.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s", url, a.Status, body)
	}
}
