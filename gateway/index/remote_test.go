// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"kindex/gateway/fleet"
	"kindex/gateway/index"
	"kindex/harness/mockworker/engine"
	"kindex/internal/lookup"
)

// noEvents is a gRPC server that serves nothing.
func noEvents(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// hung takes connections and says nothing.
func hung(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
		}
	}()
	return l.Addr().String()
}

// TestRemote: a host elsewhere answers with the same, over each way; a worker that the
// gateway does not have is nobody's holder.
func TestRemote(t *testing.T) {
	f := engines(t, 3, engine.Config{HTTP: "127.0.0.1:0"})
	all := f.Workers()
	h := startHost(t, nil)
	specs := []fleet.Spec{spec(0, all[0]), spec(1, all[1]), spec(2, all[2])}
	specs[1].Events = fleet.Events{Relay: relayOf(t, all[1])}
	for _, s := range specs[:2] {
		h.follow(t, s)
	}
	ps := prompts(7, 20)
	for i, p := range ps {
		send(t, all[i%2], i/2%2, p)
	}
	for name, target := range h.targets() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, index.Options{Kind: index.Remote, Target: target, Timeout: 10 * time.Second})
			ws := []*fleet.Worker{r.add(specs[0]), r.add(specs[1])}
			r.exact("all", f, ps, ws...)
			unknown := r.add(specs[2])
			if s := r.index.Stream(unknown); s.Status != "none" {
				t.Errorf("a worker that the index has not is followed as %+v", s)
			}
			if s := r.index.Stream(ws[0]); s.Status != "active" || s.Blocks == 0 {
				t.Errorf("a worker is followed as %+v", s)
			}
			if why := r.index.Unready(); len(why) != 0 {
				t.Errorf("not ready: %q", why)
			}
			err := r.index.Lookup(t.Context(), &lookup.Query{Model: "another", Tokens: ps[0]}, new(lookup.Answer))
			if s := r.index.Stats(); lookup.KindOf(err) != lookup.ErrNotFound || s.Failed[index.NoModel] != 1 || s.Paused {
				t.Errorf("a model that nobody has: %v, %+v", err, s)
			}
		})
	}
}

// failOpen looks up until lookups are skipped, and returns how many were not.
func failOpen(t *testing.T, idx index.Index) int {
	t.Helper()
	var a lookup.Answer
	for n := range 100 {
		err := idx.Lookup(t.Context(), &lookup.Query{Model: "m", Hashes: nil, Tokens: make([]uint32, 64)}, &a)
		switch {
		case errors.Is(err, index.ErrSkipped):
			return n
		case err == nil:
			t.Fatal("a lookup was answered")
		case len(a.Matches) > 0 || a.BlockSize != 0:
			t.Fatalf("an answer beside an error: %+v", a)
		}
	}
	t.Fatal("lookups are never skipped")
	return 0
}

// TestRemoteFails: hosts that hang, are not there, or go: a few lookups fail, counted
// by their reason, and the rest are skipped at once; trials are nobody's; a host that
// comes back is asked again, with levels and loads.
func TestRemoteFails(t *testing.T) {
	closed := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	for name, tc := range map[string]struct {
		target string
		reason index.Reason
	}{
		"hung":          {hung(t), index.Deadline},
		"nobody":        {closed(), index.Unavailable},
		"nobody's shm":  {"unix:/nowhere/at/all", index.Unavailable},
		"hung replicas": {hung(t) + "|" + hung(t), index.Deadline},
		"hung both":     {hung(t) + "," + hung(t), index.Deadline},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, index.Options{Kind: index.Remote, Target: tc.target, Timeout: 20 * time.Millisecond})
			n := failOpen(t, r.index)
			s := r.index.Stats()
			failed := s.Failed[tc.reason] + s.Failed[index.Deadline] // a connection may take the whole time to be refused
			if n > 5 || failed < uint64(n) || s.Failed[index.Skipped] == 0 || !s.Paused || s.Pauses == 0 {
				t.Errorf("%d lookups before the first that was skipped: %+v", n, s)
			}
			if s.Lost > time.Duration(n)*2*time.Second {
				t.Errorf("%v were lost in %d lookups", s.Lost, n)
			}
			if len(r.index.Unready()) == 0 {
				t.Error("it is ready")
			}
			before := r.index.Stats().Failed
			until(t, "another pause", func() (bool, string) {
				err := r.index.Lookup(t.Context(), &lookup.Query{Model: "m"}, new(lookup.Answer))
				if !errors.Is(err, index.ErrSkipped) {
					t.Fatalf("a request paid for a trial: %v", err)
				}
				return r.index.Stats().Pauses >= 3, ""
			})
			after := r.index.Stats().Failed
			if after[index.Deadline] != before[index.Deadline] || after[index.Unavailable] != before[index.Unavailable] {
				t.Errorf("lookups failed in a pause: %v, then %v", before, after)
			}
		})
	}
}

// TestRemoteComesBack: a host that is killed and started again.
func TestRemoteComesBack(t *testing.T) {
	f := engines(t, 1, engine.Config{HTTP: "127.0.0.1:0"})
	w := f.Workers()[0]
	ps := prompts(9, 6)
	for i, p := range ps {
		send(t, w, i%2, p)
	}
	s := spec(0, w)
	for name := range map[string]bool{"shared memory": true, "gRPC": true} {
		t.Run(name, func(t *testing.T) {
			h := startHost(t, nil)
			h.follow(t, s)
			r := newRig(t, index.Options{Kind: index.Remote, Target: h.targets()[name], Timeout: time.Second})
			worker := r.add(s)
			r.exact("at first", f, ps, worker)
			h.stop()
			failOpen(t, r.index)
			until(t, "levels are not known", func() (bool, string) { _, known := worker.Holders[0].Held(); return !known, "" })
			again := startHost(t, h)
			again.follow(t, s)
			r.exact("again", f, ps, worker)
		})
	}
}

// TestRemoteParts: of two parts one answers: its part is used, and what is missing
// counted.
func TestRemoteParts(t *testing.T) {
	f := engines(t, 1, engine.Config{})
	w := f.Workers()[0]
	p := prompts(11, 1)[0]
	send(t, w, 1, p)
	h := startHost(t, nil)
	h.follow(t, spec(0, w))
	other := startHost(t, nil)
	r := newRig(t, index.Options{Kind: index.Remote, Target: h.GRPCAddr().String() + "," + other.GRPCAddr().String(), Timeout: 5 * time.Second})
	worker := r.add(spec(0, w))
	r.exact("both", f, [][]uint32{p}, worker)
	other.stop()
	until(t, "one is missing", func() (bool, string) {
		if why := r.differs(f, p, []*fleet.Worker{worker}); why != "" {
			t.Error(why)
		}
		return r.index.Stats().Partial[other.GRPCAddr().String()] > 0, ""
	})
}

// TestRequestsEnd: a request that ends says nothing of the index.
func TestRequestsEnd(t *testing.T) {
	r := newRig(t, index.Options{Kind: index.Remote, Target: hung(t), Timeout: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	for range 20 {
		if err := r.index.Lookup(ctx, &lookup.Query{Model: "m"}, new(lookup.Answer)); err == nil || errors.Is(err, index.ErrSkipped) {
			t.Fatalf("a request that ended: %v", err)
		}
	}
	if s := r.index.Stats(); s.Paused || s.Failed != (index.Stats{}).Failed {
		t.Errorf("it was counted: %+v", s)
	}
}
