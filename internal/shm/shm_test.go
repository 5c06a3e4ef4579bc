// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kindex/internal/kv"
)

// echo answers each request by a rule that the client can check: so many matches as
// the chain's last hash says, with numbers made of the whole request.
type echo struct {
	version atomic.Uint64
	batches atomic.Uint64
	most    atomic.Int64
}

// truth is what one shard says to a request.
func truth(shard int, model, seed uint64, hashes []kv.ContentHash, holders []uint32, limit int) []kv.Match {
	n := 0
	if len(hashes) > 0 {
		n = int(hashes[len(hashes)-1] % 3000)
	}
	if limit > 0 {
		n = min(n, limit)
	}
	sum := model*31 + seed
	for _, h := range hashes {
		sum = sum*0x9E3779B97F4A7C15 + uint64(h)
	}
	for _, h := range holders {
		sum = sum*0x9E3779B97F4A7C15 + uint64(h)
	}
	ms := make([]kv.Match, n)
	for i := range ms {
		ms[i] = kv.Match{Holder: uint32(i*7 + shard), Device: uint32(sum), Host: uint32(sum >> 32), Any: uint32(i)}
	}
	return ms
}

func (e *echo) Answer(shard int, batch []Request) {
	e.batches.Add(1)
	if n := int64(len(batch)); n > e.most.Load() {
		e.most.Store(n)
	}
	for i := range batch {
		r := &batch[i]
		r.Matches = append(r.Matches, truth(shard, r.Model, r.Seed, r.Hashes, r.Holders, r.Limit)...)
		r.Version = e.version.Load()
	}
}

// fixed is a table that never changes.
type fixed struct{ t Table }

func (f *fixed) Table() (*Table, <-chan struct{}) { return &f.t, nil }

// testServer is a server in this process.
type testServer struct {
	*Server
	echo *echo
	path string
	end  func()

	mu     sync.Mutex
	events []Event
}

