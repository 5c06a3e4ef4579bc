// SPDX-License-Identifier: Apache-2.0

//go:build linux

package indexsrv

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kindex/indexclient"
	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/numa"
	"kindex/shard"
)

// An index of a million memberships: 16 instances, 64 prompts of 1,024 blocks.
const (
	benchInstances = 16
	benchPrompts   = 64
	benchBlocks    = 1_024
	benchAsked     = 64 // blocks of a question
	shmBenchEnv    = "KINDEX_TEST_SHM_BENCH"
)

func benchChain(p, n int) (engines []kv.EngineHash, contents []kv.ContentHash) {
	for b := range n {
		x := uint64(p*benchBlocks+b+1) * 0x9E3779B97F4A7C15
		engines, contents = append(engines, kv.EngineHash(x)), append(contents, kv.ContentHash(x^x>>29))
	}
	return engines, contents
}

func benchHost(t testing.TB, change func(*Config)) (*Host, *fakeSource) {
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	change(&cfg)
	src := &fakeSource{}
	h, err := newHost(cfg, src, quiet)
	if err != nil {
		t.Fatal(err)
	}
	for i := range benchInstances {
		reg := Registration{Instance: NumberID(uint64(i)), Model: "m", BlockSize: testBlock, Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", 20_000+i)}
		if err := h.Register(t.Context(), reg); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range h.reg.workers(nil) {
		rk := (*w.ranks.Load())[0]
		for p := range benchPrompts {
			e, c := benchChain(p, benchBlocks)
			if err := h.idx.Store(rk.holder, &shard.Store{Namespace: rk.cfg.Model.Namespace(kv.HashSeed), Engines: e, Contents: c}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return h, src
}

// TestShmBenchProcess is no test: it is the server of BenchmarkShm.
func TestShmBenchProcess(t *testing.T) {
	env := os.Getenv(shmBenchEnv)
	if env == "" {
		t.Skip("a process of BenchmarkShm")
	}
	socket, wait, _ := strings.Cut(env, " ")
	h, src := benchHost(t, func(c *Config) { c.Shm.Listen, c.Shm.Wait = socket, wait })
	serveTestHost(t, h, src)
	fmt.Fprintln(os.Stderr, "ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// BenchmarkShm is one lookup of 64 blocks after the other: in process, from another
// process that sleeps as the host's threads do, and from one that spins as they do,
// each on a core of its own.
func BenchmarkShm(b *testing.B) {
	b.Run("in process", func(b *testing.B) {
		h, _ := benchHost(b, func(*Config) {})
		b.Cleanup(func() { _ = h.Close() })
		benchLookups(b, h)
	})
	for _, wait := range []string{shmWaitSleep, shmWaitSpin} {
		b.Run(wait, func(b *testing.B) {
			socket := filepath.Join(b.TempDir(), "s")
			args := []string{os.Args[0], "-test.run=^TestShmBenchProcess$", "-test.timeout=20m"}
			if wait == shmWaitSpin {
				if _, err := exec.LookPath("taskset"); err != nil {
					b.Skip("taskset is missing")
				}
				args = append([]string{"taskset", "-c", "0"}, args...)
				unpin, err := numa.LockAndPin([]int{1})
				if err != nil {
					b.Skip(err)
				}
				b.Cleanup(unpin)
			}
			p := startProcess(b, args, shmBenchEnv+"="+socket+" "+wait, "GOMAXPROCS=2")
			b.Cleanup(p.kill)
			o := indexclient.Options{Wait: true, SharedSpin: -1}
			if wait == shmWaitSpin {
				o.SharedSpin = 50 * time.Microsecond
			}
			c, err := indexclient.Dial(b.Context(), "unix:"+socket, o)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = c.Close() })
			benchLookups(b, c)
		})
	}
}

func benchLookups(b *testing.B, idx lookup.Index) {
	var queries []lookup.Query
	for p := range benchPrompts {
		_, c := benchChain(p, benchAsked)
		queries = append(queries, lookup.Query{Model: "m", Hashes: c})
	}
	var a lookup.Answer
	took := make([]time.Duration, 0, 1<<20)
	for i := 0; b.Loop(); i++ {
		begin := time.Now()
		if err := idx.Lookup(context.Background(), &queries[i%benchPrompts], &a); err != nil {
			b.Fatal(err)
		}
		if took = append(took, time.Since(begin)); len(took) == cap(took) {
			took = took[:0]
		}
		if len(a.Matches) != benchInstances || a.Matches[0].Any != benchAsked {
			b.Fatalf("got %+v", a)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
}
