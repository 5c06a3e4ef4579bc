// SPDX-License-Identifier: Apache-2.0

package lookups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/indexclient"
	"kindex/indexsrv"
)

// asHost makes this test's program an index host.
const asHost = "KINDEX_TEST_AS_HOST"

func TestMain(m *testing.M) {
	if os.Getenv(asHost) != "" {
		signals := make(chan os.Signal, 2)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		os.Exit(indexsrv.Run(os.Args[1:], os.Stdout, os.Stderr, signals))
	}
	os.Exit(m.Run())
}

// hostProcess is an index host in a process of its own that can be killed and begun
// again at the same address.
type hostProcess struct {
	t        *testing.T
	address  string // gRPC
	args     []string
	p        *proc.Process
	blockLen int
}

func newHostProcess(t *testing.T, instance string, block int) *hostProcess {
	t.Helper()
	port, err := publish.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	h := &hostProcess{t: t, address: fmt.Sprintf("127.0.0.1:%d", port), blockLen: block}
	h.args = []string{
		"--listen", fmt.Sprintf("127.0.0.1:%d", port+1), "--grpc-listen", h.address, "--log-level", "error",
		"--worker", fmt.Sprintf("%s=tcp://127.0.0.1:9,model=m,block=%d", instance, block),
	}
	t.Cleanup(h.kill)
	h.start()
	return h
}

// start begins it and waits until it answers.
func (h *hostProcess) start() {
	h.t.Helper()
	p, err := proc.Start(os.Args[0], []string{asHost + "=1"}, h.args...)
	if err != nil {
		h.t.Fatal(err)
	}
	h.p = p
	c, err := indexclient.Dial(h.t.Context(), h.address, indexclient.Options{Wait: true, Timeout: patience, RetryDelay: 10 * time.Millisecond, RetryMax: 50 * time.Millisecond})
	if err != nil {
		h.t.Fatal(err)
	}
	defer c.Close()
	var a indexclient.Answer
	if err := c.Lookup(h.t.Context(), &indexclient.Query{Model: "m"}, &a); err != nil || a.BlockSize != h.blockLen {
		h.t.Fatalf("a host that has begun: %+v, %v", a, err)
	}
}

func (h *hostProcess) kill() {
	if h.p != nil {
		h.p.Kill()
		<-h.p.Done()
		h.p = nil
	}
}

// TestReplicasKilled: while one of two replicas lives every lookup is answered,
// through kill -9 and restart of either, by calls and by streams.
func TestReplicasKilled(t *testing.T) {
	for _, o := range []indexclient.Options{{}, {Unary: true}, {HedgeAfter: 5 * time.Millisecond}} {
		t.Run(fmt.Sprintf("unary=%v,hedge=%v", o.Unary, o.HedgeAfter), func(t *testing.T) {
			a, b := newHostProcess(t, "1", 16), newHostProcess(t, "1", 16)
			o.RetryDelay, o.RetryMax = 20*time.Millisecond, 100*time.Millisecond
			c, err := indexclient.Dial(t.Context(), a.address+"|"+b.address, o)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ctx, cancel := context.WithCancel(t.Context())
			var asked atomic.Uint64
			var callers sync.WaitGroup
			for range 4 {
				callers.Go(func() {
					var answer indexclient.Answer
					for ctx.Err() == nil {
						call, done := context.WithTimeout(context.Background(), patience)
						err := c.Lookup(call, &indexclient.Query{Model: "m", Tokens: make([]uint32, 64)}, &answer)
						done()
						if err != nil || answer.BlockSize != 16 {
							t.Errorf("a lookup while one of two lives: %+v, %v", answer, err)
							return
						}
						asked.Add(1)
					}
				})
			}
			more := func() {
				t.Helper()
				begun := asked.Load()
				until(t, "lookups go on", func() string {
					if t.Failed() || asked.Load() > begun+100 {
						return ""
					}
					return "they do not"
				})
			}
			for range 3 {
				for _, h := range []*hostProcess{a, b} {
					more()
					h.kill()
					more()
					h.start()
				}
			}
			cancel()
			callers.Wait()
			t.Logf("%d lookups answered", asked.Load())
		})
	}
}

// TestHostKilled: a lookup of a host that is gone fails at once and says which; it
// is found again.
func TestHostKilled(t *testing.T) {
	a, b := newHostProcess(t, "1", 16), newHostProcess(t, "2", 16)
	c, err := indexclient.Dial(t.Context(), a.address+","+b.address, indexclient.Options{RetryDelay: 20 * time.Millisecond, RetryMax: 100 * time.Millisecond, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	partial, err := indexclient.Dial(t.Context(), a.address+","+b.address, indexclient.Options{Partial: true, RetryDelay: 20 * time.Millisecond, RetryMax: 100 * time.Millisecond, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer partial.Close()
	q := &indexclient.Query{Model: "m", Tokens: make([]uint32, 64)}
	var answer indexclient.Answer
	if err := c.Lookup(t.Context(), q, &answer); err != nil || answer.BlockSize != 16 {
		t.Fatalf("both live: %+v, %v", answer, err)
	}
	b.kill()
	err = c.Lookup(t.Context(), q, &answer)
	host, ok := errors.AsType[*indexclient.HostError](err)
	if !ok || host.Target != b.address || !errors.Is(err, indexclient.ErrUnavailable) || strings.Contains(err.Error(), a.address) {
		t.Errorf("one part is dead: %v", err)
	}
	if err := partial.Lookup(t.Context(), q, &answer); err != nil || len(answer.Missing) != 1 || answer.Missing[0] != b.address || answer.BlockSize != 16 {
		t.Errorf("a partial answer: %+v, %v", answer, err)
	}
	b.start()
	until(t, "the host is found again", func() string {
		if err := c.Lookup(t.Context(), q, &answer); err != nil {
			return err.Error()
		}
		return ""
	})
	ws, err := c.Workers(t.Context(), indexclient.Filter{})
	if err != nil || len(ws) != 2 || ws[0].Instance != "1" || ws[1].Instance != "2" {
		t.Errorf("workers of both: %+v, %v", ws, err)
	}
}
