// SPDX-License-Identifier: Apache-2.0

// Before: windows.jsonl. After: an operator.

package drill

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"kindex/harness/trial"
)

// When a series has drifted. What it is held against is the median of its first quarter;
// both the last quarter's median and the slope over the whole series must be beyond. The
// allowances are chosen, not measured: medians of quarters of a steady program swing by
// its collector's pace (memory), and by what else the machine does (times).
const (
	leastDrift   = 12 // windows: a quarter is three
	memoryFactor = 1.15
	memoryMore   = 16e6 // bytes, beside the factor
	liveFactor   = 1.5  // of what the index counts as its own, which engines that begin anew empty
	liveMore     = 256e3
	timeFactor   = 2.0
	timeMore     = 2.0  // ms
	hitLess      = 0.02 // of hit/oracle
)

// Drift is one figure over a series.
type Drift struct {
	Name    string  `json:"name"`
	First   float64 `json:"first_quarter"` // median
	Last    float64 `json:"last_quarter"`
	Slope   float64 `json:"slope"` // a window: the median over all pairs of windows (Theil-Sen)
	Allowed float64 `json:"allowed"`
	Drifted bool    `json:"drifted"`
}

// SoakSummary is how a soak went.
type SoakSummary struct {
	Series     series   `json:"series"`
	Windows    int      `json:"windows"`
	Segments   int      `json:"segments"` // runs that they come from
	Faults     int      `json:"faults"`
	ByKind     counted  `json:"faults_by_kind"`
	Batches    uint64   `json:"batches"`
	Lookups    int      `json:"lookups"`
	HitRatio   float64  `json:"hit_oracle"`
	Looks      int      `json:"looks"`
	Overclaims int      `json:"overclaims"`
	SlowestMS  float64  `json:"slowest_quiet_ms"`
	Wrong      []string `json:"wrong"` // by window, the first of each
	Drifts     []Drift  `json:"drift"`
	Drifted    []string `json:"drifted"` // their names
	Short      bool     `json:"too_short_for_drift"`
	Unweighed  int      `json:"windows_too_few_for_memory,omitempty"` // of the longest run, where memory could not be judged
	OK         bool     `json:"ok"`
}

type counted map[string]int

// summarize judges a series.
func summarize(of series, windows []Window) *SoakSummary {
	s := &SoakSummary{Series: of, Windows: len(windows), ByKind: counted{}, Wrong: []string{}, Drifts: []Drift{}, Drifted: []string{}, Short: len(windows) < leastDrift}
	hit, oracle := 0, 0
	for i := range windows {
		w := &windows[i]
		s.Segments = max(s.Segments, w.Segment)
		s.Faults += len(w.Faults)
		for _, f := range w.Faults {
			s.ByKind[f.Kind]++
		}
		s.Batches += w.Batches
		s.Lookups += w.Lookups
		s.Looks += w.Looks
		s.Overclaims += w.Overclaims
		hit, oracle = hit+w.HitTokens, oracle+w.Oracle
		s.SlowestMS = max(s.SlowestMS, w.QuietMS)
		if len(w.Wrong) > 0 {
			s.Wrong = append(s.Wrong, fmt.Sprintf("window %d: %s", w.Number, w.Wrong[0]))
		}
	}
	if oracle > 0 {
		s.HitRatio = float64(hit) / float64(oracle)
	}
	if !s.Short {
		s.Drifts = drifts(windows)
		if n := len(longestRun(windows)); n < leastDrift {
			s.Unweighed = n
		}
	}
	for i := range s.Drifts {
		if s.Drifts[i].Drifted {
			s.Drifted = append(s.Drifted, s.Drifts[i].Name)
		}
	}
	s.OK = len(windows) > 0 && len(s.Wrong) == 0 && s.Overclaims == 0 && s.Lookups > 0 && len(s.Drifted) == 0
	return s
}

