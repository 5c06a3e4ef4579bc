// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// recordJSON is a record as its readers decode it.
type recordJSON struct {
	Policy     string `json:"policy"`
	Branch     string `json:"branch"`
	Prompt     int64  `json:"prompt_tokens"`
	Matches    int    `json:"matches"`
	Sampled    bool   `json:"sampled"`
	Candidates []struct {
		Worker   string   `json:"worker"`
		Rank     int      `json:"rank"`
		Expected *float64 `json:"expected_s"`
		Ahead    float64  `json:"ahead_s"`
		Pressure float64  `json:"pressure_s"`
		Own      float64  `json:"own_s"`
		Cost     float64  `json:"cost"`
		Cached   int64    `json:"cached_tokens"`
		Load     float64  `json:"load"`
	} `json:"candidates"`
}

func decode(t testing.TB, r *Record) recordJSON {
	t.Helper()
	b := r.AppendJSON([]byte("X"))[1:]
	if len(b) > MaxRecord {
		t.Fatalf("%d bytes, more than %d: %s", len(b), MaxRecord, b)
	}
	for _, c := range b {
		if c < ' ' || c > '~' {
			t.Fatalf("byte %#x in a record: it cannot be a header", c)
		}
	}
	var got recordJSON
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return got
}

func TestRecordsSayHowItCameAbout(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, name := range Names() {
		p := seeded(t, name, nil)
		for i := range 300 {
			q := scene(r, 1+r.IntN(80))
			q.Pool.Version = uint64(i + 1)
			d := Decision{Record: &Record{}}
			if err := p.Decide(q, &d); err != nil {
				continue
			}
			got := decode(t, d.Record)
			if got.Policy != name || got.Branch != d.Branch.String() || got.Prompt != q.Prompt || got.Matches != len(q.Matches) || len(got.Candidates) == 0 {
				t.Fatalf("%s: %+v of %v", name, got, d)
			}
			c := got.Candidates[0]
			if c.Worker != d.Holder.Worker.ID || c.Rank != d.Holder.Rank || c.Cached != d.Cached {
				t.Fatalf("%s: the first candidate is %+v, the decision %s rank %d, cached %d", name, c, d.Holder.Worker.ID, d.Holder.Rank, d.Cached)
			}
			for _, c := range got.Candidates {
				if sum := c.Cost * (c.Ahead + c.Pressure + c.Own); math.Abs(sum-*c.Expected) > 1e-4*sum {
					t.Fatalf("%s: the parts make %g, expected is %g", name, sum, *c.Expected)
				}
			}
		}
	}
}

func TestARecordMayBeUsedAgain(t *testing.T) {
	p := seeded(t, CacheAware, nil)
	d := Decision{Record: &Record{}}
	for _, n := range []int{8, 1} {
		if err := p.Decide(ask(newPool(n, 1)), &d); err != nil {
			t.Fatal(err)
		}
	}
	if d.Record.Shown != 1 || d.Record.Pool != 1 {
		t.Errorf("the record of a pool of 1 after one of 8 has %d candidates of %d", d.Record.Shown, d.Record.Pool)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add("w1", "cache_aware", 1.5, int64(4096), uint32(9), uint8(4))
	f.Add(strings.Repeat("\x00\"\\é", 400), strings.Repeat("ü", 300), math.Inf(1), int64(math.MinInt64), uint32(math.MaxUint32), uint8(255))
	f.Add(strings.Repeat("w", 5000), strings.Repeat("p", 5000), -2.2250738585072014e-308, int64(math.MinInt64), uint32(math.MaxUint32), uint8(12))
	f.Fuzz(func(t *testing.T, worker, name string, x float64, n int64, u uint32, k uint8) {
		on := k&8 != 0
		c := Candidate{
			Worker: worker, Rank: int(n), Cached: n, Blocks: u, Device: u, Predicted: on, Degraded: on, Gated: on, Warm: on, Unmatched: on, Vetoes: u,
			InFlight: x, Since: x, Reported: x, Queued: x, Pending: x, Load: x, KV: x, Rate: x, Age: x, Trust: x,
			Cost: x, Ahead: x, Pressure: x, Own: x, Expected: x,
		}
		r := Record{
			Policy: name, Branch: Branch(k % uint8(Branches)), Tried: on, Prompt: n, BlockSize: int(n), Blocks: int(n), Matches: int(n), Pool: int(n), Read: int(n),
			Sampled: on, Share: x, Mean: x, Limit: x, Gated: int(n), Shown: int(k) % (maxShown + 1), Best: [maxShown]Candidate{c, c, c, c},
		}
		got := decode(t, &r)
		if r.Shown > 0 && len(got.Candidates) == 0 {
			t.Errorf("not even one candidate fits: %s", r.AppendJSON(nil))
		}
	})
}

func TestDecisionsAllocateNothing(t *testing.T) {
	for _, name := range Names() {
		for _, n := range []int{8, 1024} {
			pool := newPool(n, 1)
			p, err := New(name, DefaultOptions())
			if err != nil {
				t.Fatal(err)
			}
			q := ask(pool)
			q.Matches = []Match{match(pool.Holders[1], 200)}
			d := Decision{Record: &Record{}}
			buf := make([]byte, 0, MaxRecord)
			if got := testing.AllocsPerRun(100, func() {
				if err := p.Decide(q, &d); err != nil {
					t.Fatal(err)
				}
				buf = d.Record.AppendJSON(buf[:0])
			}); got != 0 {
				t.Errorf("%s of %d: %g allocations a decision", name, n, got)
			}
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, name := range Names() {
		for _, n := range []int{8, 128, 1024} {
			for _, c := range []struct {
				what    string
				matches int
			}{{"miss", 0}, {"hit-1", 1}, {"hit-all", n}} {
				if name != CacheAware && c.matches > 0 {
					continue
				}
				b.Run(name+"/"+c.what+"/"+strconv.Itoa(n), func(b *testing.B) {
					pool := newPool(n, 1)
					for i, h := range pool.Holders {
						reading(h, int64(i%5), nil)
					}
					p, err := New(name, DefaultOptions())
					if err != nil {
						b.Fatal(err)
					}
					q := ask(pool)
					for _, h := range pool.Holders[:c.matches] {
						q.Matches = append(q.Matches, match(h, 200))
					}
					var d Decision
					b.ReportAllocs()
					for b.Loop() {
						q.Key++
						if err := p.Decide(q, &d); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
