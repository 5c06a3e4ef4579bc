// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kindex/harness/publish"
	"kindex/harness/trial"
	"kindex/internal/kv"
	"kindex/internal/longtest"
)

// judged is a gateway whose worker "a" is the sick one, with an access log.
func judged(t *testing.T, log string) *gatewayFace {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &gatewayRig{e: &Env{o: Options{Slack: 1}}}
	return &gatewayFace{r: r, name: "direct", watch: &gatewayWatch{}, log: path, ids: map[string]string{"a": "w0", "b": "w1"}}
}

// TestRouting plants every way in which a sick worker can be given requests.
func TestRouting(t *testing.T) {
	zero := time.Now().Add(-time.Minute)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	sent := func(ms int, worker, id string) *asked {
		return &asked{id: id, sent: at(ms), first: at(ms + 10), end: at(ms + 20), status: 200, whole: true, worker: worker}
	}
	o := &outage{from: at(0), well: at(8_000), out: 2_500 * time.Millisecond, back: time.Second}
	fine := []*asked{sent(-100, "a", ""), sent(2_000, "a", ""), sent(5_000, "b", ""), sent(8_500, "a", "")}
	for _, test := range []struct {
		name, want string
		all        []*asked
	}{
		{"right", "", fine},
		{"given late", "given a request 2.6s into the fault", append([]*asked{sent(2_600, "a", "")}, fine...)},
		{"tried late", "given a request 3s into the fault", append([]*asked{sent(3_000, "b", "again")}, fine...)},
		{"back late", "given a request 1.1s after it was well again", []*asked{sent(5_000, "b", ""), sent(9_100, "a", "")}},
		{"never back", "is given no request", []*asked{sent(5_000, "b", ""), sent(9_100, "b", "")}},
		{"nothing to judge", "no request was sent", []*asked{sent(8_100, "a", "")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := judged(t, `{"id":"again","tries":2}`+"\n"+`{"id":"x","tr`)
			tries, err := f.tries()
			if err != nil || tries["again"] != 2 {
				t.Fatalf("%v, %v", tries, err)
			}
			said, err := f.routing(o, test.all, tries)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%s: %v, want %q", said, err, test.want)
			}
		})
	}
}

// TestAnswered plants every way in which a request can fare badly.
func TestAnswered(t *testing.T) {
	zero := time.Now().Add(-time.Minute)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	one := func(change func(*asked)) []*asked {
		good := &asked{sent: at(0), first: at(10), end: at(20), status: 200, whole: true, worker: "b"}
		a := *good
		change(&a)
		return []*asked{good, &a}
	}
	cut := func(worker string, sent, end int) []*asked {
		return one(func(a *asked) { a.worker, a.sent, a.end, a.whole = worker, at(sent), at(end), false })
	}
	for _, test := range []struct {
		name, want string
		breaks     bool
		all        []*asked
	}{
		{"right", "", false, one(func(*asked) {})},
		{"refused", "status 503", true, one(func(a *asked) { a.status, a.whole = 503, false })},
		{"no answer", "status 0", true, one(func(a *asked) { a.status, a.whole = 0, false })},
		{"long", "ended after 12.1s", true, one(func(a *asked) { a.end = at(12_100) })},
		{"broke off there", "", true, cut("a", -50, 100)},
		{"broke off there, and need not", "was not answered", false, cut("a", -50, 100)},
		{"broke off elsewhere", "was not answered", true, cut("b", -50, 100)},
		{"broke off before", "was not answered", true, cut("a", -50, -10)},
		{"broke off behind", "was not answered", true, cut("a", 1_100, 1_200)},
		{"nobody", "nobody was answered", true, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			said, err := judged(t, "").answers(&outage{from: at(0), well: at(1_000), breaks: test.breaks}, test.all, nil)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%s: %v, want %q", said, err, test.want)
			}
		})
	}
}

func TestSelectGroups(t *testing.T) {
	for name, want := range map[string]string{
		"engine-killed": "engine-killed gateway-engine-killed", "gateway-engine-killed": "gateway-engine-killed",
		"overload": "overload", "gateway-restarted": "gateway-restarted", "relay-cut": "relay-cut",
	} {
		drills, err := Select(name)
		var got []string
		for _, d := range drills {
			got = append(got, d.Name)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v, %v, want %s", name, got, err, want)
		}
	}
	n := 0
	for _, g := range groups {
		drills, err := Select(g.name)
		if err != nil {
			t.Error(err)
		}
		n += len(drills)
	}
	if n != len(all) {
		t.Errorf("the groups have %d drills, there are %d", n, len(all))
	}
}

// TestGatewayPlanted shows that a gateway's drill fails by what its index holds.
func TestGatewayPlanted(t *testing.T) {
	longtest.Skip(t)
	build(t)
	drills, err := Select("gateway-batches-dropped")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Seed: 5, Slack: 1, Progress: trial.NewProgress(nil, "drill")}
	o.plant = func(_ int, e *publish.Event) bool {
		if n := len(e.Contents); e.Kind == kv.KindStored && n > 1 {
			e.Engines, e.Contents = e.Engines[:n-1], e.Contents[:n-1]
		}
		return true
	}
	r, err := Run(t.Context(), drills, o)
	if err != nil || r.Failed != 1 || !strings.Contains(r.Drills[0].Measured, "rank 0 does not hold the truth") {
		t.Errorf("%v: with a forgetful index: %+v", err, r)
	}
}

// TestGatewayDrill runs the shortest drill of a gateway.
func TestGatewayDrill(t *testing.T) {
	build(t)
	drills, err := Select("gateway-batches-dropped")
	if err != nil {
		t.Fatal(err)
	}
	runOne(t.Context(), t, drills[0])
}

// TestGatewayDrills runs all of them.
func TestGatewayDrills(t *testing.T) {
	longtest.Skip(t)
	build(t)
	for _, d := range gatewayDrills {
		t.Run(d.Name, func(t *testing.T) { runOne(t.Context(), t, d) })
	}
}
