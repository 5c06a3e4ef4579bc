// SPDX-License-Identifier: Apache-2.0

package lookupbench

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"kindex/harness/trial"
)

// What is asked of the figures.
const (
	goalRatio  = 2.0     // requests a CPU second over HTTP, ours to the peer's
	goalPinned = 1_000.0 // ns of a round trip over shared memory, p50
	goalShm    = 6_000.0
)

// Report is what all rounds showed. The common fields are of lookups in process, where
// these were measured; Ops and Exact are of all arms.
type Report struct {
	trial.Report
	Machine     trial.Machine     `json:"machine"`
	Options     Options           `json:"options"`
	Memberships int               `json:"memberships"`
	Left        map[string]string `json:"left_out,omitempty"` // arms, with the reason
	Discarded   int               `json:"discarded"`
	Foreign     trial.Spread      `json:"foreign_cpus"` // of the trials that were kept
	Rows        []Row             `json:"rows"`
	Ratios      []Ratio           `json:"ratios"`
	Goals       []Goal            `json:"goals"`
	Trials      []*Trial          `json:"trials"`
}

// Row is one arm over all rounds. Times are nanoseconds.
type Row struct {
	Arm    string       `json:"arm"`
	Again  bool         `json:"again,omitempty"`
	Trials int          `json:"trials"`
	P50    trial.Spread `json:"p50_ns"`
	P99    trial.Spread `json:"p99_ns"`
	Client trial.Spread `json:"client_cpu_ns"`
	Server trial.Spread `json:"server_cpu_ns"`
	// PerCPU are lookups a second of the host's CPU; in process, of this process's.
	PerCPU trial.Spread `json:"lookups_per_cpu_s"`
	Rate   trial.Spread `json:"lookups_per_s"`
}

// Ratio holds one arm's requests a CPU second against another's, with the middle 95 % of
// a bootstrap.
type Ratio struct {
	Arm    string         `json:"arm"`
	Beside string         `json:"beside"`
	Again  bool           `json:"again,omitempty"` // the control: the arm beside itself
	Server trial.Estimate `json:"server"`          // of the hosts' CPU alone
	Both   trial.Estimate `json:"both"`            // of the hosts' and the clients'
}

// Goal is one figure that was asked for.
type Goal struct {
	Figure string  `json:"figure"`
	Want   string  `json:"want"`
	Got    float64 `json:"got"`
	Met    bool    `json:"met"`
}

func newReport(o *Options) *Report {
	r := &Report{Machine: trial.ThisMachine(), Options: *o}
	r.Command, r.Seed = "lookupbench", o.Seed
	r.Corpus = fmt.Sprintf("%d memberships of %d instances, %d holders a prompt, prompts of %d blocks of %d tokens", o.Memberships, o.Instances, holdersEach, promptBlocks, blockTokens)
	return r
}

// of returns the kept trials of an arm.
func (r *Report) of(arm string, again bool) (of []*Trial) {
	for _, t := range r.Trials {
		if t.Arm == arm && t.Again == again && !t.Discarded {
			of = append(of, t)
		}
	}
	return of
}

