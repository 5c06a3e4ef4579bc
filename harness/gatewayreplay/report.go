// SPDX-License-Identifier: Apache-2.0

package gatewayreplay

import (
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"kindex/harness/trial"
)

// Report is what all runs showed.
type Report struct {
	Machine trial.Machine `json:"machine"`
	Options Options       `json:"options"`
	Runs    []*Run        `json:"runs"`
	Rows    []Row         `json:"rows"`
}

// Row is one figure of one variant over all rounds.
type Row struct {
	Figure  string        `json:"figure"`
	Variant string        `json:"variant"`
	Spread  trial.Spread  `json:"spread"`
	OfFirst *trial.Spread `json:"over_first_variant,omitempty"` // of runs of one round
}

// figure is one that is told.
type figure struct {
	name, file, unit string
	decimals         int
	of               func(*Figures) float64
}

var told = []figure{
	{"TTFT p50", "ttft-p50", "ms", 0, func(f *Figures) float64 { return f.TTFT50 }},
	{"TTFT p99", "ttft-p99", "ms", 0, func(f *Figures) float64 { return f.TTFT99 }},
	{"goodput", "goodput", "share within both targets", 3, func(f *Figures) float64 { return f.Goodput }},
	{"hit/oracle", "hit", "", 3, func(f *Figures) float64 { return f.Hit }},
	{"hit/best at arrival", "hit-best", "", 3, func(f *Figures) float64 { return f.Best }},
	{"requests, max/mean", "balance", "", 2, func(f *Figures) float64 { return f.Balance }},
	{"computed tokens, max/mean", "computed", "", 2, func(f *Figures) float64 { return f.Computed }},
	{"gateway CPU a request", "cpu", "ms", 2, func(f *Figures) float64 { return f.CPU }},
	{"gateway resident", "rss", "MB", 0, func(f *Figures) float64 { return f.RSS }},
}

// of returns a variant's runs, by round.
func (r *Report) of(variant string) (runs []*Run) {
	for round := 1; round <= r.Options.Rounds; round++ {
		for _, x := range r.Runs {
			if x.Variant == variant && x.Round == round {
				runs = append(runs, x)
			}
		}
	}
	return runs
}

func (r *Report) sum() {
	r.Rows = nil
	first := r.of(r.Options.Variants[0])
	for _, f := range told {
		for i, variant := range r.Options.Variants {
			runs := r.of(variant)
			row := Row{Figure: f.name, Variant: variant, Spread: trial.SpreadOf(runs, func(x *Run) float64 { return f.of(&x.Figures) })}
			if i > 0 {
				var ratios []float64
				for k := range min(len(runs), len(first)) {
					if d := f.of(&first[k].Figures); d != 0 {
						ratios = append(ratios, f.of(&runs[k].Figures)/d)
					}
				}
				row.OfFirst = new(trial.SpreadOf(ratios, func(x float64) float64 { return x }))
			}
			r.Rows = append(r.Rows, row)
		}
	}
}

// row returns a figure of a variant.
func (r *Report) row(figure, variant string) *Row {
	for i := range r.Rows {
		if r.Rows[i].Figure == figure && r.Rows[i].Variant == variant {
			return &r.Rows[i]
		}
	}
	return nil
}

