// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"kindex/harness/trial"
)

// Drill is one fault and the rule by which it is judged.
type Drill struct {
	Name string
	Rule string
	run  func(ctx context.Context, e *Env) (measured string, err error)
}

// all are the drills, in the order in which they run.
var all = slices.Concat(relayDrills, indexDrills, engineDrills, gatewayDrills)

// groups are drills that go together, by whom they judge.
var groups = []struct {
	name   string
	drills []Drill
}{
	{"relay", relayDrills},
	{"index", slices.Concat(indexDrills, engineDrills)},
	{"gateway", gatewayDrills},
}

// GroupNames returns the names that stand for several drills.
func GroupNames() []string {
	names := []string{"all"}
	for _, g := range groups {
		names = append(names, g.name)
	}
	return names
}

// Names returns the drills' names.
func Names() []string {
	var names []string
	for _, d := range all {
		names = append(names, d.Name)
	}
	return names
}

// Fault is what a drill does, in the first words of its rule.
func (d *Drill) Fault() string {
	fault, _, _ := strings.Cut(d.Rule, ":")
	return fault
}

// WriteList prints a line for each drill.
func WriteList(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i := range all {
		_, _ = fmt.Fprintf(t, "  %s\t%s\n", all[i].Name, all[i].Fault())
	}
	_ = t.Flush()
	_, _ = fmt.Fprintf(w, "\nall runs every drill; %s those that judge it; a fault that index and gateway have\na drill of (engine-killed) runs both, gateway-engine-killed the gateway's alone.\n", trial.OneOf(GroupNames()[1:]))
	_, _ = fmt.Fprintln(w, "\nA rule's times do not count how long a program stood ready to run and had no CPU, up to four times the rule's own.")
}

// ErrUnknown is a name that no drill has.
var ErrUnknown = errors.New("unknown drill")

// Select returns the drills that a name stands for: all of them for "all", those of a
// group, and for a fault every drill of it: of the index, and of the gateway, where its
func Select(name string) ([]Drill, error) {
	if name == "all" {
		return all, nil
	}
	for _, g := range groups {
		if g.name == name {
			return g.drills, nil
		}
	}
	var found []Drill
	for _, d := range all {
		if d.Name == name || d.Name == "gateway-"+name {
			found = append(found, d)
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%w %q: must be %s", ErrUnknown, name, trial.OneOf(append(Names(), GroupNames()...)))
	}
	return found, nil
}

// Options are what every drill is given.
type Options struct {
	Seed uint64 // of what is published
	// Slack multiplies the times that rules allow: 1 is the rule. Only tests, which run
	// beside others on machines of any size, give more.
	Slack    float64
	Progress *trial.Progress
	// Faults of the judge's own eyes, for tests.
	plant plant                      // in what an index holds
	lie   func(status string) string // in what it says of its streams
}

// Result is how one drill went.
type Result struct {
	Name     string  `json:"name"`
	Pass     bool    `json:"pass"`
	Rule     string  `json:"rule"`
	Measured string  `json:"measured"`
	Seconds  float64 `json:"-"`
}

// Report is how all went.
type Report struct {
	Drills []Result `json:"drills"`
	Failed int      `json:"failed"`
}

// Run runs drills one after the other. What they started has ended when it returns,
// also when ctx ends meanwhile.
//
// Errors: ctx's. A broken rule is none: it is in the report.
func Run(ctx context.Context, drills []Drill, o Options) (*Report, error) {
	r := &Report{Drills: []Result{}}
	for i, d := range drills {
		o.Progress.Alwaysf("%d of %d: %s", i+1, len(drills), d.Name)
		began := time.Now()
		e := &Env{o: o, name: d.Name}
		e.count(ctx)
		measured, err := d.run(ctx, e)
		err = errors.Join(err, e.close())
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		res := Result{Name: d.Name, Pass: err == nil, Rule: d.Rule, Measured: measured, Seconds: time.Since(began).Seconds()}
		if err != nil {
			r.Failed++
			res.Measured = strings.ReplaceAll(strings.TrimPrefix(measured+"; "+err.Error(), "; "), "\n", "; ")
		}
		r.Drills = append(r.Drills, res)
	}
	return r, nil
}

// WriteJSON prints r as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// WriteText prints a table.
func (r *Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, d := range r.Drills {
		verdict := "pass"
		if !d.Pass {
			verdict = "FAIL"
		}
		fmt.Fprintf(t, "%s\t%s\trule:\t%s\n\t%.0f s\tmeasured:\t%s\n", d.Name, verdict, d.Rule, d.Seconds, d.Measured)
	}
	fmt.Fprintf(t, "%d drills, %d failed\n", len(r.Drills), r.Failed)
	return t.Flush()
}
