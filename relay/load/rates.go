// SPDX-License-Identifier: Apache-2.0

package load

// Before this file: counters of one rank. After it: the same reading with rates.

import "time"

// What rates are made over, chosen, not measured: a throughput follows the engine
// within two seconds and is steady enough that a record does not move by noise; a
// hit rate needs requests, which come more rarely than tokens.
const (
	throughputSpan = 1500 * time.Millisecond
	hitRateSpan    = 30 * time.Second
	keepSpacing    = 250 * time.Millisecond // between points kept
	maxPoints      = 160
)

// point is one reading's counters.
type point struct {
	at     time.Time
	totals totals
}

// window keeps the counters of the last readings of one rank.
type window struct {
	points  []point // oldest first
	hitRate Opt[float64]
}

// rates sets the rates of r that its source leaves to be made from counters. A
// counter that goes back is a new engine process: what came before it is
// forgotten.
func (w *window) rates(r *Reading) {
	now := point{at: r.Taken, totals: r.totals}
	if n := len(w.points); n > 0 && wentBack(&w.points[n-1].totals, &now.totals) {
		w.points, w.hitRate = w.points[:0], Opt[float64]{}
	}
	if !r.Throughput.Known {
		r.Throughput = w.throughput(&now)
	}
	if !r.HitRate.Known {
		r.HitRate = w.hits(&now)
	}
	w.keep(now)
}

func (w *window) keep(now point) {
	n := len(w.points)
	if n >= 2 && now.at.Sub(w.points[n-2].at) < keepSpacing {
		w.points[n-1] = now // the newest is always kept, to see counters go back
		return
	}
	old := 0
	for old < n && (now.at.Sub(w.points[old].at) > hitRateSpan || n-old >= maxPoints) {
		old++
	}
	w.points = append(w.points[:0], w.points[old:]...)
	w.points = append(w.points, now)
}

// throughput is over the points since throughputSpan ago, or since the newest
// point where all are older.
func (w *window) throughput(now *point) Opt[float64] {
	if !now.totals.generated.Known {
		return Opt[float64]{}
	}
	for i := range w.points {
		p := &w.points[i]
		if now.at.Sub(p.at) > throughputSpan && i < len(w.points)-1 || !p.totals.generated.Known {
			continue
		}
		if d := now.at.Sub(p.at).Seconds(); d > 0 {
			return Some((now.totals.generated.Value - p.totals.generated.Value) / d)
		}
	}
	return Opt[float64]{}
}

// hits is over the points of the window, and stays as it was while nothing is
// looked up.
func (w *window) hits(now *point) Opt[float64] {
	t := &now.totals
	if !t.queries.Known || !t.hits.Known {
		return Opt[float64]{}
	}
	for i := range w.points {
		p := &w.points[i]
		if now.at.Sub(p.at) > hitRateSpan && i < len(w.points)-1 || !p.totals.queries.Known || !p.totals.hits.Known {
			continue
		}
		if q := t.queries.Value - p.totals.queries.Value; q > 0 {
			w.hitRate = Some(min((t.hits.Value-p.totals.hits.Value)/q, 1))
		}
		return w.hitRate
	}
	if t.queries.Value > 0 { // the first reading: since the engine's start
		w.hitRate = Some(min(t.hits.Value/t.queries.Value, 1))
	}
	return w.hitRate
}

func wentBack(a, b *totals) bool {
	back := func(x, y Opt[float64]) bool { return x.Known && y.Known && y.Value < x.Value }
	return back(a.generated, b.generated) || back(a.prompt, b.prompt) || back(a.queries, b.queries) ||
		back(a.hits, b.hits) || back(a.steps, b.steps)
}
