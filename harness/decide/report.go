// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"kindex/harness/trial"
)

// What is asked of a decision with an embedded index, p99.
const (
	goalSmall  = 10_000 // ns, up to smallFleet workers
	goalLarge  = 20_000
	smallFleet = 128
	largeFleet = 1_024
	goalOfArm  = ArmChain
)

// Report is what all rounds showed.
type Report struct {
	Command string            `json:"command"`
	Machine trial.Machine     `json:"machine"`
	Options Options           `json:"options"`
	Content string            `json:"content"`
	Blocks  int               `json:"blocks"` // held by all workers
	Matches [3]int            `json:"matches_p50_p90_max"`
	Left    map[string]string `json:"left_out,omitempty"` // arms, with the reason
	Rows    []Row             `json:"rows"`
	Goal    *Goal             `json:"goal,omitempty"`
	Trials  []*Trial          `json:"trials"`
}

// Row is one arm over all rounds. Times are nanoseconds.
type Row struct {
	Arm     string       `json:"arm"`
	P50     trial.Spread `json:"p50_ns"`
	P99     trial.Spread `json:"p99_ns"`
	P999    trial.Spread `json:"p999_ns"`
	Lookup  trial.Spread `json:"lookup_p99_ns"`
	Choice  trial.Spread `json:"choice_p99_ns"`
	CPU     trial.Spread `json:"cpu_ns"`
	Dropped trial.Spread `json:"dropped_share"`
	Late    trial.Spread `json:"late_share"`
}

// Goal is the figure that was asked for.
type Goal struct {
	Figure string  `json:"figure"`
	Want   float64 `json:"want_below_ns"`
	Got    float64 `json:"got_ns"`
	Met    bool    `json:"met"`
}

func newReport(o *Options, w *world) *Report {
	var n []int
	for i := range w.questions {
		n = append(n, len(w.questions[i].depths))
	}
	slices.Sort(n)
	return &Report{
		Command: "decide", Machine: trial.ThisMachine(), Options: *o, Blocks: w.blocks, Left: map[string]string{},
		Matches: [3]int{trial.Quantile(n, 0.5), trial.Quantile(n, 0.9), n[len(n)-1]},
		Content: fmt.Sprintf("%d rows of the conversation trace over %d workers", o.Rows, o.Workers),
	}
}

func (r *Report) sum() {
	for _, name := range r.Options.Arms {
		var of []*Trial
		for _, t := range r.Trials {
			if t.Arm == name {
				of = append(of, t)
			}
		}
		if len(of) == 0 {
			continue
		}
		share := func(n func(*Trial) int) trial.Spread {
			return trial.SpreadOf(of, func(t *Trial) float64 { return float64(n(t)) / float64(t.Decisions) })
		}
		r.Rows = append(r.Rows, Row{
			Arm:     name,
			P50:     trial.SpreadOf(of, func(t *Trial) float64 { return float64(t.Total.P50) }),
			P99:     trial.SpreadOf(of, func(t *Trial) float64 { return float64(t.Total.P99) }),
			P999:    trial.SpreadOf(of, func(t *Trial) float64 { return float64(t.Total.P999) }),
			Lookup:  trial.SpreadOf(of, func(t *Trial) float64 { return float64(t.Lookup.P99) }),
			Choice:  trial.SpreadOf(of, func(t *Trial) float64 { return float64(t.Choice.P99) }),
			CPU:     trial.SpreadOf(of, func(t *Trial) float64 { return t.CPU }),
			Dropped: share(func(t *Trial) int { return t.Dropped }),
			Late:    share(func(t *Trial) int { return t.Late }),
		})
		if name == goalOfArm && r.Options.Workers <= largeFleet {
			g := &Goal{Figure: fmt.Sprintf("decision at %d workers with the embedded index, p99, median of the rounds", r.Options.Workers), Want: goalSmall}
			if r.Options.Workers > smallFleet {
				g.Want = goalLarge
			}
			g.Got = r.Rows[len(r.Rows)-1].P99.Median
			g.Met = g.Got < g.Want
			r.Goal = g
		}
	}
}

// WriteJSON writes r as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes r for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s: %d blocks held; holders of a prompt: p50 %d, p90 %d, at most %d\n", r.Machine, r.Content, r.Blocks, r.Matches[0], r.Matches[1], r.Matches[2])
	fmt.Fprintf(&b, "%s at %d decisions a second, %d rounds of %s; median of the rounds (least to most), us\n\n", r.Options.Policy, r.Options.Rate, r.Options.Rounds, r.Options.Trial)
	fmt.Fprintf(&b, "| %s | p50 | p99 | p999 | lookup p99 | choice p99 | CPU | dropped, %% | late, %% |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n", "index")
	for _, x := range r.Rows {
		fmt.Fprintf(&b, "| %s |", x.Arm)
		for _, s := range []trial.Spread{x.P50, x.P99, x.P999, x.Lookup, x.Choice, x.CPU} {
			fmt.Fprintf(&b, " %s |", scaled(s, 1e-3).Text(2))
		}
		fmt.Fprintf(&b, " %s | %s |\n", scaled(x.Dropped, 100).Text(2), scaled(x.Late, 100).Text(2))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Left)) {
		fmt.Fprintf(&b, "%s is left out: %s\n", name, r.Left[name])
	}
	if g := r.Goal; g != nil {
		found := "reached"
		if !g.Met {
			found = "not reached"
		}
		fmt.Fprintf(&b, "\n%s: %.2f us, under %.0f asked for: %s\n", g.Figure, g.Got/1e3, g.Want/1e3, found)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func scaled(s trial.Spread, by float64) trial.Spread {
	return trial.Spread{Median: s.Median * by, Min: s.Min * by, Max: s.Max * by}
}

// String is a trial in one line.
func (t *Trial) String() string {
	return fmt.Sprintf("p50 %.2f us, p99 %.2f us, dropped %d of %d", float64(t.Total.P50)/1e3, float64(t.Total.P99)/1e3, t.Dropped, t.Decisions)
}