// sum fills in what the trials mean.
func (r *Report) sum() {
	r.Exact = &trial.Exact{}
	var kept []*Trial
	for _, t := range r.Trials {
		if t.Arm != ArmWord {
			r.Exact.Lookups += t.Lookups
			r.Exact.Wrong += t.Wrong
		}
		if t.Discarded {
			r.Discarded++
			continue
		}
		if kept = append(kept, t); t.Arm == ArmWord {
			continue // no lookups
		}
		if t.Latency != nil {
			r.Ops += int64(t.Latency.Samples)
		}
		r.Wall += t.Wall
	}
	r.BlockOps = r.Ops * promptBlocks
	r.Foreign = trial.SpreadOf(kept, func(t *Trial) float64 { return t.Foreign })
	for _, arm := range r.Options.Arms {
		for _, again := range []bool{false, true} {
			if of := r.of(arm, again); len(of) > 0 {
				r.Rows = append(r.Rows, rowOf(arm, again, of))
			}
		}
	}
	if of := r.of(ArmProcess, false); len(of) > 0 {
		var reports []*trial.Report
		for _, t := range of {
			reports = append(reports, &trial.Report{Lookup: t.Latency, CPUPerLookup: t.ClientCPU, CPUPerBlockOp: t.ClientCPU / promptBlocks, BlockOpsPerS: promptBlocks * 1e9 / t.ClientCPU})
		}
		s := trial.Summarize(reports)
		r.Lookup, r.CPUPerLookup, r.CPUPerBlockOp, r.BlockOpsPerS = s.Lookup, s.CPUPerLookup, s.CPUPerBlockOp, s.BlockOpsPerS
	}
	r.ratios()
	r.goals()
}

func rowOf(arm string, again bool, of []*Trial) Row {
	return Row{
		Arm: arm, Again: again, Trials: len(of),
		P50:    trial.SpreadOf(of, func(t *Trial) float64 { return float64(t.latency().P50) }),
		P99:    trial.SpreadOf(of, func(t *Trial) float64 { return float64(t.latency().P99) }),
		Client: trial.SpreadOf(of, func(t *Trial) float64 { return t.ClientCPU }),
		Server: trial.SpreadOf(of, func(t *Trial) float64 { return t.ServerCPU }),
		PerCPU: trial.SpreadOf(of, func(t *Trial) float64 { return perSecond(t.host()) }),
		Rate:   trial.SpreadOf(of, func(t *Trial) float64 { return float64(t.latency().Samples) / max(t.Wall, 1e-9) }),
	}
}

// latency is never nil.
func (t *Trial) latency() *trial.Latency {
	if t.Latency == nil {
		return &trial.Latency{}
	}
	return t.Latency
}

// host returns the CPU time of a lookup of whoever answers.
func (t *Trial) host() float64 {
	if t.Arm == ArmProcess || t.Arm == ArmWord {
		return t.ClientCPU
	}
	return t.ServerCPU
}

func perSecond(ns float64) float64 {
	if ns <= 0 {
		return 0
	}
	return 1e9 / ns
}

// pairs are arms that are held against one another.
var pairs = [][2]string{{ArmHash, ArmDynamo}, {ArmHashMany, ArmDynamoMany}, {ArmTokens, ArmDynamoText}}

func (r *Report) ratios() {
	add := func(arm, beside string, again bool) {
		a, b := r.of(arm, again), r.of(beside, false)
		if len(a) == 0 || len(b) == 0 {
			return
		}
		of := func(ts []*Trial, f func(*Trial) float64) (v []float64) {
			for _, t := range ts {
				v = append(v, f(t))
			}
			return v
		}
		both := func(t *Trial) float64 { return t.ClientCPU + t.ServerCPU }
		r.Ratios = append(r.Ratios, Ratio{
			Arm: arm, Beside: beside, Again: again,
			// Requests a second of CPU: the other's time to ours.
			Server: trial.BootstrapRatio(of(b, (*Trial).host), of(a, (*Trial).host), r.Seed),
			Both:   trial.BootstrapRatio(of(b, both), of(a, both), r.Seed),
		})
	}
	for _, p := range pairs {
		add(p[0], p[1], false)
	}
	if r.Options.Control != "" {
		add(r.Options.Control, r.Options.Control, true)
	}
}

