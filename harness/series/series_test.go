// SPDX-License-Identifier: Apache-2.0

package series

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kindex/harness/mooncake"
	"kindex/harness/peers"
	"kindex/harness/trial"
)

// fake is a series of two arms whose figures are known.
type fake struct {
	plan    Plan
	ran     []string
	foreign func(n int) float64 // of the n-th trial
	fail    int                 // the trial, from 1, that fails
}

func newFake(rounds int) *fake {
	return &fake{
		plan: Plan{
			Corpus: "small.kvc", Seed: 9, Arms: []string{"kindex", "crtc"}, Modes: []string{"bare", "write", "contend"},
			Settings: map[string]string{"lanes": "1"}, Rounds: rounds, MaxForeign: 0.5,
		},
		foreign: func(int) float64 { return 0.1 },
	}
}

var errPlanted = errors.New("planted")

func (f *fake) arms() []Arm {
	arm := func(name string, only []string, scale float64) Arm {
		return Arm{Name: name, Only: only, Measure: func(_ context.Context, mode string) (Figures, json.RawMessage, trial.Ran, error) {
			f.ran = append(f.ran, name+" "+mode)
			n := len(f.ran)
			if n == f.fail {
				return nil, nil, trial.Ran{}, errPlanted
			}
			fig := Figures{"cpu_ns": scale * float64(100+n%3)}
			if mode == "contend" {
				fig = Figures{"p50_ns": scale, "p99_ns": 3 * scale, "lookup_cpu_ns": scale, "write_cpu_ns": scale}
			}
			return fig, json.RawMessage(`{"versions":{"crate":"1.2"}}`), trial.Ran{Wall: 1, CPU: 2, Foreign: f.foreign(n)}, nil
		}}
	}
	return []Arm{arm("kindex", nil, 1), arm("crtc", peerModes, 10)}
}

func (f *fake) run(t *testing.T, dir string) ([]Trial, error) {
	t.Helper()
	return Run(t.Context(), dir, &f.plan, f.arms(), trial.NewProgress(nil, "x"))
}

// TestResume stops a series in its middle, cuts the line that was being written, and
// goes on: no trial is run twice, and the order is that of a series that never stopped.
func TestResume(t *testing.T) {
	whole := newFake(3)
	want, err := whole.run(t, t.TempDir())
	if err != nil || len(want) != 15 { // 3 rounds of 3 + 2: the peer has no bare mode
		t.Fatalf("%d trials, %v, want 15", len(want), err)
	}
	if slices.Equal(whole.ran[:5], whole.ran[5:10]) && slices.Equal(whole.ran[5:10], whole.ran[10:]) {
		t.Errorf("every round has the same order: %v", whole.ran)
	}
	dir := t.TempDir()
	broken := newFake(3)
	broken.fail = 8
	if _, err := broken.run(t, dir); !errors.Is(err, errPlanted) {
		t.Fatalf("%v, want the planted failure", err)
	}
	name := filepath.Join(dir, trialsFile)
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, append(data, `{"round":2,"ar`...), 0o600); err != nil {
		t.Fatal(err)
	}
	rest := newFake(3)
	got, err := rest.run(t, dir)
	if err != nil || len(got) != 15 {
		t.Fatalf("%d trials, %v, want 15", len(got), err)
	}
	if all := slices.Concat(broken.ran[:7], rest.ran); !slices.Equal(all, whole.ran) {
		t.Errorf("ran %v, want %v", all, whole.ran)
	}
	more := newFake(4)
	if got, err = more.run(t, dir); err != nil || len(got) != 20 || len(more.ran) != 5 {
		t.Errorf("a fourth round: %d trials, %d of them new, %v, want 20 and 5", len(got), len(more.ran), err)
	}
	other := newFake(3)
	other.plan.Settings["lanes"] = "2"
	if _, err := other.run(t, dir); err == nil || !strings.Contains(err.Error(), "another series") {
		t.Errorf("other settings: %v", err)
	}
	if err := os.WriteFile(name, []byte("{}\nnonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := rest.run(t, dir); err == nil || !strings.Contains(err.Error(), "trials.jsonl:2:") {
		t.Errorf("a garbled line: %v", err)
	}
}

