// SPDX-License-Identifier: Apache-2.0

package lookupbench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"kindex/harness/trial"
	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/relay/wire"
)

func smallOptions() *Options {
	o := DefaultOptions()
	o.Memberships, o.Questions = 20_000, 400
	return &o
}

// TestContent holds the expected answers against plain sets, filled by what the events
// say, decoded from the wire.
func TestContent(t *testing.T) {
	o := smallOptions()
	w := newWorld(o)
	if again := newWorld(o); !reflect.DeepEqual(w, again) {
		t.Error("equal seeds, different content")
	}
	layout, err := wire.LayoutFor("vllm", "0.32.0")
	if err != nil {
		t.Fatal(err)
	}
	held := make([]map[string]bool, o.Instances) // paths of content hashes
	named := make([]map[kv.EngineHash]string, o.Instances)
	for i := range held {
		held[i], named[i] = map[string]bool{}, map[kv.EngineHash]string{}
	}
	var dec wire.Decoder
	for k := range w.groups {
		g := &w.groups[k]
		for h, i := range g.holders {
			var got kv.Batch
			if err := dec.Decode(wire.AppendBatch(nil, &kv.Batch{HasRank: true, Events: events(nil, g, h)}, layout), &got); err != nil {
				t.Fatal(err)
			}
			for _, e := range got.Events {
				path := named[i][e.Parent]
				if e.HasParent && path == "" {
					t.Fatalf("instance %d: an event's parent was not stored before", i)
				}
				for b, hash := range e.Hashes {
					content := kv.HashBlock(kv.HashSeed, e.Tokens[b*blockTokens:(b+1)*blockTokens], nil)
					path += "/" + strconv.FormatUint(uint64(content), 16)
					held[i][path], named[i][hash] = true, path
				}
			}
		}
	}
	n := 0
	for i := range held {
		n += len(held[i])
	}
	if n != w.memberships || n < o.Memberships {
		t.Errorf("%d memberships are announced, the content says %d, wanted were %d", n, w.memberships, o.Memberships)
	}
	left := 0
	for i, q := range w.questions(o.Questions, 1) {
		if len(q.query.Hashes) != promptBlocks {
			t.Fatalf("question %d has %d blocks", i, len(q.query.Hashes))
		}
		want := map[string]uint32{}
		deepest := uint32(0)
		for k := range held {
			path, d := "", uint32(0)
			for _, h := range q.query.Hashes {
				if path += "/" + strconv.FormatUint(uint64(h), 16); !held[k][path] {
					break
				}
				d++
			}
			if d > 0 {
				want[strconv.Itoa(k+1)] = d
			}
			deepest = max(deepest, d)
		}
		if deepest < promptBlocks {
			left++
		}
		got := map[string]uint32{}
		for j, m := range q.want {
			got[m.Instance] = m.Any
			if m.Device != m.Any || m.Host != m.Any || j > 0 && q.want[j-1].Any < m.Any || q.scores[m.Instance]["0"] != int(m.Any)*blockTokens {
				t.Fatalf("question %d: %+v, scores %v", i, q.want, q.scores)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("question %d: %v is called right, held is %v", i, got, want)
		}
		var body struct {
			Hashes []int64  `json:"block_hashes"`
			Tokens []uint32 `json:"token_ids"`
		}
		if err := errors.Join(json.Unmarshal(q.hash, &body), json.Unmarshal(q.tokens, &body)); err != nil {
			t.Fatal(err)
		}
		if hs := hashesOf(body.Tokens); !reflect.DeepEqual(hs, q.query.Hashes) || body.Hashes[7] != int64(hs[7]) {
			t.Fatalf("question %d: the bodies ask for something else", i)
		}
	}
	if left < o.Questions/8 || left > o.Questions/2 {
		t.Errorf("%d of %d questions leave their prompt", left, o.Questions)
	}
}

func TestRight(t *testing.T) {
	q := question{scores: map[string]map[string]int{"3": {"0": 64}}}
	const good = `{"scores":{"3":{"0":64}},"frequencies":[],"instances":{"3":{"longest_matched":64,"gpu":64}}}`
	if !q.right([]byte(good)) {
		t.Error("a right reply is refused")
	}
	for _, bad := range []string{
		"", "{}", strings.Replace(good, `"0":64`, `"0":48`, 1), strings.Replace(good, "matched\":64", "matched\":48", 1),
		strings.Replace(good, `"scores":{"3"`, `"scores":{"4"`, 1), strings.Replace(good, `"instances":{`, `"instances":{"9":{"longest_matched":16},`, 1),
	} {
		if q.right([]byte(bad)) {
			t.Errorf("%s is taken", bad)
		}
	}
	a := httpAsker{questions: []question{q}}
	a.replies = append(a.replies, good+good+"{}"...)
	a.kept = []keptReply{{0, 0, len(good)}, {0, len(good), 2 * len(good)}, {0, 2 * len(good), 2*len(good) + 2}}
	if wrong := a.judge(); wrong != 1 || len(a.kept) != 0 || len(a.replies) != 0 {
		t.Errorf("%d wrong, %d kept", wrong, len(a.kept))
	}
	s := structAsker{questions: []question{{want: []lookup.Match{{Instance: "3", Any: 4}}}}}
	s.answer.Matches = []lookup.Match{{Instance: "3", Any: 4}}
	s.took(0)
	s.answer.Matches[0].Degraded = true
	s.took(0)
	if wrong := s.judge(); wrong != 1 || s.judge() != 0 {
		t.Errorf("%d wrong", wrong)
	}
}

// fakeBench measures nothing: each trial is what give returns.
func fakeBench(o *Options, give func(arm string, n int) *Trial) *bench {
	b := newBench(o, &hosts{}, trial.NewProgress(nil, ""))
	n := 0
	for _, name := range o.Arms {
		b.arms[name] = &arm{name: name}
	}
	b.measure = func(_ context.Context, a *arm) (*Trial, error) {
		n++
		return give(a.name, n), nil
	}
	return b
}

func fakeTrial(p50 uint32, client, server float64) *Trial {
	return &Trial{Lookups: 110, Wall: 0.5, Latency: &trial.Latency{Samples: 100, P50: p50, P99: 2 * p50}, ClientCPU: client, ServerCPU: server}
}

func TestRounds(t *testing.T) {
	o := DefaultOptions()
	o.Rounds = 4
	figures := map[string]*Trial{
		ArmProcess: fakeTrial(300, 400, 0), ArmShmPinned: fakeTrial(900, 1_000, 1_100), ArmShm: fakeTrial(7_000, 3_000, 3_000),
		ArmHash: fakeTrial(30_000, 20_000, 10_000), ArmDynamo: fakeTrial(70_000, 30_000, 40_000),
		ArmHashMany: fakeTrial(30_000, 20_000, 25_000), ArmDynamoMany: fakeTrial(70_000, 20_000, 40_000),
	}
	b := fakeBench(&o, func(arm string, n int) *Trial {
		x := fakeTrial(100_000, 50_000, 50_000)
		if f := figures[arm]; f != nil {
			c := *f
			x = &c
		}
		if n%7 == 0 {
			x.Foreign = 0.9
			x.Latency = &trial.Latency{Samples: 100, P50: 1 << 30, P99: 1 << 30}
			x.Wrong = 1
		}
		return x
	})
	if err := b.rounds(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := b.report
	r.sum()
	orders := map[string]bool{}
	for round := range o.Rounds {
		order := ""
		seen := map[string]int{}
		for _, x := range r.Trials {
			if x.Round == round && !x.Discarded {
				order += x.Arm + " "
				seen[fmt.Sprint(x.Arm, x.Again)]++
			}
		}
		orders[order] = true
		if len(seen) != len(o.Arms)+1 || seen[o.Control+"true"] != 1 {
			t.Errorf("round %d: %v", round, seen)
		}
		for arm, n := range seen {
			if n != 1 {
				t.Errorf("round %d: %s is kept %d times", round, arm, n)
			}
		}
	}
	if len(orders) != o.Rounds {
		t.Errorf("%d orders in %d rounds", len(orders), o.Rounds)
	}
	kept := o.Rounds * (len(o.Arms) + 1)
	want := trial.Exact{}
	for _, x := range r.Trials {
		if x.Arm != ArmWord {
			want.Lookups += x.Lookups
			want.Wrong += x.Wrong
		}
	}
	if all := len(r.Trials); r.Discarded != all-kept || r.Discarded != all/7 || *r.Exact != want || want.Wrong == 0 || r.Ops != int64(100*(kept-o.Rounds)) {
		t.Errorf("%d trials, %d discarded, %+v, %d operations", all, r.Discarded, r.Exact, r.Ops)
	}
	if r.Lookup.P50 != 300 || r.CPUPerLookup != 400 {
		t.Errorf("in process: %+v, %v", r.Lookup, r.CPUPerLookup)
	}
	if x := r.Ratios[0]; x.Server.Median != 4 || x.Both.Median != 70.0/30 || len(r.Ratios) != 4 || !r.Ratios[3].Again || r.Ratios[3].Server.Median != 1 {
		t.Errorf("%+v", r.Ratios)
	}
	met := map[string]bool{}
	for _, g := range r.Goals {
		met[strings.SplitN(g.Figure, ":", 2)[0]] = g.Met
	}
	if want := (map[string]bool{ArmHash: true, ArmHashMany: false, ArmShmPinned: true, ArmShm: false}); !reflect.DeepEqual(met, want) {
		t.Errorf("goals %v, want %v", met, want)
	}
	checkSaved(t, r)
}

// checkSaved holds what is written against r.
func checkSaved(t *testing.T, r *Report) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "new")
	if err := r.Save(dir); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ file, want string }{
		{"table.md", "| http-hash, again | 30.0 | 60.0 | 20.0 | 10.00 | 100000 | 200 |"},
		{"table.md", "| process | 0.30 | 0.60 | 0.40 | - | 2500000 | 200 |"},
		{"table.md", "| http-hash / dynamo-hash | 4.00 (4.00 to 4.00) | 2.33 (2.33 to 2.33) |"},
		{"table.md", "**not reached**"},
		{"latency.svg", "dynamo-hash-many (8)"},
		{"cpu.svg", "</svg>"},
	} {
		b, err := os.ReadFile(filepath.Join(dir, x.file))
		if err != nil || !strings.Contains(string(b), x.want) {
			t.Errorf("%s (%v) lacks %q", x.file, err, x.want)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "report.json"))
	var got map[string]any
	if err != nil || json.Unmarshal(b, &got) != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"command", "corpus", "seed", "ops", "block_ops", "cpu_ns_per_lookup", "lookup_ns", "wall_s", "exact", "machine", "discarded", "rows", "trials"} {
		if got[key] == nil {
			t.Errorf("no %s", key)
		}
	}
}