func startServer(t testing.TB, change func(*ServerOptions)) *testServer {
	t.Helper()
	ts := &testServer{echo: &echo{}, path: filepath.Join(t.TempDir(), "s")}
	o := ServerOptions{
		Path: ts.path, Layout: Layout{Shards: 2, Requests: 64 << 10, Replies: 64 << 10}, MaxClients: 8,
		Allow: func(Cred) bool { return true }, Handler: ts.echo,
		Tables: &fixed{Table{Version: 1}},
		Event: func(e Event) {
			ts.mu.Lock()
			defer ts.mu.Unlock()
			ts.events = append(ts.events, e)
		},
	}
	if change != nil {
		change(&o)
	}
	s, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ts.Server = s
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	var once sync.Once
	ts.end = func() {
		once.Do(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			if err := s.Drain(ctx); err != nil {
				t.Error(err)
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(ts.end)
	return ts
}

func dial(t testing.TB, path string, o ClientOptions) *Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := Dial(ctx, path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func in(d time.Duration) uint64 { return Now() + uint64(d) }

// try makes a random request and checks its answer.
func try(c *Client, call *Call, r *rand.Rand, shards int) error {
	call.Model, call.Seed = r.Uint64(), r.Uint64()
	call.Hashes, call.Holders, call.Filtered = call.Hashes[:0], call.Holders[:0], false
	n := r.IntN(100)
	if r.IntN(20) == 0 {
		n = r.IntN(20_000) // several records
	}
	for range n {
		call.Hashes = append(call.Hashes, kv.ContentHash(r.Uint64()))
	}
	if r.IntN(4) == 0 {
		call.Filtered = true
		for range r.IntN(300) {
			call.Holders = append(call.Holders, r.Uint32())
		}
	}
	if call.Limit = 0; r.IntN(2) == 0 {
		call.Limit = 1 + r.IntN(50)
	}
	if err := c.Do(context.Background(), in(20*time.Second), call); err != nil {
		return err
	}
	return check(call, shards)
}

// check holds call's answer against the truth.
func check(call *Call, shards int) error {
	for s := range shards {
		want := truth(s, call.Model, call.Seed, call.Hashes, call.Holders, call.Limit)
		got := 0
		for _, m := range call.Matches {
			if len(want) > 0 && int(m.Holder)%7 == s {
				if got >= len(want) || m != want[got] {
					return fmt.Errorf("shard %d: match %d is %+v", s, got, m)
				}
				got++
			}
		}
		if got != len(want) {
			return fmt.Errorf("shard %d: %d matches, want %d", s, got, len(want))
		}
	}
	return nil
}

// TestCalls: whatever is asked, by however many at once, each gets its own answer.
func TestCalls(t *testing.T) {
	for _, spin := range []time.Duration{0, 20 * time.Microsecond} {
		t.Run(fmt.Sprintf("spin %v", spin), func(t *testing.T) {
			s := startServer(t, func(o *ServerOptions) { o.Spin = spin })
			var all sync.WaitGroup
			for k := range 3 {
				c := dial(t, s.path, ClientOptions{Spin: spin})
				for g := range 1 + 3*k {
					all.Go(func() {
						r := rand.New(rand.NewPCG(uint64(k), uint64(g)))
						call := NewCall()
						for range 300 {
							if err := try(c, call, r, 2); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
			}
			all.Wait()
			t.Logf("%d requests in %d batches, at most %d together", s.Requests.Load(), s.echo.batches.Load(), s.echo.most.Load())
		})
	}
}

// TestAllocs: a call allocates nothing, on either side.
func TestAllocs(t *testing.T) {
	s := startServer(t, nil)
	c := dial(t, s.path, ClientOptions{})
	call := NewCall()
	call.Hashes = make([]kv.ContentHash, 64)
	one := func() {
		if err := c.Do(context.Background(), in(time.Second), call); err != nil {
			t.Fatal(err)
		}
	}
	one()
	if n := testing.AllocsPerRun(200, one); n > 0.1 {
		t.Errorf("%v allocations a call, want none", n)
	}
}

// pinTo keeps the calling goroutine on one core, if there is that core.
func pinTo(cpu int) func() {
	runtime.LockOSThread()
	var before, set unix.CPUSet
	_ = unix.SchedGetaffinity(0, &before)
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set)
	return func() {
		_ = unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	}
}

// BenchmarkCall is one call of 64 hashes, answered with 16 matches, after the other:
// both sides sleep, unpinned, or both spin, each on a core of its own.
func BenchmarkCall(b *testing.B) {
	for _, spin := range []time.Duration{0, 50 * time.Microsecond} {
		b.Run(fmt.Sprintf("spin %v", spin), func(b *testing.B) {
			s := startServer(b, func(o *ServerOptions) {
				o.Spin, o.Layout.Shards = spin, 1
				if spin > 0 {
					o.Thread = func(int) func() { return pinTo(0) }
				}
			})
			if spin > 0 {
				defer pinTo(1)()
			}
			c := dial(b, s.path, ClientOptions{Spin: spin})
			call := NewCall()
			call.Hashes = make([]kv.ContentHash, 64)
			call.Hashes[63] = 16
			took := make([]time.Duration, 0, b.N)
			for b.Loop() {
				start := time.Now()
				if err := c.Do(context.Background(), in(time.Second), call); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
			b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
		})
	}
}

func TestMain(m *testing.M) { os.Exit(m.Run()) }

// askerFunc is an Asker of one function.
type askerFunc func(ctx context.Context, body []byte, say func([]byte) error) (int, error)

func (f askerFunc) Ask(ctx context.Context, body []byte, say func([]byte) error) (int, error) {
	return f(ctx, body, say)
}

// TestAskBehind: of an answer that goes on while its caller stands still no more waits
// than is kept; the caller is told, and the server that nobody listens.
func TestAskBehind(t *testing.T) {
	said, canceled := make(chan struct{}), make(chan struct{})
	s := startServer(t, func(o *ServerOptions) {
		o.Asker = askerFunc(func(ctx context.Context, _ []byte, say func([]byte) error) (int, error) {
			part := make([]byte, 4<<20)
			for range 2*maxBehind/len(part) + 4 { // what is taken at once, and what waits then
				if err := say(part); err != nil {
					t.Error(err)
				}
			}
			close(said)
			<-ctx.Done()
			close(canceled)
			return 0, ctx.Err()
		})
	})
	c := dial(t, s.path, ClientOptions{})
	err := c.Ask(t.Context(), nil, func([]byte) error { <-said; return nil })
	if !errors.Is(err, ErrBehind) {
		t.Errorf("got %v, want %v", err, ErrBehind)
	}
	<-canceled
}
