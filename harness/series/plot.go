// SPDX-License-Identifier: Apache-2.0

package series

import (
	"image/color"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// The arms' colours, again from the first when there are more: told apart by most
// people who see fewer.
var palette = []color.RGBA{
	{R: 0, G: 90, B: 181, A: 255},
	{R: 153, G: 153, B: 153, A: 255},
	{R: 220, G: 50, B: 32, A: 255},
	{R: 230, G: 159, B: 0, A: 255},
	{R: 0, G: 158, B: 115, A: 255},
	{R: 204, G: 121, B: 167, A: 255},
}

// Plot writes one SVG for each mode: every kept trial as a dot, medians with their
// intervals, a column for each arm in a group for each figure. Values are on a
// logarithmic axis, since peers differ by factors.
func (r *Report) Plot(dir string, trials []Trial) error {
	for _, mode := range r.Plan.Modes {
		var rows []*Row
		for i := range r.Rows {
			if r.Rows[i].Mode == mode {
				rows = append(rows, &r.Rows[i])
			}
		}
		if len(rows) == 0 {
			continue
		}
		if err := r.plotMode(filepath.Join(dir, mode+".svg"), mode, rows, trials); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) plotMode(name, mode string, rows []*Row, trials []Trial) error {
	p := plot.New()
	p.Title.Text = mode + ", " + r.Plan.Corpus
	if p.Y.Label.Text = "ns"; mode == memoryMode {
		p.Y.Label.Text = "bytes"
	}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Add(plotter.NewGrid())
	p.Legend.Top = true
	var labels []string
	for _, row := range rows {
		labels = append(labels, row.Name)
	}
	p.NominalX(labels...)
	drawn := false
	width := 0.7 / float64(len(r.Plan.Arms))
	for k, arm := range r.Plan.Arms {
		c := palette[k%len(palette)]
		var dots plotter.XYs
		var medians errorPoints
		for g, row := range rows {
			cell := row.Cells[arm]
			if cell == nil || cell.Median <= 0 || cell.Low <= 0 {
				continue
			}
			x := float64(g) - 0.35 + width*(float64(k)+0.5)
			medians.XYs = append(medians.XYs, plotter.XY{X: x, Y: cell.Median})
			medians.YErrors = append(medians.YErrors, struct{ Low, High float64 }{cell.Median - cell.Low, cell.High - cell.Median})
			for i := range trials {
				t := &trials[i]
				if v := t.Figures[row.Name]; !t.Discarded && t.Arm == arm && t.Mode == mode && t.Round <= r.Rounds && v > 0 {
					dots = append(dots, plotter.XY{X: x + width/4, Y: v})
				}
			}
		}
		if len(medians.XYs) == 0 {
			continue
		}
		drawn = true
		if err := addArm(p, arm, c, dots, medians); err != nil {
			return err
		}
	}
	if !drawn { // a logarithmic axis of nothing cannot be drawn
		return nil
	}
	// Room for the outermost columns, and above and below.
	p.X.Min, p.X.Max = -0.6, float64(len(rows))-0.4
	p.Y.Min, p.Y.Max = p.Y.Min/1.2, p.Y.Max*1.2
	return p.Save(vg.Length(4+1.6*float64(len(rows)))*vg.Inch, 5*vg.Inch, name)
}

// errorPoints are medians with the distances to their intervals' ends.
type errorPoints struct {
	plotter.XYs
	plotter.YErrors
}

func addArm(p *plot.Plot, arm string, c color.RGBA, dots plotter.XYs, medians errorPoints) error {
	faint := c
	faint.A = 110
	faint.R, faint.G, faint.B = uint8(uint16(c.R)*110/255), uint8(uint16(c.G)*110/255), uint8(uint16(c.B)*110/255)
	if len(dots) > 0 {
		s, err := plotter.NewScatter(dots)
		if err != nil {
			return err
		}
		s.GlyphStyle = draw.GlyphStyle{Color: faint, Radius: vg.Points(1.5), Shape: draw.CircleGlyph{}}
		p.Add(s)
	}
	m, err := plotter.NewScatter(medians.XYs)
	if err != nil {
		return err
	}
	m.GlyphStyle = draw.GlyphStyle{Color: c, Radius: vg.Points(4), Shape: draw.BoxGlyph{}}
	e, err := plotter.NewYErrorBars(medians)
	if err != nil {
		return err
	}
	e.Color, e.Width = c, vg.Points(1.5)
	p.Add(m, e)
	p.Legend.Add(arm, m)
	return nil
}