func TestBusy(t *testing.T) {
	o := DefaultOptions()
	b := fakeBench(&o, func(string, int) *Trial { return &Trial{Foreign: 1} })
	if err := b.rounds(t.Context()); err == nil || !strings.Contains(err.Error(), "raise --max-foreign") || len(b.report.Trials) != trial.MaxDiscarded {
		t.Errorf("%v after %d trials", err, len(b.report.Trials))
	}
	b.report.sum() // of nothing kept
	if len(b.report.Rows) != 0 || len(b.report.Goals) != 0 {
		t.Errorf("%+v", b.report)
	}
	if err := b.report.Save(t.TempDir()); err != nil {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	for _, x := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Arms = []string{"http"} }, `--arms "http": must be different ones of process,`},
		{func(o *Options) { o.Arms = []string{ArmShm, ArmShm} }, `--arms "shm"`},
		{func(o *Options) { o.Arms = nil }, "--arms: must be"},
		{func(o *Options) { o.Arms = []string{ArmShm} }, "--control http-hash: must be none, or one of the arms"},
		{func(o *Options) { o.Rounds = 0 }, "--rounds 0: must be 1 to 1000"},
		{func(o *Options) { o.Instances = 3 }, "--instances 3: must be 4 to 256"},
		{func(o *Options) { o.Trial = 1 }, "--trial 1ns: must be 10ms to 1m0s"},
		{func(o *Options) { o.MaxForeign = 0 }, "--max-foreign 0: must be above 0"},
	} {
		o := DefaultOptions()
		x.change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v, want %s", err, x.want)
		}
	}
	o := DefaultOptions()
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
}

// TestWord: each word comes back, also where the two must share a core.
func TestWord(t *testing.T) {
	a := &wordAsker{}
	stop := a.echo(0)
	for i := range 1_000 {
		if err := a.ask(i); err != nil || a.back.Load() != uint64(i+1) {
			t.Fatalf("word %d: %v, %d came back", i, err, a.back.Load())
		}
	}
	stop()
}

// TestInProcess takes one real round in this process: the publishers, the host, the
// question and the check.
func TestInProcess(t *testing.T) {
	o := smallOptions()
	o.Arms, o.Control, o.Rounds, o.Trial, o.MaxForeign = []string{ArmProcess}, ArmProcess, 1, minTrial, 1_000
	r, err := Measure(t.Context(), o, trial.NewProgress(nil, ""))
	if err != nil {
		t.Fatal(err)
	}
	if r.Exact.Lookups == 0 || r.Exact.Wrong != 0 || len(r.Rows) != 2 || r.Rows[0].P50.Median <= 0 {
		t.Errorf("%+v, %+v", r.Exact, r.Rows)
	}
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil || !strings.Contains(b.String(), ", 0 wrong") {
		t.Errorf("%v: %s", err, b.String())
	}
}
