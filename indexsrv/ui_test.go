// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"kindex/internal/kv"
)

// uiNow returns what the page would show now.
func (h *testHost) uiNow() uiData {
	h.t.Helper()
	h.ui.mu.Lock()
	h.ui.made = time.Time{}
	h.ui.mu.Unlock()
	var d uiData
	if err := json.Unmarshal([]byte(h.must(200, "GET", "/ui/data", "")), &d); err != nil {
		h.t.Fatal(err)
	}
	return d
}

// TestUIData: what the page shows of workers, lookups, memory and prefixes is what
// was told and asked.
func TestUIData(t *testing.T) {
	h := startTestHost(t, func(c *Config) { c.KVIndex = "chain" })
	if d := h.uiNow(); len(d.Workers) != 0 || d.Lookups.Count != 0 || len(d.Prefixes) != 0 || len(d.Memory) == 0 {
		t.Errorf("of an empty host: %+v", d)
	}
	h.register(reg("1", "m", ""))
	h.register(reg(`"two"`, "m", ""))
	block := h.Instances("m", "")[0].BlockSize
	long, short := tokens(1, 20*block), tokens(1, 20*block)[:4*block]
	h.put(h.rank("m", "", "1", 0), kv.TierDevice, "", "", 1, long, nil)
	h.put(h.rank("m", "", "two", 0), kv.TierDevice, "", "", 1, short, nil)
	const lookups = 3 * histogramStripes * sampleEvery
	for range lookups {
		h.must(200, "POST", "/query", query(t, long, ""))
	}
	other := tokens(7_000, 2*block)
	for range lookups / 4 {
		h.must(200, "POST", "/query", query(t, other, ""))
	}
	d := h.uiNow()
	if d.Lookups.Count != lookups+lookups/4 {
		t.Errorf("%d lookups, want %d", d.Lookups.Count, lookups+lookups/4)
	}
	if s := d.Lookups.Sampled; s < lookups/sampleEvery/2 || s > 2*lookups/sampleEvery+histogramStripes {
		t.Errorf("%d of %d lookups sampled, one in %d is", s, d.Lookups.Count, sampleEvery)
	}
	if len(d.Workers) != 2 || string(d.Workers[0].Instance) != "1" || string(d.Workers[1].Instance) != `"two"` {
		t.Fatalf("workers %+v", d.Workers)
	}
	for i, want := range []uint64{20, 4} {
		w := d.Workers[i]
		if w.Hits == 0 || w.HitBlocks != want*w.Hits || w.Hits != d.Lookups.Found || w.Hits >= d.Lookups.Sampled {
			t.Errorf("worker %s: %d hits of %d blocks, %d of %d sampled lookups found any", w.Instance, w.Hits, w.HitBlocks, d.Lookups.Found, d.Lookups.Sampled)
		}
	}
	if d.Lookups.Deepest != 20*d.Lookups.Found {
		t.Errorf("the deepest hold %d blocks of %d lookups, want 20 of each", d.Lookups.Deepest, d.Lookups.Found)
	}
	if len(d.Prefixes) != 2 {
		t.Fatalf("prefixes %+v, want two", d.Prefixes)
	}
	first, second := d.Prefixes[0], d.Prefixes[1]
	if first.Blocks != prefixBlocks || first.Holders != 1 || first.Lookups != first.Least || first.Lookups <= second.Lookups || first.Model != "m" {
		t.Errorf("the first prefix is %+v", first)
	}
	if second.Blocks != 2 || second.Holders != 0 || first.Lookups+second.Lookups != d.Lookups.Sampled {
		t.Errorf("the second prefix is %+v of %d sampled", second, d.Lookups.Sampled)
	}
	var held uint64
	for _, s := range d.Memory {
		held += s.Memberships
		if s.Bytes["runs"] == 0 && s.Memberships > 0 || s.Bound == 0 || s.Used > s.Bound {
			t.Errorf("memory %+v", s)
		}
	}
	if held != 24 {
		t.Errorf("%d memberships, want 24", held)
	}
}

// TestTrafficBounded: more prefixes than the table takes leave those asked for
// often in it, with bounds that are true.
func TestTrafficBounded(t *testing.T) {
	var tr traffic
	m := &model{name: makeModelName("", "m", ""), key: 3}
	often := uint64(0)
	for i := range uint64(40 * maxPrefixes) {
		tr.note(m, kv.HashSeed, []kv.ContentHash{kv.ContentHash(i)}, nil, true)
		if i%20 == 0 {
			tr.note(m, kv.HashSeed, []kv.ContentHash{1 << 60}, nil, true)
			often++
		}
	}
	for i, p := range tr.rare {
		if p.at != i || tr.prefixes[p.key] != p || i > 0 && tr.rare[(i-1)/2].count > p.count {
			t.Fatalf("place %d holds %+v below %+v", i, p, tr.rare[max(i-1, 0)/2])
		}
	}
	if n := len(tr.prefixes); n != maxPrefixes {
		t.Errorf("%d prefixes kept, want %d", n, maxPrefixes)
	}
	top := tr.top(1)[0]
	if top.chain[0] != 1<<60 || top.count < often || top.count-top.excess > often {
		t.Errorf("first is %x, asked for %d to %d times, truly %d", top.chain, top.count-top.excess, top.count, often)
	}
}

// TestUIPage: the page and its files come whole, ask nobody else, and nothing else
// is below.
func TestUIPage(t *testing.T) {
	h := startTestHost(t, nil)
	for path, f := range uiTypes {
		resp, err := http.Get("http://" + h.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != f.content || !strings.Contains(resp.Header.Get("Content-Security-Policy"), "default-src 'self'") {
			t.Errorf("%s: %d %v", path, resp.StatusCode, resp.Header)
		}
		text := h.must(200, "GET", path, "")
		for _, foreign := range []string{"http://", "https://", "innerHTML", "eval("} {
			if strings.Contains(text, foreign) {
				t.Errorf("%s has %q", path, foreign)
			}
		}
	}
	for _, path := range []string{"/ui/x", "/ui/../http.go", "/ui/ui/index.html", "/ui/page.js/"} {
		if code, body := h.do("GET", path, ""); code != 404 {
			t.Errorf("%s: %d %.80s", path, code, body)
		}
	}
}

// TestUIDataShared: many viewers within a moment get one answer.
func TestUIDataShared(t *testing.T) {
	h := startTestHost(t, nil)
	first := h.must(200, "GET", "/ui/data", "")
	for i := range 5 {
		if again := h.must(200, "GET", "/ui/data", ""); again != first && time.Since(h.ui.made) < uiPeriod {
			t.Errorf("answer %d differs: %s", i, fmt.Sprint(again))
		}
	}
}
