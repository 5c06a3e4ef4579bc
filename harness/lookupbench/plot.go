// SPDX-License-Identifier: Apache-2.0

package lookupbench

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"kindex/harness/trial"
)

var (
	blue = color.RGBA{R: 0, G: 90, B: 181, A: 255}
	red  = color.RGBA{R: 220, G: 50, B: 32, A: 255}
)

// figure is one colour of a plot: a value of each row, its spread, and of each trial.
type figure struct {
	name   string
	colour color.RGBA
	spread func(*Row) trial.Spread
	value  func(*Trial) float64
}

// plots are the files that Save writes.
var plots = []struct {
	file, title string
	figures     []figure
}{
	{"latency.svg", "round trip of a lookup of 64 blocks", []figure{
		{"p50", blue, func(r *Row) trial.Spread { return r.P50 }, func(t *Trial) float64 { return float64(t.latency().P50) }},
		{"p99", red, func(r *Row) trial.Spread { return r.P99 }, func(t *Trial) float64 { return float64(t.latency().P99) }},
	}},
	{"cpu.svg", "CPU of a lookup of 64 blocks", []figure{
		{"client", blue, func(r *Row) trial.Spread { return r.Client }, func(t *Trial) float64 { return t.ClientCPU }},
		{"host", red, func(r *Row) trial.Spread { return r.Server }, func(t *Trial) float64 { return t.ServerCPU }},
	}},
}

// Save writes the report, its table and its plots into folder dir.
func (r *Report) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range []struct {
		name  string
		write func(io.Writer) error
	}{{"report.json", r.WriteJSON}, {"table.md", r.WriteText}} {
		out, err := os.Create(filepath.Join(dir, f.name))
		if err != nil {
			return err
		}
		if err := errors.Join(f.write(out), out.Close()); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	for i := range plots {
		if err := r.plot(filepath.Join(dir, plots[i].file), plots[i].title, plots[i].figures); err != nil {
			return fmt.Errorf("%s: %w", plots[i].file, err)
		}
	}
	return nil
}

// plot draws medians with what was least and greatest, and every kept trial as a dot, on
// a logarithmic axis: the ways differ by factors.
func (r *Report) plot(name, title string, figures []figure) error {
	if len(r.Rows) == 0 {
		return nil
	}
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = title, "us"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Add(plotter.NewGrid())
	p.Legend.Top, p.Legend.Left = true, true
	var labels []string
	for i := range r.Rows {
		labels = append(labels, label(r.Rows[i].Arm, r.Rows[i].Again, &r.Options))
	}
	p.NominalX(labels...)
	p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = 0.5, draw.XRight, draw.YCenter
	drawn := false
	for k, f := range figures {
		var dots plotter.XYs
		var medians errorPoints
		for i := range r.Rows {
			row := &r.Rows[i]
			s := f.spread(row)
			if s.Min <= 0 { // no place on this axis
				continue
			}
			x := float64(i) - 0.15 + 0.3*float64(k)
			medians.XYs = append(medians.XYs, plotter.XY{X: x, Y: s.Median / 1e3})
			medians.YErrors = append(medians.YErrors, struct{ Low, High float64 }{(s.Median - s.Min) / 1e3, (s.Max - s.Median) / 1e3})
			for _, t := range r.of(row.Arm, row.Again) {
				dots = append(dots, plotter.XY{X: x + 0.08, Y: f.value(t) / 1e3})
			}
		}
		if len(medians.XYs) == 0 {
			continue
		}
		drawn = true
		if err := addFigure(p, f, dots, medians); err != nil {
			return err
		}
	}
	if !drawn { // a logarithmic axis of nothing cannot be drawn
		return nil
	}
	p.X.Min, p.X.Max = -0.6, float64(len(r.Rows))-0.4
	p.Y.Min, p.Y.Max = p.Y.Min/1.2, p.Y.Max*1.2
	return p.Save(vg.Length(3+0.8*float64(len(r.Rows)))*vg.Inch, 5.5*vg.Inch, name)
}

// errorPoints are medians with the distances to the least and the greatest.
type errorPoints struct {
	plotter.XYs
	plotter.YErrors
}

func addFigure(p *plot.Plot, f figure, dots plotter.XYs, medians errorPoints) error {
	faint := color.RGBA{R: f.colour.R / 2, G: f.colour.G / 2, B: f.colour.B / 2, A: 128}
	s, err := plotter.NewScatter(dots)
	if err != nil {
		return err
	}
	s.GlyphStyle = draw.GlyphStyle{Color: faint, Radius: vg.Points(1.5), Shape: draw.CircleGlyph{}}
	m, err := plotter.NewScatter(medians.XYs)
	if err != nil {
		return err
	}
	m.GlyphStyle = draw.GlyphStyle{Color: f.colour, Radius: vg.Points(4), Shape: draw.BoxGlyph{}}
	e, err := plotter.NewYErrorBars(medians)
	if err != nil {
		return err
	}
	e.Color, e.Width = f.colour, vg.Points(1.5)
	p.Add(s, m, e)
	p.Legend.Add(f.name, m)
	return nil
}
