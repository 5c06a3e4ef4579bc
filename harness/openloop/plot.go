// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"image/color"
	"path/filepath"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"kindex/harness/trial"
)

// The colours of lines, told apart by most people who see fewer.
var palette = []color.RGBA{
	{R: 0, G: 90, B: 181, A: 255},
	{R: 220, G: 50, B: 32, A: 255},
	{R: 0, G: 158, B: 115, A: 255},
	{R: 230, G: 159, B: 0, A: 255},
	{R: 204, G: 121, B: 167, A: 255},
	{R: 153, G: 153, B: 153, A: 255},
}

// windows is how many pieces a replay's time is cut into.
const windows = 60

// curve is one line of a plot.
type curve struct {
	name string
	xys  plotter.XYs
}

// plots writes the plots that there is anything for, and returns their file names.
func (r *Result) plots(dir string) ([]string, error) {
	var names []string
	for _, p := range []struct {
		file, title, y string
		log            bool
		curves         []curve
	}{
		{"ttft.svg", "time to the first token, by when a request was due", "ms", true, r.quantiles(func(q *Record) (time.Duration, bool) { return q.ttft() })},
		{"itl.svg", "mean gap between tokens of an answer, by when it was due", "ms", true, r.quantiles(func(q *Record) (time.Duration, bool) { return q.itl(), q.Pieces > 1 })},
		{"cache.svg", "share of prompt tokens, by when a request was due", "%", false, r.shares()},
		{"running.svg", "requests running or waiting", "requests", false, r.load()},
	} {
		if len(p.curves) == 0 {
			continue
		}
		if err := draw(filepath.Join(dir, p.file), p.title, p.y, p.log, p.curves); err != nil {
			return names, err
		}
		names = append(names, p.file)
	}
	return names, nil
}

// span is when the last request was sent.
func (r *Result) span() time.Duration {
	last := time.Duration(1)
	for i := range r.Records {
		if q := &r.Records[i]; q.sent() {
			last = max(last, q.Due+1)
		}
	}
	return last
}

// window of an instant, and the middle of a window in seconds.
func window(at, span time.Duration) int { return int(float64(at) / float64(span) * windows) }

func middle(i int, span time.Duration) float64 {
	return (float64(i) + 0.5) / windows * span.Seconds()
}

// quantiles are p50, p90 and p99 over time.
func (r *Result) quantiles(of func(*Record) (time.Duration, bool)) []curve {
	span := r.span()
	var in [windows + 1][]time.Duration
	n := 0
	for i := range r.Records {
		q := &r.Records[i]
		if d, ok := of(q); ok && q.sent() && d > 0 {
			k := min(window(q.Due, span), windows)
			in[k] = append(in[k], d)
			n++
		}
	}
	if n == 0 {
		return nil
	}
	curves := []curve{{name: "p50"}, {name: "p90"}, {name: "p99"}}
	for k := range in {
		if len(in[k]) == 0 {
			continue
		}
		slices.Sort(in[k])
		for c, p := range [...]float64{0.5, 0.9, 0.99} {
			curves[c].xys = append(curves[c].xys, plotter.XY{X: middle(k, span), Y: ms(trial.Quantile(in[k], p))})
		}
	}
	return curves
}

// shares are cached tokens, and those that could have been, over time.
func (r *Result) shares() []curve {
	span := r.span()
	names := [...]string{"cached", "oracle", "prefix reuse", "best at arrival"}
	var sum, of [len(names)][windows + 1]float64
	for i := range r.Records {
		q := &r.Records[i]
		if !q.ok() {
			continue
		}
		k := min(window(q.Due, span), windows)
		for c, n := range [...]int{q.cached(), q.Oracle, q.PrefixReuse, q.BestAtArrival} {
			if n != unknown {
				sum[c][k] += float64(n)
				of[c][k] += float64(q.prompt())
			}
		}
	}
	var curves []curve
	for c, name := range names {
		line := curve{name: name}
		for k := range of[c] {
			if of[c][k] > 0 {
				line.xys = append(line.xys, plotter.XY{X: middle(k, span), Y: 100 * sum[c][k] / of[c][k]})
			}
		}
		if len(line.xys) > 0 {
			curves = append(curves, line)
		}
	}
	return curves
}

// load is what the client and the fleet had on their hands over time.
func (r *Result) load() []curve {
	var flying, running, waiting curve
	flying.name, running.name, waiting.name = "in flight, client", "running, fleet", "waiting, fleet"
	for i := range r.Samples {
		s := &r.Samples[i]
		at := s.At.Seconds()
		if s.Worker.Name == clientName {
			flying.xys = append(flying.xys, plotter.XY{X: at, Y: float64(s.Worker.Running + s.Worker.Waiting)})
			continue
		}
		if n := len(running.xys); n == 0 || running.xys[n-1].X != at {
			running.xys = append(running.xys, plotter.XY{X: at})
			waiting.xys = append(waiting.xys, plotter.XY{X: at})
		}
		running.xys[len(running.xys)-1].Y += float64(s.Worker.Running)
		waiting.xys[len(waiting.xys)-1].Y += float64(s.Worker.Waiting)
	}
	return slices.DeleteFunc([]curve{flying, running, waiting}, func(c curve) bool { return len(c.xys) == 0 })
}

func draw(file, title, y string, log bool, curves []curve) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "s", y
	p.Add(plotter.NewGrid())
	p.Legend.Top, p.Legend.XOffs = true, -vg.Points(8)
	p.Title.Padding = vg.Points(6)
	for i, c := range curves {
		line, points, err := plotter.NewLinePoints(c.xys)
		if err != nil {
			return err
		}
		line.Color, line.Width = palette[i%len(palette)], vg.Points(1.5)
		points.Color, points.Radius = palette[i%len(palette)], vg.Points(1.5)
		p.Add(line, points)
		p.Legend.Add(c.name, line)
	}
	p.X.Min = 0
	if log {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Y.Min, p.Y.Max = p.Y.Min/1.2, p.Y.Max*1.2
	} else {
		p.Y.Min, p.Y.Max = 0, max(p.Y.Max*1.05, 1)
	}
	return p.Save(9*vg.Inch, 4*vg.Inch, file)
}
