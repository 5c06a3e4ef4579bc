// SPDX-License-Identifier: Apache-2.0

package gatewayreplay

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kindex/harness/openloop"
	"kindex/harness/proc"
	"kindex/harness/trial"
)

func TestValidate(t *testing.T) {
	for want, spoil := range map[string]func(*Options){
		"--variants":    func(o *Options) { o.Variants = []string{Chain, Chain} },
		"--variants \"": func(o *Options) { o.Variants = []string{"theirs"} },
		"--variants:":   func(o *Options) { o.Variants = nil },
		"--rounds":      func(o *Options) { o.Rounds = 0 },
		"--workers":     func(o *Options) { o.Workers = 65 },
		"--blocks":      func(o *Options) { o.Blocks = 0 },
		"--speedup":     func(o *Options) { o.Speedup = 0 },
	} {
		o := DefaultOptions()
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		spoil(&o)
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestOpen: a folder is gone on with by the same series alone; other variants may come.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	program := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	o := DefaultOptions()
	o.Out = filepath.Join(dir, "series")
	found := &programs{gateway: program("g", "one"), engines: program("m", "one")}
	for i, step := range []struct {
		change func()
		ok     bool
	}{
		{func() {}, true},
		{func() { o.Rounds, o.Variants = 9, []string{RemoteShm} }, true},
		{func() { found.index = program("i", "one") }, true},
		{func() { found.index = program("i", "two") }, false},
		{func() { found.index = "" }, true},
		{func() { o.Seed++ }, false},
		{func() { o.Seed--; o.Rows.Last = 99 }, false},
		{func() { o.Rows.Last = 1999; found.gateway = program("g", "two") }, false},
	} {
		step.change()
		if err := open(&o, found); (err == nil) != step.ok {
			t.Errorf("step %d: %v", i, err)
		}
	}
}

func TestKept(t *testing.T) {
	dir := t.TempDir()
	if r, err := kept(dir); r != nil || err != nil {
		t.Fatalf("of nothing: %+v, %v", r, err)
	}
	want := Run{Variant: Chain, Round: 2, OK: 5, Figures: Figures{TTFT50: 7}}
	if err := writeJSON(filepath.Join(dir, fileResult), &want); err != nil {
		t.Fatal(err)
	}
	if r, err := kept(dir); err != nil || *r != want {
		t.Errorf("%+v, %v", r, err)
	}
	if err := os.WriteFile(filepath.Join(dir, fileResult), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := kept(dir); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("of a cut file: %v", err)
	}
}

func TestFigures(t *testing.T) {
	s := &openloop.Summary{TTFT: openloop.Times{P50: 3, P99: 9}, Requests: openloop.Requests{OK: 4}, Cache: openloop.Cache{OverOracle: new(0.5)}, Balance: &openloop.Balance{Requests: 1.5, Computed: 2}}
	s.Goodput.Share = 0.25
	want := Figures{TTFT50: 3, TTFT99: 9, Goodput: 0.25, Hit: 0.5, Balance: 1.5, Computed: 2, CPU: 2, RSS: 3}
	if f := figures(s, proc.Cost{CPU: 8e6, RSS: 3e6}); f != want {
		t.Errorf("%+v, want %+v", f, want)
	}
}

// TestReport: ratios are of runs of one round, and everything that is told is written.
func TestReport(t *testing.T) {
	o := DefaultOptions()
	o.Variants, o.Rounds = []string{Chain, RoundRobin}, 3
	r := &Report{Options: o, Machine: trial.ThisMachine()}
	for round := 1; round <= 3; round++ {
		r.Runs = append(r.Runs,
			&Run{Variant: RoundRobin, Round: round, Valid: true, Figures: Figures{TTFT50: 300 * float64(round), Hit: 0.3}},
			&Run{Variant: Chain, Round: round, Valid: round > 1, Errors: round, Figures: Figures{TTFT50: 100 * float64(round), Hit: 0.99}})
	}
	r.sum()
	dir := t.TempDir()
	if err := r.save(dir); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(dir, fileTable))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| figure | chain | round-robin |", "| TTFT p50, ms | 200 (100 to 300) | 600 (300 to 900) |", "| TTFT p50 | 1 | 3.00 |",
		"| hit/oracle | 0.990 | 0.300 |", "| errors | 6 | 0 |", "| runs in which the client was late | 1 | 0 |",
	} {
		if !bytes.Contains(table, []byte(want)) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	for _, f := range told {
		if b, err := os.ReadFile(filepath.Join(dir, f.file+".svg")); err != nil || !bytes.Contains(b, []byte("<svg")) {
			t.Errorf("%s: %v", f.file, err)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, fileReport))
	var again Report
	if err != nil || json.Unmarshal(b, &again) != nil || len(again.Rows) != len(r.Rows) {
		t.Errorf("%s: %v", fileReport, err)
	}
}

func TestTokenizer(t *testing.T) {
	dir := t.TempDir()
	if err := writeTokenizer(dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, fileWords))
	if all := strings.Fields(string(b)); err != nil || len(all) != words-3 || all[0] != "w3" {
		t.Errorf("%d words, %v", len(all), err)
	}
	var said struct {
		Model struct{ Vocab map[string]int } `json:"model"`
	}
	if b, err = os.ReadFile(filepath.Join(dir, "tokenizer.json")); err != nil || json.Unmarshal(b, &said) != nil || said.Model.Vocab["w2047"] != 2047 {
		t.Errorf("%v, %d", err, said.Model.Vocab["w2047"])
	}
}
