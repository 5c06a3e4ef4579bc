// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kindex/harness/mockworker/engine"
)

// TestPrefixReuse holds it against what it means: prompts token by token, a set of
// prefixes.
func TestPrefixReuse(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	p := &prompts{seed: 1, vocab: 30_000}
	var reuse endless
	var seen [][]string
	for n := range 150 {
		r := Row{N: n, Input: 1 + rng.IntN(4_000)}
		for k := 0; k*TokensPerID < r.Input && rng.IntN(8) > 0; k++ {
			r.IDs = append(r.IDs, uint64(k*3+rng.IntN(2)))
		}
		tokens := strings.Split(string(p.appendTokens(nil, &r)), ",")
		want := 0
		for _, s := range seen {
			want = max(want, common(tokens, s))
		}
		want = min(want, r.Input-1)
		seen = append(seen, tokens)
		// Tokens of two ids may agree by chance where they part.
		if got := reuse.see(p, &r); got > want || got < want-3 {
			t.Fatalf("row %d of %d tokens: %d, want %d", n, r.Input, got, want)
		}
	}
}

func TestAppendIDs(t *testing.T) {
	p := &prompts{seed: 3, vocab: 30_000}
	r := Row{N: 5, Input: 1_500, IDs: []uint64{7, 8}}
	text := ""
	for _, id := range p.appendIDs(nil, &r) {
		text += "," + known(int(id))
	}
	if want := string(p.appendTokens(nil, &r)); text[1:] != want {
		t.Error("the model's prompt is another than the engine's")
	}
}

// foresight is an oracle over rows that arrive so far apart.
func foresight(t *testing.T, rows []Row, apart time.Duration, shapes ...engine.Shape) *oracle {
	t.Helper()
	o := DefaultOptions()
	b, err := newBodies(&o, "m")
	if err != nil {
		t.Fatal(err)
	}
	out := &oracle{shapes: shapes, rows: rows, due: make([]time.Duration, len(rows)), bodies: b, reuse: &endless{}, most: make([]int, len(rows)), say: func(int, int) {}}
	for i := range rows {
		rows[i].N = i
		out.due[i] = time.Duration(i) * apart
		out.most[i] = out.reuse.see(&b.prompts, &rows[i])
	}
	return out
}