// TestDiscard: trials on a busy machine are kept apart, repeated, and not for ever.
func TestDiscard(t *testing.T) {
	f := newFake(1)
	f.foreign = func(n int) float64 { return map[bool]float64{true: 0.7, false: 0.2}[n == 2 || n == 3] }
	trials, err := f.run(t, t.TempDir())
	if err != nil || len(trials) != 7 || !trials[1].Discarded || !trials[2].Discarded || trials[3].Discarded || trials[3].Attempt != 3 {
		t.Fatalf("%+v, %v", trials, err)
	}
	r := NewReport(&f.plan, trials)
	if r.Kept != 5 || r.Discarded["kindex"]+r.Discarded["crtc"] != 2 {
		t.Errorf("%d kept, %v discarded, want 5 and 2", r.Kept, r.Discarded)
	}
	busy := newFake(1)
	busy.foreign = func(int) float64 { return 1 }
	dir := t.TempDir()
	trials, err = busy.run(t, dir)
	if err == nil || len(trials) != trial.MaxDiscarded || !strings.Contains(err.Error(), "discarded 20 times") {
		t.Errorf("%d trials, %v, want an end after %d", len(trials), err, trial.MaxDiscarded)
	}
	busy.foreign = func(int) float64 { return 0 }
	if trials, err = busy.run(t, dir); err != nil || len(trials) != trial.MaxDiscarded+5 || trials[trial.MaxDiscarded].Attempt != trial.MaxDiscarded+1 {
		t.Errorf("resumed on a free machine: %d trials, %v", len(trials), err)
	}
}

// TestReport pins ratios of known figures, and what is written.
func TestReport(t *testing.T) {
	f := newFake(5)
	dir := t.TempDir()
	trials, err := f.run(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	r := NewReport(&f.plan, trials)
	r.Notes = []string{"A note."}
	i := slices.IndexFunc(r.Rows, func(row Row) bool { return row.Name == "p99_ns" && row.Mode == "contend" })
	c := r.Rows[i].Cells
	if c["kindex"].Median != 3 || c["kindex"].Ratio != nil || c["crtc"].Median != 30 || c["crtc"].Ratio.Median != 0.1 || c["crtc"].Ratio.Low != 0.1 || c["crtc"].N != 5 {
		t.Errorf("%+v, %+v", c["kindex"], c["crtc"])
	}
	if again := NewReport(&f.plan, trials); again.Rows[0].Cells["kindex"].Estimate != r.Rows[0].Cells["kindex"].Estimate {
		t.Error("the same trials, another estimate")
	}
	if err := r.Save(dir); err != nil {
		t.Fatal(err)
	}
	if err := r.Plot(dir, trials); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(dir, "table.md"))
	if err != nil || !strings.Contains(string(table), "| lookup under a flat-out writer: p99, ns | 3.00 (3.00 to 3.00) | 30.0 (30.0 to 30.0) [0.1, 0.1 to 0.1] |") || !strings.Contains(string(table), "A note.") || !strings.Contains(string(table), "Peers: crate 1.2.") {
		t.Errorf("%v:\n%s", err, table)
	}
	for _, mode := range []string{"write", "contend"} {
		svg, err := os.ReadFile(filepath.Join(dir, mode+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(svg), "crtc") || !strings.Contains(string(svg), "small.kvc") {
			t.Errorf("%s.svg lacks its legend or title", mode)
		}
		d := xml.NewDecoder(bytes.NewReader(svg))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s.svg: %v", mode, err)
			}
		}
	}
	var back Report
	js, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil || json.Unmarshal(js, &back) != nil || len(back.Rows) != len(r.Rows) {
		t.Errorf("report.json: %v", err)
	}
}

// TestFigures reads a captured line of the peers' tool: rows that both have.
func TestFigures(t *testing.T) {
	for mode, want := range map[string][]string{
		"write":   {"cpu_ns"},
		"lookup":  {"full_cpu_bare_ns", "full_cpu_ns", "full_p50_ns", "full_p99_ns", "half_cpu_bare_ns", "half_cpu_ns", "half_p50_ns", "half_p99_ns"},
		"contend": {"lookup_cpu_ns", "p50_ns", "p99_ns", "write_cpu_ns"},
		"memory":  {"per_block", "per_membership", "swept_per_block", "swept_per_membership"},
	} {
		line, err := os.ReadFile("../peers/testdata/smg-chain." + mode + ".json")
		if err != nil {
			t.Fatal(err)
		}
		o, err := peers.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		f := peerFigures(mode, o)
		for _, name := range want {
			known := slices.ContainsFunc(figures, func(x struct{ mode, name, text string }) bool { return x.mode == mode && x.name == name })
			if f[name] <= 0 || !known {
				t.Errorf("%s: %s is %v, a row: %v", mode, name, f[name], known)
			}
		}
		if len(f) != len(want) {
			t.Errorf("%s: %v, want %v", mode, f, want)
		}
	}
	if inverse(1e8) != 10 || inverse(0) != 0 {
		t.Error("inverse")
	}
	if err := complete("bare", &mooncake.Result{}); err == nil {
		t.Error("a trial without its figures is taken")
	}
}

// TestStoreLocked refuses a second series in a folder that one is writing to, and takes
// over what a killed one left.
func TestStoreLocked(t *testing.T) {
	dir, p := t.TempDir(), &Plan{Seed: 1}
	s, err := openStore(dir, p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openStore(dir, p); err == nil || !strings.Contains(err.Error(), "in use by process") {
		t.Errorf("a second series in the folder: %v", err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, lockFile), []byte("4194999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = openStore(dir, p); err != nil {
		t.Fatalf("after a killed series: %v", err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}
