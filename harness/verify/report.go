// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Report counts what was compared and what came of it. Its JSON form is what
// "harness verify --json" prints.
type Report struct {
	Files       int `json:"files"`
	Batches     int `json:"batches"`
	Events      int `json:"events"`
	Memberships int `json:"memberships"` // compared, one per holder, position and batch
	Lookups     int `json:"lookups"`
	Mismatches  int `json:"mismatches"` // batches after which the index differed from the reference

	DecodeTruth DecodeTruth       `json:"decode_truth"`
	EngineTable EngineTable       `json:"engine_table"`
	Credit      Credit            `json:"credit"`
	Dropped     map[string]uint64 `json:"dropped"`

	Unknown int         `json:"-"` // lines of kinds unknown here
	Faults  []Fault     `json:"-"` // the differences, in the order found
	Judged  []Judged    `json:"-"` // every request with truth, of one file
	ByFile  []FileCount `json:"-"`
}

// DecodeTruth counts messages compared with what the engine was asked to publish.
type DecodeTruth struct {
	Messages int `json:"messages"`
	Wrong    int `json:"wrong"`
}

// EngineTable counts comparisons with the engine's own block table.
type EngineTable struct {
	Checks    int            `json:"checks"`
	Exact     int            `json:"exact"`
	Explained int            `json:"explained"`
	Wrong     int            `json:"wrong"`
	Rules     map[string]int `json:"rules"`
}

// Credit counts requests whose predicted tokens were compared with the engine's.
type Credit struct {
	Requests  int            `json:"requests"`
	Exact     int            `json:"exact"`
	Explained int            `json:"explained"`
	Wrong     int            `json:"wrong"`
	Rules     map[string]int `json:"rules"`
}

// Judged is what came of one request.
type Judged struct {
	ID        string
	Predicted int    // tokens, by a lookup when it was sent
	Cached    int    // tokens, by the engine
	Rule      string // that yields Cached; "" where Predicted is it
	OK        bool
}

// FileCount is what one file's own comparisons came to.
type FileCount struct {
	Path   string
	Index  string
	Report *Report
}

// Fault is one difference.
type Fault struct {
	Path     string
	Line     int
	What     string
	Expected string
	Got      string
}

// String returns one line.
func (f Fault) String() string {
	return fmt.Sprintf("%s:%d: %s: expected %s, got %s", f.Path, f.Line, f.What, f.Expected, f.Got)
}

// NewReport returns an empty report.
func NewReport() *Report {
	return &Report{
		EngineTable: EngineTable{Rules: map[string]int{}},
		Credit:      Credit{Rules: map[string]int{}},
		Dropped:     map[string]uint64{},
	}
}

// OK reports whether nothing differed that no rule explains.
func (r *Report) OK() bool {
	return r.Mismatches == 0 && r.DecodeTruth.Wrong == 0 && r.EngineTable.Wrong == 0 && r.Credit.Wrong == 0
}

// add adds one file's report.
func (r *Report) add(o *Report) {
	r.Files += o.Files
	r.Batches += o.Batches
	r.Events += o.Events
	r.Memberships += o.Memberships
	r.Lookups += o.Lookups
	r.Mismatches += o.Mismatches
	r.DecodeTruth.Messages += o.DecodeTruth.Messages
	r.DecodeTruth.Wrong += o.DecodeTruth.Wrong
	r.EngineTable.Checks += o.EngineTable.Checks
	r.EngineTable.Exact += o.EngineTable.Exact
	r.EngineTable.Explained += o.EngineTable.Explained
	r.EngineTable.Wrong += o.EngineTable.Wrong
	r.Credit.Requests += o.Credit.Requests
	r.Credit.Exact += o.Credit.Exact
	r.Credit.Explained += o.Credit.Explained
	r.Credit.Wrong += o.Credit.Wrong
	addRules(r.EngineTable.Rules, o.EngineTable.Rules)
	addRules(r.Credit.Rules, o.Credit.Rules)
	for reason, n := range o.Dropped {
		r.Dropped[reason] += n
	}
	r.Unknown += o.Unknown
	r.Faults = append(r.Faults, o.Faults...)
}

func addRules(to, from map[string]int) {
	for rule, n := range from {
		to[rule] += n
	}
}

// WriteJSON writes r as one object on one line.
func (r *Report) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// WriteText writes r for people: the differences, a line per file, the sums.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Faults {
		fmt.Fprintln(&b, f)
	}
	for _, f := range r.ByFile {
		o := f.Report
		fmt.Fprintf(&b, "%-8s %s: %d batches, %d events; %d memberships and %d lookups compared",
			verdict(o.OK()), f.Path, o.Batches, o.Events, o.Memberships, o.Lookups)
		if n := o.EngineTable.Checks; n > 0 {
			fmt.Fprintf(&b, "; table %d of %d exact", o.EngineTable.Exact, n)
		}
		if n := o.Credit.Requests; n > 0 {
			fmt.Fprintf(&b, "; credit %d of %d exact", o.Credit.Exact, n)
		}
		if n := o.DecodeTruth.Messages; n > 0 {
			fmt.Fprintf(&b, "; %d of %d messages decoded right", n-o.DecodeTruth.Wrong, n)
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "%d files, %d batches, %d events; %d memberships and %d lookups compared with the reference: %d mismatches\n",
		r.Files, r.Batches, r.Events, r.Memberships, r.Lookups, r.Mismatches)
	fmt.Fprintf(&b, "decoding: %d messages with truth, %d wrong\n", r.DecodeTruth.Messages, r.DecodeTruth.Wrong)
	fmt.Fprintf(&b, "engine's table: %d checks, %d exact, %d explained%s, %d wrong\n",
		r.EngineTable.Checks, r.EngineTable.Exact, r.EngineTable.Explained, rules(r.EngineTable.Rules), r.EngineTable.Wrong)
	fmt.Fprintf(&b, "cached tokens: %d requests, %d exact, %d explained%s, %d wrong\n",
		r.Credit.Requests, r.Credit.Exact, r.Credit.Explained, rules(r.Credit.Rules), r.Credit.Wrong)
	fmt.Fprintf(&b, "left out on purpose: %s\n", counted(r.Dropped))
	if r.Unknown > 0 {
		fmt.Fprintf(&b, "%d lines of a kind unknown here were skipped\n", r.Unknown)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "DIFFERS"
}

func rules(m map[string]int) string {
	if len(m) == 0 {
		return ""
	}
	return " (" + counted(m) + ")"
}

// counted lists a map's counts that are not zero, by name.
func counted[N int | uint64](m map[string]N) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if m[k] != 0 {
			out = append(out, fmt.Sprintf("%s %d", k, m[k]))
		}
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}
