// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/harness/subscribe"
	"kindex/harness/trial"
)

// fakeTruth is one life's truth: batch n makes 100 + n.
type fakeTruth struct {
	life, newest int
}

func (f *fakeTruth) Life() int { return f.life }

func (f *fakeTruth) Record(_, life int, seq uint64) (publish.Record, bool) {
	if life != f.life || seq > uint64(f.newest) {
		return publish.Record{}, false
	}
	return publish.Record{Truth: 100 + seq}, true
}

// fakeIndex answers from a list, and with its last entry from then on.
type fakeIndex struct {
	answers []map[int]observation
	err     error
	asked   int
}

func (f *fakeIndex) observe(context.Context) (map[int]observation, error) {
	f.asked++
	if f.err != nil {
		return nil, f.err
	}
	return f.answers[min(f.asked, len(f.answers))-1], nil
}

func at(status string, seq, sum uint64) observation { return observation{status, true, seq, sum} }

func TestWrong(t *testing.T) {
	truth := &fakeTruth{life: 1, newest: 9}
	right := at("active", 7, 107)
	for _, test := range []struct {
		name string
		seen map[int]observation
		want string
	}{
		{"exact", map[int]observation{0: right, 1: right}, ""},
		{"a rank is missing", map[int]observation{0: right}, "rank 1 is not there"},
		{"not active", map[int]observation{0: right, 1: at("degraded", 7, 107)}, "rank 1 is degraded"},
		{"behind", map[int]observation{0: right, 1: at("active", 4, 104)}, "rank 1 is behind batch 5"},
		{"nothing yet", map[int]observation{0: right, 1: {status: "active"}}, "rank 1 is behind batch 5"},
		{"another content", map[int]observation{0: at("active", 7, 106), 1: right}, "rank 0 does not hold the truth of batch 7"},
		{"a batch that was never published", map[int]observation{0: right, 1: at("active", 10, 110)}, "rank 1 does not hold the truth of batch 10"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := wrong(test.seen, truth, []uint64{5, 5}); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestExactWithin(t *testing.T) {
	truth := &fakeTruth{newest: 9}
	one := func(o observation) map[int]observation { return map[int]observation{0: o} }
	right, stale := one(at("active", 7, 107)), one(at("active", 3, 103))
	const soon, never = time.Minute, -2 * lateFor
	for _, test := range []struct {
		name  string
		index *fakeIndex
		limit time.Duration
		want  string // of the error; "": none
		asked int    // at least
	}{
		{"at once", &fakeIndex{answers: []map[int]observation{right}}, soon, "", 2},
		{"after a while", &fakeIndex{answers: []map[int]observation{stale, stale, right}}, soon, "", 4},
		{"too late", &fakeIndex{answers: []map[int]observation{stale, right}}, time.Nanosecond, "the rule allows", 2},
		{"never", &fakeIndex{answers: []map[int]observation{stale}}, never, "rank 0 is behind batch 5", 1},
		{"not for long", &fakeIndex{answers: []map[int]observation{right, right, one(at("active", 8, 1))}}, soon, "exact, and then not: rank 0 does not hold the truth of batch 8", 3},
		{"no answer", &fakeIndex{err: errors.New("gone")}, never, "gone", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := exactWithin(t.Context(), test.index, truth, []uint64{5}, time.Now(), test.limit, 200*time.Millisecond, nil)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if test.index.asked < test.asked {
				t.Errorf("asked %d times, want %d", test.index.asked, test.asked)
			}
		})
	}
}

// TestWaits: of what programs waited for a CPU, the part between two instants counts,
// and a rule grows by no more than that and four times itself.
func TestWaits(t *testing.T) {
	zero := time.Now().Add(-time.Hour)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	w := newWaits()
	w.seen = []waited{{at(0), at(0), 0}, {at(0), at(100), 40 * time.Millisecond}, {at(100), at(200), 0}, {at(200), at(300), 100 * time.Millisecond}, {at(300), at(400), 500 * time.Millisecond}}
	for _, test := range []struct{ from, to, want int }{{0, 100, 40}, {0, 50, 20}, {50, 250, 70}, {100, 200, 0}, {300, 350, 50}, {0, 400, 400}, {-50, 100, 40}, {250, 150, 0}} {
		if got := w.of(at(test.from), at(test.to)); got.Round(time.Millisecond) != time.Duration(test.want)*time.Millisecond {
			t.Errorf("between %d and %d ms: %v, want %d ms", test.from, test.to, got, test.want)
		}
	}
	if got := w.allows(10*time.Millisecond, at(0), at(300)); got != 50*time.Millisecond {
		t.Errorf("a rule of 10 ms allows %v", got)
	}
	if got := w.allows(time.Second, at(0), at(100)); got.Round(time.Millisecond) != 1040*time.Millisecond {
		t.Errorf("a rule of 1 s allows %v", got)
	}
	if got := (*waits)(nil).allows(time.Second, at(0), at(100)); got != time.Second {
		t.Errorf("where nothing is counted a rule of 1 s allows %v", got)
	}
	slow := &watch{e: &Env{waits: w, o: Options{Slack: 1}}}
	if slow.slowed(at(0), time.Second) || slow.slowed(at(0), 1100*time.Millisecond) || !slow.slowed(at(0), 1700*time.Millisecond) {
		t.Error("lookups that waited for a CPU, or not")
	}
	if slow.e.strict = true; !slow.slowed(at(0), 1100*time.Millisecond) {
		t.Error("no CPU is the fault, and is taken for an excuse")
	}
	// This process and one that ends.
	p, err := proc.Start("/bin/sh", nil, "-c", "read x")
	if err != nil {
		t.Fatal(err)
	}
	w.add(p.PID())
	w.sample()
	<-p.Done()
	w.sample()
	if len(w.pids) != 1 || len(w.before) != 1 {
		t.Errorf("%v is still counted", w.pids)
	}
}

func TestUnbroken(t *testing.T) {
	if err := unbroken("x", subscribe.Counts{Subscribed: 2, Batches: 9, Snapshots: 1, Stale: 3, Checked: 9}); err != nil {
		t.Error(err)
	}
	for _, c := range []subscribe.Counts{{Gaps: 1}, {Resets: 1}, {OutOfRange: 1}, {Holes: 1}, {Wrong: 1}} {
		if unbroken("x", c) == nil {
			t.Errorf("%+v is no fault", c)
		}
	}
}

func TestReadDump(t *testing.T) {
	const dump = `{"model":"m:default","block_size":16,"streams":{"w0":{"0":{"epoch":1,"last_seq":41}}}}
{"model":"m:default","block_size":16,"streams":{"w0":{"1":{"epoch":1,"last_seq":null}}}}
{"model":"m:default","worker_id":"w0","storage_tier":"device","event":{"event_id":0,"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":11,"tokens_hash":5,"mm_extra_info":null},{"block_hash":12,"tokens_hash":6,"mm_extra_info":null}]}},"dp_rank":0}}
{"model":"m:default","worker_id":"w0","storage_tier":"host","event":{"event_id":1,"data":{"stored":{"parent_hash":11,"namespace_seed":9,"group_idx":2,"blocks":[{"block_hash":18446744073709551615,"tokens_hash":7,"mm_extra_info":null}]}},"dp_rank":0}}
{"model":"m:default","worker_id":"w0","storage_tier":"device","event":{"event_id":2,"data":{"removed":{"block_hashes":[11]}},"dp_rank":0}}
`
	read := func(p plant) (map[int]observation, map[int]*publish.Content) {
		out, content := map[int]observation{}, map[int]*publish.Content{}
		if err := (&indexHost{plant: p}).readDump(strings.NewReader(dump), out, content); err != nil {
			t.Fatal(err)
		}
		return out, content
	}
	out, content := read(nil)
	if o := out[0]; !o.has || o.seq != 41 || content[0].Copies() != 2 {
		t.Errorf("%+v with %d copies", o, content[0].Copies())
	}
	if o, ok := out[1]; !ok || o.has {
		t.Errorf("rank 1 is %+v", o)
	}
	_, spoilt := read(func(_ int, e *publish.Event) bool { return len(e.Engines) != 1 || e.Engines[0] != 11 })
	if spoilt[0].Sum() == content[0].Sum() {
		t.Error("a content without a removal sums up to the same")
	}
}

func TestSelect(t *testing.T) {
	if got, err := Select("all"); err != nil || len(got) != len(Names()) {
		t.Errorf("%d drills, %v", len(got), err)
	}
	if _, err := Select("relay-frob"); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "relay-rolled") {
		t.Errorf("%v", err)
	}
}

// TestList shows that every drill has a name of its own, a rule with a fault and what is
// demanded, and a line in the list.
func TestList(t *testing.T) {
	var b strings.Builder
	WriteList(&b)
	names := map[string]bool{}
	for _, d := range all {
		fault, demanded, ok := strings.Cut(d.Rule, ":")
		if !ok || len(fault) < 20 || len(demanded) < 20 || names[d.Name] {
			t.Errorf("%s: %q and %q", d.Name, fault, demanded)
		}
		names[d.Name] = true
		if !strings.Contains(b.String(), "  "+d.Name+" ") || !strings.Contains(b.String(), fault+"\n") {
			t.Errorf("%s is not in the list:\n%s", d.Name, b.String())
		}
	}
}

// TestReport shows that a broken rule fails its drill and nothing else, and that what a
// drill began ends with it.
func TestReport(t *testing.T) {
	ended := 0
	drills := []Drill{
		{"good", "it holds", func(_ context.Context, e *Env) (string, error) {
			e.later(func() error { ended++; return nil })
			return "5 ms", nil
		}},
		{"bad", "it does not", func(_ context.Context, e *Env) (string, error) {
			e.later(func() error { ended++; return nil })
			return "7 ms", errors.New("broken")
		}},
		{"untidy", "it ends badly", func(_ context.Context, e *Env) (string, error) {
			e.later(func() error { ended++; return errors.New("stuck") })
			return "9 ms", nil
		}},
	}
	r, err := Run(t.Context(), drills, Options{Progress: trial.NewProgress(nil, "drill")})
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed != 2 || ended != 3 || !r.Drills[0].Pass || r.Drills[1].Measured != "7 ms; broken" || r.Drills[2].Pass {
		t.Errorf("%+v, %d ended", r, ended)
	}
	var text, object strings.Builder
	if err := errors.Join(r.WriteText(&text), r.WriteJSON(&object)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"good", "pass", "FAIL", "rule:", "7 ms; broken", "3 drills, 2 failed"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	if !strings.Contains(object.String(), `{"name":"bad","pass":false,"rule":"it does not","measured":"7 ms; broken"},`) || !strings.Contains(object.String(), `"failed":2`) {
		t.Error(object.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, drills, Options{Progress: trial.NewProgress(nil, "drill")}); !errors.Is(err, context.Canceled) || ended != 4 {
		t.Errorf("%v, %d ended", err, ended)
	}
}