// WriteJSON prints r as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText prints a table of medians with what a figure was at least and at most, and
// one of ratios to the first variant.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	o := &r.Options
	fmt.Fprintf(&b, "%s\n\nrows %s at %g times their speed, %d mock engines of %d blocks of %d tokens, %d rounds\n\n", r.Machine, o.Rows.String(), o.Speedup, o.Workers, o.Blocks, block, o.Rounds)
	head := func(first string) {
		b.WriteString("| " + first + " |")
		for _, v := range o.Variants {
			b.WriteString(" " + v + " |")
		}
		b.WriteString("\n|" + strings.Repeat(" --- |", 1+len(o.Variants)) + "\n")
	}
	head("figure")
	for _, f := range told {
		b.WriteString("| " + strings.TrimSuffix(f.name+", "+f.unit, ", ") + " |")
		for _, v := range o.Variants {
			b.WriteString(" " + r.row(f.name, v).Spread.Text(f.decimals) + " |")
		}
		b.WriteByte('\n')
	}
	for _, c := range []struct {
		name string
		of   func(*Run) int
	}{{"errors", func(x *Run) int { return x.Errors }}, {"answers that tell other cached tokens", func(x *Run) int { return x.Differs }}, {"runs in which the client was late", func(x *Run) int { return late(x) }}} {
		b.WriteString("| " + c.name + " |")
		for _, v := range o.Variants {
			n := 0
			for _, x := range r.of(v) {
				n += c.of(x)
			}
			fmt.Fprintf(&b, " %d |", n)
		}
		b.WriteByte('\n')
	}
	if len(o.Variants) > 1 {
		b.WriteByte('\n')
		head("over " + o.Variants[0] + ", of one round")
		for _, f := range told {
			b.WriteString("| " + f.name + " |")
			for _, v := range o.Variants {
				text := "1"
				if of := r.row(f.name, v).OfFirst; of != nil {
					text = of.Text(2)
				}
				b.WriteString(" " + text + " |")
			}
			b.WriteByte('\n')
		}
	}
	foreign := trial.SpreadOf(r.Runs, func(x *Run) float64 { return x.Foreign })
	fmt.Fprintf(&b, "\nothers kept %s CPUs busy\n", foreign.Text(2))
	_, err := io.WriteString(w, b.String())
	return err
}

func late(x *Run) int {
	if x.Valid {
		return 0
	}
	return 1
}

// save writes the report's files.
func (r *Report) save(dir string) error {
	var table strings.Builder
	err := errors.Join(writeJSON(filepath.Join(dir, fileReport), r), r.WriteText(&table))
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, fileTable), []byte(table.String()), 0o644)) //nolint:gosec // results are for everybody
	for _, f := range told {
		err = errors.Join(err, r.plot(filepath.Join(dir, f.file+".svg"), &f))
	}
	return err
}

// plot draws one figure: every run as a dot, medians as boxes.
func (r *Report) plot(name string, f *figure) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s, rows %s", f.name, r.Options.Rows.String())
	p.Y.Label.Text, p.Y.Min = f.unit, 0
	p.Add(plotter.NewGrid())
	p.NominalX(r.Options.Variants...)
	var dots, medians plotter.XYs
	for i, v := range r.Options.Variants {
		for _, x := range r.of(v) {
			dots = append(dots, plotter.XY{X: float64(i) + 0.15, Y: f.of(&x.Figures)})
		}
		medians = append(medians, plotter.XY{X: float64(i), Y: r.row(f.name, v).Spread.Median})
	}
	for _, of := range []struct {
		xys    plotter.XYs
		glyphs draw.GlyphStyle
	}{
		{dots, draw.GlyphStyle{Color: color.RGBA{R: 153, G: 153, B: 153, A: 255}, Radius: vg.Points(2), Shape: draw.CircleGlyph{}}},
		{medians, draw.GlyphStyle{Color: color.RGBA{R: 0, G: 90, B: 181, A: 255}, Radius: vg.Points(4), Shape: draw.BoxGlyph{}}},
	} {
		if len(of.xys) == 0 {
			continue
		}
		s, err := plotter.NewScatter(of.xys)
		if err != nil {
			return err
		}
		s.GlyphStyle = of.glyphs
		p.Add(s)
	}
	p.X.Min, p.X.Max = -0.5, float64(len(r.Options.Variants))-0.5
	p.Y.Max *= 1.1
	return p.Save(vg.Length(2+1.1*float64(len(r.Options.Variants)))*vg.Inch, 4*vg.Inch, name)
}