func (r *Report) goals() {
	for _, x := range r.Ratios {
		if !x.Again && x.Arm != ArmTokens {
			r.Goals = append(r.Goals, Goal{
				Figure: x.Arm + ": requests a CPU second of the host, to " + x.Beside + "'s", Want: "at least 2", Got: x.Server.Median, Met: x.Server.Median >= goalRatio,
			})
		}
	}
	for _, row := range r.Rows {
		switch {
		case row.Again:
		case row.Arm == ArmShmPinned:
			r.Goals = append(r.Goals, Goal{Figure: row.Arm + ": p50, ns", Want: "under 1,000", Got: row.P50.Median, Met: row.P50.Median < goalPinned})
		case row.Arm == ArmShm:
			r.Goals = append(r.Goals, Goal{Figure: row.Arm + ": p50, ns", Want: "under 6,000", Got: row.P50.Median, Met: row.P50.Median < goalShm})
		}
	}
}

// last describes the last trial in a few words.
func (r *Report) last() string {
	if len(r.Trials) == 0 {
		return "nothing yet"
	}
	t := r.Trials[len(r.Trials)-1]
	return fmt.Sprintf("%s: p50 %.2f us, CPU %.2f us here and %.2f us there, %d wrong, %.2f foreign CPUs",
		t.Arm, float64(t.latency().P50)/1e3, t.ClientCPU/1e3, t.ServerCPU/1e3, t.Wrong, t.Foreign)
}

// WriteJSON prints r as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText prints a table of medians, with what a figure was at least and at most.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	o := &r.Options
	fmt.Fprintf(&b, "%s\n\n%s (%d there are); %d questions, seed %d; %d rounds of %v an arm; %d trials discarded for more than %g foreign CPUs, those kept had %s\n",
		r.Machine, r.Corpus, r.Memberships, o.Questions, o.Seed, o.Rounds, o.Trial, r.Discarded, o.MaxForeign, r.Foreign.Text(2))
	for _, arm := range o.Arms {
		if why := r.Left[arm]; why != "" {
			fmt.Fprintf(&b, "%s is left out: %s\n", arm, why)
		}
	}
	fmt.Fprintf(&b, "%d lookups, %d wrong\n\n", r.Exact.Lookups, r.Exact.Wrong)
	b.WriteString("| way | p50, us | p99, us | CPU of a lookup, us: client | host | lookups a CPU second of the host | lookups a second |\n")
	b.WriteString("| --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range r.Rows {
		row := &r.Rows[i]
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", label(row.Arm, row.Again, o),
			micros(row.P50), micros(row.P99), micros(row.Client), map[bool]string{true: "-", false: micros(row.Server)}[row.Arm == ArmProcess || row.Arm == ArmWord],
			row.PerCPU.Text(0), row.Rate.Text(0))
	}
	if len(r.Ratios) > 0 {
		b.WriteString("\n| requests a CPU second, ratio | of the host | of host and client |\n| --- | --- | --- |\n")
	}
	for _, x := range r.Ratios {
		fmt.Fprintf(&b, "| %s / %s | %s | %s |\n", label(x.Arm, x.Again, o), x.Beside, ratioText(x.Server), ratioText(x.Both))
	}
	if len(r.Goals) > 0 {
		b.WriteString("\n| asked for | found |\n| --- | --- |\n")
	}
	for _, g := range r.Goals {
		fmt.Fprintf(&b, "| %s %s | %.3g, %s |\n", g.Figure, g.Want, g.Got, map[bool]string{true: "reached", false: "**not reached**"}[g.Met])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// label names an arm in tables and plots.
func label(arm string, again bool, o *Options) string {
	switch arm {
	case ArmStreamMany:
		arm = fmt.Sprintf("%s (%d)", arm, o.InFlight)
	case ArmHashMany, ArmDynamoMany:
		arm = fmt.Sprintf("%s (%d)", arm, o.Connections)
	}
	if again {
		arm += ", again"
	}
	return arm
}

func micros(s trial.Spread) string {
	us := trial.Spread{Median: s.Median / 1e3, Min: s.Min / 1e3, Max: s.Max / 1e3}
	if us.Median >= 20 {
		return us.Text(1)
	}
	return us.Text(2)
}

func ratioText(e trial.Estimate) string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", e.Median, e.Low, e.High)
}
