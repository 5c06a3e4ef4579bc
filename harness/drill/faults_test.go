// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"kindex/harness/mockworker/engine"
	"kindex/harness/publish"
	"kindex/harness/trial"
	"kindex/internal/kv"
	"kindex/internal/longtest"
)

// TestOverclaims plants every way in which an index can claim what is not.
func TestOverclaims(t *testing.T) {
	truth := &fakeTruth{life: 1, newest: 9}
	active, degraded := map[int]listener{0: {Status: "active"}}, map[int]listener{0: {Status: "degraded"}}
	one := func(o observation) map[int]observation { return map[int]observation{0: o} }
	for _, test := range []struct {
		name          string
		before, after map[int]listener
		seen          observation
		lives         map[int]int
		want          string
	}{
		{"right", active, active, at("active", 7, 107), nil, ""},
		{"another content", active, active, at("active", 7, 108), nil, "rank 0 is active and does not hold the truth of batch 7"},
		{"a batch that was never published", active, active, at("active", 10, 110), nil, "rank 0 is active and does not hold the truth of batch 10"},
		{"another content, and it says so", degraded, degraded, at("degraded", 7, 108), nil, ""},
		{"it says so only before", degraded, active, at("active", 7, 108), nil, ""},
		{"it says so only behind", active, degraded, at("active", 7, 108), nil, ""},
		{"blocks of no batch", active, active, observation{status: "active", sum: 5}, nil, "rank 0 is active, holds blocks, and no batch that they are of"},
		{"nothing of no batch", active, active, observation{status: "active"}, nil, ""},
		{"a life that it has left", active, active, at("active", 7, 107), map[int]int{0: 2}, "rank 0 is active and does not hold the truth of batch 7"},
	} {
		t.Run(test.name, func(t *testing.T) {
			lives := test.lives
			if lives == nil {
				lives = map[int]int{}
			}
			if got := overclaims(test.before, one(test.seen), test.after, truth, lives); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			if test.want == "" && test.name == "right" && lives[0] != 1 {
				t.Errorf("the rank's life is noted as %d, want 1", lives[0])
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	ended := func(w *watch) *watch { w.cancel = func() {}; return w }
	for _, test := range []struct {
		name string
		w    *watch
		want string
	}{
		{"well", ended(&watch{seen: 3, lookups: []time.Duration{1, 2}}), ""},
		{"blind", ended(&watch{}), "never seen"},
		{"wrong", ended(&watch{seen: 3, wrongs: 9, wrong: []string{"that"}}), "9 moments that must not be: [that]"},
		{"slow", ended(&watch{seen: 3, slow: 1, lookups: []time.Duration{2 * time.Second, 1}}), "1 lookups took longer than the rule allows (1s), the slowest 2s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.w.verdict()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func TestUnmoved(t *testing.T) {
	if err := unmoved("x", listener{Gaps: 2, Recovered: 1}, listener{Gaps: 2, Recovered: 5}); err != nil {
		t.Error(err)
	}
	for _, after := range []listener{{Gaps: 1}, {Restarts: 1}, {Lost: 1}} {
		if unmoved("x", listener{}, after) == nil {
			t.Errorf("%+v is no fault", after)
		}
	}
}

func TestClaimsNothing(t *testing.T) {
	one := func(o observation) map[int]observation { return map[int]observation{0: o} }
	for _, test := range []struct {
		name string
		ob   *fakeIndex
		want string
	}{
		{"empty", &fakeIndex{answers: []map[int]observation{one(observation{status: "active"})}}, ""},
		{"degraded", &fakeIndex{answers: []map[int]observation{one(at("degraded", 7, 107))}}, ""},
		{"claims", &fakeIndex{answers: []map[int]observation{one(at("degraded", 7, 107)), one(at("active", 7, 107))}}, "an engine held that is gone"},
		{"silent", &fakeIndex{err: errors.New("gone")}, "gone"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := claimsNothing(t.Context(), test.ob, 100*time.Millisecond)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// TestSumOf holds the sum of an engine's cache against that of the events it published.
func TestSumOf(t *testing.T) {
	root, seed := kv.EngineHash(1), kv.ContentSeed("", "")
	blocks := []engine.Block{
		{Engine: 3, Parent: &root, Content: 30, Copies: 1},
		{Engine: 1, Content: 10, Copies: 2},
		{Engine: 2, Content: 20, Copies: 1},
	}
	var c publish.Content
	for _, ev := range []publish.Event{
		{Kind: kv.KindStored, Seed: seed, Engines: []kv.EngineHash{1}, Contents: []kv.ContentHash{10}},
		{Kind: kv.KindStored, Seed: seed, Engines: []kv.EngineHash{2}, Contents: []kv.ContentHash{20}},
		{Kind: kv.KindStored, Parent: 1, HasParent: true, Engines: []kv.EngineHash{3}, Contents: []kv.ContentHash{30}},
		{Kind: kv.KindStored, Seed: seed, Engines: []kv.EngineHash{1}, Contents: []kv.ContentHash{10}},
	} {
		c.Apply(&ev)
	}
	if got := sumOf(blocks); got != c.Sum() || got == 0 {
		t.Errorf("%x, want %x", got, c.Sum())
	}
	if got := sumOf(blocks[1:]); got == c.Sum() {
		t.Error("a block fewer sums up to the same")
	}
}

func TestNoNamespace(t *testing.T) {
	var n *namespace
	if path, args := n.command("x", []string{"y"}); path != "x" || len(args) != 1 || n.engineHost() != "127.0.0.1" || n.controlHost() != "127.0.0.1" {
		t.Errorf("%s %v at %s, %s", path, args, n.engineHost(), n.controlHost())
	}
}

// TestIndexPlanted shows that drills of the index fail by what an index holds, by what it
// says of itself, and only then.
func TestIndexPlanted(t *testing.T) {
	longtest.Skip(t)
	build(t)
	for _, test := range []struct {
		drill string
		fault func(*Options)
		want  string
	}{
		{"batches-dropped", func(*Options) {}, ""},
		{"batches-dropped", func(o *Options) {
			o.plant = func(rank int, e *publish.Event) bool {
				if n := len(e.Contents); rank == 0 && e.Kind == kv.KindStored && n > 1 {
					e.Engines, e.Contents = e.Engines[:n-1], e.Contents[:n-1]
				}
				return true
			}
		}, "rank 0 does not hold the truth"},
		{"engine-unreachable", func(o *Options) { o.lie = func(string) string { return "active" } }, "its state does not tell of it within"},
	} {
		t.Run(test.drill+" "+test.want, func(t *testing.T) {
			o := Options{Seed: 4, Slack: slack, Progress: trial.NewProgress(nil, "drill")}
			if test.want != "" {
				o.Slack = 1
			}
			test.fault(&o)
			drills, err := Select(test.drill)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Run(t.Context(), drills[:1], o) // the gateway's has a test of its own
			if err != nil {
				t.Fatal(err)
			}
			if res := r.Drills[0]; res.Pass != (test.want == "") || !strings.Contains(res.Measured, test.want) {
				t.Errorf("pass %v: %s, want %q", res.Pass, res.Measured, test.want)
			}
		})
	}
}

// TestIndexDrills runs every drill of the index and of live engines.
func TestIndexDrills(t *testing.T) {
	longtest.Skip(t)
	build(t)
	for _, d := range append(append([]Drill(nil), indexDrills...), engineDrills...) {
		t.Run(d.Name, func(t *testing.T) { runOne(t.Context(), t, d) })
	}
}

func runOne(ctx context.Context, t *testing.T, d Drill) {
	t.Helper()
	r, err := Run(ctx, []Drill{d}, Options{Seed: 2, Slack: slack, Progress: trial.NewProgress(nil, "drill")})
	if err != nil {
		t.Fatal(err)
	}
	res := r.Drills[0]
	t.Logf("%.0f s: %s", res.Seconds, res.Measured)
	if !res.Pass {
		t.Errorf("rule: %s\nmeasured: %s", res.Rule, res.Measured)
	}
}
