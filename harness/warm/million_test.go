// SPDX-License-Identifier: Apache-2.0

package warm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kindex/harness/publish"
	"kindex/internal/longtest"
)

// TestWarmMillion restarts a host with a million memberships of eight streams, and
// says how long it takes until it is ready, from the program's start, and exact.
func TestWarmMillion(t *testing.T) {
	longtest.Skip(t)
	const memberships = 1_000_000
	p := open(t, func(o *publish.Options) {
		o.Ranks, o.PerBatch, o.Capacity, o.Rate = 8, 48, 140_000, 2_000
	})
	dir := t.TempDir()
	h := start(t, 0, "--state-dir", dir)
	h.register("e", p)
	held := func() (n int) {
		for r := range p.Ranks() {
			n += p.Copies(r)
		}
		return n
	}
	for end := time.Now().Add(5 * time.Minute); held() < memberships; {
		if time.Now().After(end) {
			t.Fatalf("%d memberships published in 5 minutes", held())
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.SetRate(200)
	h.ready()
	for range 3 {
		begun := time.Now()
		if err := h.p.Stop(); err != nil {
			t.Fatal(err)
		}
		stopped := time.Since(begun)
		files, err := filepath.Glob(filepath.Join(dir, "state-*"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		info, err := os.Stat(files[len(files)-1])
		if err != nil {
			t.Fatal(err)
		}
		published(t, p, 20)
		begun = time.Now()
		h = start(t, h.port, "--state-dir", dir)
		h.ready()
		took := time.Since(begun)
		for line := range strings.SplitSeq(h.must("GET", "/metrics", "", 200), "\n") {
			if strings.HasPrefix(line, "kindex_state_load_seconds") || strings.HasPrefix(line, "kindex_state_restored_memberships") {
				t.Log(line)
			}
		}
		h.exact("a million", p)
		h.wants("a million", func(l *listener) bool { return l.Resumed == 1 && l.Status == "active" && l.Lost == 0 })
		t.Logf("%d memberships in %d bytes: stopped in %v, ready %v after the start", held(), info.Size(), stopped, took)
	}
}