// drifts judges each figure. Memory is of programs that run all along, and of one run at
// a time: an interruption begins them anew, so the longest run speaks.
func drifts(windows []Window) []Drift {
	of := func(in []Window, f func(*Window) float64) []float64 {
		out := make([]float64, len(in))
		for i := range in {
			out[i] = f(&in[i])
		}
		return out
	}
	out := []Drift{
		driftOf("hit/oracle", of(windows, func(w *Window) float64 { return w.HitRatio }), func(first float64) float64 { return first - hitLess }),
	}
	slower := func(first float64) float64 { return timeFactor*first + timeMore }
	out = append(
		out,
		driftOf("lookup p50, ms", of(windows, func(w *Window) float64 { return w.P50 }), slower),
		driftOf("lookup p99, ms", of(windows, func(w *Window) float64 { return w.P99 }), slower),
	)
	run := longestRun(windows)
	if len(run) < leastDrift {
		return out
	}
	bigger := func(first float64) float64 { return memoryFactor*first + memoryMore }
	for _, name := range slices.Sorted(maps.Keys(run[0].RSS)) {
		// The harness keeps the truth of every batch; the other is killed at times.
		if name != "harness" && name != restartedIndex {
			out = append(out, driftOf("RSS of "+name+", bytes", of(run, func(w *Window) float64 { return float64(w.RSS[name]) }), bigger))
		}
	}
	return append(out, driftOf("live bytes of "+steadyIndex, of(run, func(w *Window) float64 { return w.Bytes[steadyName] }), func(first float64) float64 {
		return liveFactor*first + liveMore
	}))
}

// driftOf judges one figure: allowed is how far its last quarter may be from the first.
// It is a floor where it is below the first quarter's median, else a ceiling.
func driftOf(name string, v []float64, allowed func(first float64) float64) Drift {
	quarter := len(v) / 4
	d := Drift{Name: name, First: trial.Median(v[:quarter]), Last: trial.Median(v[len(v)-quarter:]), Slope: slope(v)}
	d.Allowed = allowed(d.First)
	room := d.Allowed - d.First
	// From the middle of the first quarter to that of the last.
	moved := d.Slope * float64(len(v)-quarter)
	if room < 0 {
		d.Drifted = d.Last < d.Allowed && moved < room
	} else {
		d.Drifted = d.Last > d.Allowed && moved > room
	}
	return d
}

// slope is the median over the slopes of all pairs: one wild window moves it little.
func slope(v []float64) float64 {
	var all []float64
	step := max(1, len(v)/500) // a few hundred windows say as much as thousands
	for i := 0; i < len(v); i += step {
		for j := i + step; j < len(v); j += step {
			all = append(all, (v[j]-v[i])/float64(j-i))
		}
	}
	return trial.Median(all)
}

// longestRun returns the windows of the longest segment.
func longestRun(windows []Window) []Window {
	var best []Window
	for from := 0; from < len(windows); {
		to := from
		for to < len(windows) && windows[to].Segment == windows[from].Segment {
			to++
		}
		if to-from > len(best) {
			best = windows[from:to]
		}
		from = to
	}
	return best
}

// WriteJSON prints s as one JSON object.
func (s *SoakSummary) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

// WriteText prints s for reading.
func (s *SoakSummary) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "windows\t%d of %v s, in %d runs\n", s.Windows, s.Series.Window, s.Segments)
	fmt.Fprintf(t, "published\t%d batches of %d engines\n", s.Batches, s.Series.Workers)
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(s.ByKind)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", s.ByKind[k], k))
	}
	fmt.Fprintf(t, "faults\t%d: %s\n", s.Faults, strings.Join(kinds, ", "))
	fmt.Fprintf(t, "hit/oracle\t%.4f in %d lookups under load\n", s.HitRatio, s.Lookups)
	fmt.Fprintf(t, "looks\t%d under load, %d of streams that are active and not exact\n", s.Looks, s.Overclaims)
	fmt.Fprintf(t, "exact\tafter %.0f ms of silence at most\n", s.SlowestMS)
	for _, d := range s.Drifts {
		verdict := "steady"
		if d.Drifted {
			verdict = "DRIFTED"
		}
		fmt.Fprintf(t, "%s\t%s: %.6g in the first quarter, %.6g in the last, %+.3g a window; allowed %.6g\n", d.Name, verdict, d.First, d.Last, d.Slope, d.Allowed)
	}
	if s.Short {
		fmt.Fprintf(t, "drift\tnot judged: %d windows, %d are needed\n", s.Windows, leastDrift)
	}
	if s.Unweighed > 0 {
		fmt.Fprintf(t, "RSS, live bytes\tnot judged: the longest run is of %d windows, %d are needed\n", s.Unweighed, leastDrift)
	}
	if !s.Short {
		fmt.Fprintf(t, "drifted\t%s\n", cmp.Or(strings.Join(s.Drifted, "; "), "nothing"))
	}
	for _, what := range s.Wrong {
		fmt.Fprintf(t, "WRONG\t%s\n", what)
	}
	verdict := "ok"
	if !s.OK {
		verdict = "FAIL"
	}
	fmt.Fprintf(t, "verdict\t%s\n", verdict)
	return t.Flush()
}