func ran(t *testing.T, o *oracle) *foreseen {
	t.Helper()
	got, err := o.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestOracle knows the answers: turns find what was before them, whatever the fleet,
// unless no place has room for it.
func TestOracle(t *testing.T) {
	turn := func(ids ...uint64) Row { return Row{Input: len(ids) * TokensPerID, Output: 3, IDs: ids} }
	rows := []Row{turn(1, 2), turn(3, 4), turn(1, 2, 5), turn(3, 4, 6), turn(1, 2, 5), turn(9)}
	want := []int{0, 0, 1024, 1024, 1536 - 16, 0}
	for _, workers := range []int{1, 2, 8} {
		got := ran(t, foresight(t, rows, time.Minute, slices.Repeat([]engine.Shape{usualShape(1_000, 16)}, workers)...))
		if !slices.Equal(got.cached, want) || got.total != 3568 || got.refused != 0 {
			t.Errorf("%d workers: %+v, want %v", workers, got, want)
		}
	}
	// One chain of three ids fits, two do not: alone nothing is found again, two keep one each.
	small := usualShape(100, 16)
	if got := ran(t, foresight(t, rows[:4], time.Minute, small)); got.total >= 1024 {
		t.Errorf("one small worker: %+v", got)
	}
	if got := ran(t, foresight(t, rows[:4], time.Minute, small, small)); got.total != 2048 {
		t.Errorf("two small workers: %+v", got)
	}
	// Two ranks are two places.
	small.Ranks = 2
	if got := ran(t, foresight(t, rows[:4], time.Minute, small)); got.total != 2048 {
		t.Errorf("one small worker of two ranks: %+v", got)
	}
	// A prompt that no worker has room for.
	if got := ran(t, foresight(t, []Row{turn(1, 2, 3, 4), turn(1), turn(1)}, time.Minute, usualShape(100, 16))); got.refused != 1 || got.cached[2] != 512-16 {
		t.Errorf("a long prompt: %+v", got)
	}
	// Times that saturated.
	late := foresight(t, rows, time.Minute, usualShape(1_000, 16))
	for i := range late.due {
		late.due[i] = math.MaxInt64
	}
	if got := ran(t, late); got.total != 3568 {
		t.Errorf("after 292 years: %+v", got)
	}
}

// turns are rows of 40 conversations of three turns each that all begin alike.
func turns() (rows []Row) {
	for turn := range 3 {
		for c := range 40 {
			r := Row{N: len(rows), Output: 2, IDs: []uint64{0}}
			for k := range turn + 1 {
				r.IDs = append(r.IDs, uint64(10*c+k+1))
			}
			r.Input = len(r.IDs) * TokensPerID
			rows = append(rows, r)
		}
	}
	return rows
}

// turnsFile is a trace of them, 200 ms apart, with a row among them that no engine of
// fewer than 2,000 blocks has room for.
func turnsFile(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for i, r := range turns() {
		ids, err := json.Marshal(r.IDs)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, `{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": %s}`+"\n", i*200, r.Input, r.Output, ids)
		if i == 70 {
			fmt.Fprintf(&b, `{"timestamp": %d, "input_length": 32000, "output_length": 9, "hash_ids": [0]}`+"\n", i*200)
		}
	}
	name := filepath.Join(t.TempDir(), "turns.jsonl")
	if err := os.WriteFile(name, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestOracleRouters: a beginning that all rows share does not draw them to one place,
// and the best of the routers is the oracle, whatever was tried before it.
func TestOracleRouters(t *testing.T) {
	rows := turns()
	o := foresight(t, rows, time.Second, slices.Repeat([]engine.Shape{usualShape(1_200, 16)}, 4)...)
	totals := map[string]int{}
	for i := range routers {
		got, err := o.try(t.Context(), i, -1)
		if err != nil {
			t.Fatal(err)
		}
		totals[got.router] = got.total
		if again, err := o.try(t.Context(), i, got.total); again != nil || err != nil {
			t.Errorf("%s beats itself: %+v, %v", got.router, again, err)
		}
		if again, err := o.try(t.Context(), i, got.total-1); err != nil || !slices.Equal(again.cached, got.cached) {
			t.Errorf("%s: another run the second time: %v", got.router, err)
		}
		for k, n := range got.cached {
			if n > o.most[k] {
				t.Errorf("%s, row %d: %d cached, %d were there before", got.router, k, n, o.most[k])
			}
		}
	}
	best := ran(t, o)
	for name, n := range totals {
		if n > best.total || name == best.router && n != best.total {
			t.Errorf("%s reuses %d, the oracle %d of %s", name, n, best.total, best.router)
		}
	}
	// There is room for all where no place has more than its part.
	most := 0
	for _, n := range o.most {
		most += n / 16 * 16
	}
	if totals["most reuse"] >= best.total || best.total < most-3*TokensPerID {
		t.Errorf("%v of %d", totals, most)
	}
}

func TestOracleRefuses(t *testing.T) {
	rows := []Row{{Input: 9}}
	if _, err := foresight(t, rows, 0, slices.Repeat([]engine.Shape{usualShape(1<<20, 16)}, 5)...).run(t.Context()); !errors.Is(err, errTooMany) {
		t.Errorf("a huge fleet: %v", err)
	}
	if _, err := foresight(t, rows, 0, engine.Shape{Engine: "x", Blocks: math.MaxInt}).run(t.Context()); !errors.Is(err, errTooMany) {
		t.Errorf("an endless worker: %v", err)
	}
	if _, err := foresight(t, rows, 0, engine.Shape{Engine: "x", Blocks: 5}).run(t.Context()); err == nil || !strings.Contains(err.Error(), "worker 0 cannot be modelled") {
		t.Errorf("no engine: %v", err)
	}
	for _, s := range []engine.Shape{{Engine: engine.VLLM, Ranks: math.MaxInt}, {Engine: engine.VLLM, Ranks: 1 << 20}, {Engine: engine.VLLM, Blocks: -5, BlockSize: 16}, {Engine: engine.VLLM, Blocks: 9, BlockSize: -1}} {
		if got, err := foresight(t, rows, 0, s).run(t.Context()); err == nil {
			t.Errorf("%+v is modelled: %+v", s, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := foresight(t, rows, 0, usualShape(10, 16)).run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
	var s Shape
	for _, in := range []string{"", "8", "8x9", "0x9x16", "8x9x16x2", "-1x9x16", "8xax16", "257x9x16", "8x9999999x16", "1x9x99999999"} {
		if err := s.Set(in); err == nil || !strings.HasPrefix(err.Error(), "must be WORKERSxBLOCKSxTOKENS") {
			t.Errorf("%q: %v, %+v", in, err, s)
		}
	}
	if err := s.Set("8x32768x16"); err != nil || s != (Shape{8, 32_768, 16}) || s.String() != "8x32768x16" || len(s.shapes()) != 8 {
		t.Errorf("%v, %+v", err, s)
	}
}

// TestOracleOfEngine holds the oracle against an engine with sockets that serves the
// same requests: behind one worker there is nothing to route, so that each row's cached
// tokens are the oracle's. One of another shape, or of another order, would be seen.
func TestOracleOfEngine(t *testing.T) {
	const blocks = 1_500
	url, admin := mocks(t, 1, blocks)
	o := DefaultOptions()
	o.URL, o.Oracle, o.Reset, o.OneByOne = url, admin, true, true
	o.Trace, o.MaxOutput = turnsFile(t), 3
	r := replayed(t, &o)
	differs := func(shape engine.Shape, change func([]Row)) (n int) {
		rows := slices.Clone(mustRows(t, &o))
		change(rows)
		again := foresight(t, rows, 0, shape)
		again.serial, again.bodies.most = true, o.MaxOutput
		got := ran(t, again)
		for i := range r.Records {
			if got.cached[i] != max(r.Records[i].Cached, 0) {
				n++
			}
		}
		return n
	}
	failed := 0
	for i := range r.Records {
		q := &r.Records[i]
		if !q.ok() { // too long for the engine
			failed++
		}
		if q.Oracle != max(q.Cached, 0) || q.Oracle > q.PrefixReuse || !q.ok() && q.Input < blocks*16-o.MaxOutput {
			t.Errorf("row %d: the engine reuses %d (%s), the oracle %d, prefix reuse is %d", q.Row, q.Cached, q.Error, q.Oracle, q.PrefixReuse)
		}
	}
	s := r.Summary
	if want := known(failed) + " rows are too long for the fleet"; failed == 0 || !strings.HasPrefix(s.Notes[0], want) {
		t.Errorf("%q, want %q", s.Notes, want)
	}
	if s.Oracle == nil || s.Oracle.Tokens != s.Cache.Cached || *s.Cache.OverOracle != 1 || s.Oracle.Tokens >= s.Reuse.Tokens || s.Oracle.Tokens == 0 {
		t.Errorf("%+v of %+v, prefix reuse %+v", s.Cache, s.Oracle, s.Reuse)
	}
	if n := differs(usualShape(blocks, 16), func([]Row) {}); n != 0 {
		t.Errorf("the same again: %d rows differ", n)
	}
	if differs(usualShape(blocks-blocks/8, 16), func([]Row) {}) == 0 || differs(usualShape(blocks/2, 32), func([]Row) {}) == 0 || differs(usualShape(blocks, 16), slices.Reverse) == 0 {
		t.Error("the oracle of another fleet, or of another trace, is the same")
	}
}

func mustRows(t *testing.T, o *Options) []Row {
	t.Helper()
	tr, err := ReadTrace(o.Trace, o.Rows, o.Seed)
	if err != nil {
		t.Fatal(err)
	}
	return tr.Rows
}

// TestOracleTwice: two replays with one seed over engines with sockets, at a speed at
// which no two runs go alike, print the same oracle.
func TestOracleTwice(t *testing.T) {
	url, admin := mocks(t, 4, 600)
	o := DefaultOptions()
	o.URL, o.Oracle, o.Reset = url, admin, true
	o.Trace, o.Speedup, o.Late = turnsFile(t), 50, o.Timeout
	a, b := replayed(t, &o), replayed(t, &o)
	for _, r := range []*Result{a, b} {
		if s := r.Summary; s.Requests.OK != 120 || s.Requests.Failed != 1 || s.Oracle == nil || s.Oracle.Workers != 4 || s.Oracle.Blocks != 4*600 || s.Oracle.Tokens == 0 || s.Oracle.Tokens >= s.Reuse.Tokens || s.Cache.OverOracle == nil || s.Best == nil {
			t.Fatalf("%+v, %+v, %+v, %v", s.Requests, s.Oracle, s.Reuse, s.Notes)
		}
	}
	if diff := cmp.Diff(a.Summary.Oracle, b.Summary.Oracle) + cmp.Diff(a.Summary.Reuse, b.Summary.Reuse); diff != "" {
		t.Errorf("another oracle the second time:\n%s", diff)
	}
	for i := range a.Records {
		x, y := &a.Records[i], &b.Records[i]
		if x.Row != y.Row || x.Oracle != y.Oracle || x.PrefixReuse != y.PrefixReuse {
			t.Errorf("row %d: oracle %d and %d, prefix reuse %d and %d", x.Row, x.Oracle, y.Oracle, x.PrefixReuse, y.PrefixReuse)
		}
	}
	o.Seed, o.Shape = 2, Shape{2, 600, 16}
	if c := replayed(t, &o).Summary; c.Oracle.Workers != 2 || c.Oracle.Tokens == a.Summary.Oracle.Tokens || c.Reuse.Tokens != a.Summary.Reuse.Tokens {
		t.Errorf("half of the fleet: oracle %+v, prefix reuse %+v", c.Oracle, c.Reuse)
	}
}
