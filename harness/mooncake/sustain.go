// SPDX-License-Identifier: Apache-2.0

package mooncake

import (
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"

	"kindex/harness/replay"
	"kindex/harness/trial"
)

// The rule of a sustained rate.
const (
	sustainedShare = 0.99 // of the offered rate achieved
	sustainTrials  = 3    // fresh processes for each rate
	within         = 1.10 // the least rate that fails is at most so much above the greatest that holds
)

// Offer is one open-loop trial as anybody's tool tells it.
type Offer struct {
	Offered  float64 `json:"offered"`  // block operations a second
	Achieved float64 `json:"achieved"` // the same
	Issued   float64 `json:"issued_over_window"`
	Foreign  float64 `json:"foreign_cpus"`
}

func (o Offer) valid() bool { return o.Issued <= replay.IssuedWithin }

// Sustained reports whether the load was really offered, and done.
func (o Offer) Sustained() bool { return o.valid() && o.Achieved >= sustainedShare*o.Offered }

// Point is one window tried.
type Point struct {
	WindowMS  int     `json:"window_ms"`
	Trials    []Offer `json:"trials"`
	Discarded int     `json:"discarded"` // trials on a busy machine, repeated
	Sustained bool    `json:"sustained"`
}

// Sustainable is the highest rate that is sustained.
type Sustainable struct {
	Command string  `json:"command"`
	Corpus  string  `json:"corpus"`
	Arm     string  `json:"arm"`
	Rate    float64 `json:"sustained_block_ops_per_s"` // 0: none was
	Fails   float64 `json:"fails_block_ops_per_s"`     // the least rate above that was not
	Points  []Point `json:"points"`
}

// Search finds the greatest rate that is sustained, to 10 %. try runs one trial with a
// window in a fresh process; first is where to begin, in milliseconds. Trials during
// which others kept more than maxForeign CPUs busy are discarded and repeated.
//
// The windows go down by halves until one fails, up by doubles if the first fails; then
// the interval is halved by ratio. A rate fails with its first failing trial of three.
//
// Errors: try's; [trial.ErrBusy].
func Search(ctx context.Context, first int, maxForeign float64, try func(ctx context.Context, windowMS int) (Offer, error)) (*Sustainable, error) {
	s := &Sustainable{Command: "mooncake --sustained"}
	holds, fails := 0, 0 // windows, ms; 0: not known
	for window := max(first, 1); ; {
		point, err := tryRate(ctx, window, maxForeign, try)
		if err != nil {
			return nil, err
		}
		s.Points = append(s.Points, point)
		rate := point.Trials[0].Offered
		if point.Sustained {
			holds, s.Rate = window, rate
		} else {
			fails, s.Fails = window, rate
		}
		switch {
		case fails == 0:
			window = holds / 2
		case holds == 0:
			window = fails * 2
		case float64(holds) <= within*float64(fails) || holds-fails <= 1:
			return s, nil
		default:
			window = int(math.Round(math.Sqrt(float64(holds) * float64(fails))))
		}
		if window < 1 || window > 3_600_000 {
			return s, nil
		}
	}
}

// tryRate takes three trials of one window, or one that fails.
func tryRate(ctx context.Context, window int, maxForeign float64, try func(ctx context.Context, windowMS int) (Offer, error)) (Point, error) {
	point := Point{WindowMS: window, Sustained: true}
	for len(point.Trials) < sustainTrials && point.Sustained {
		o, err := try(ctx, window)
		if err != nil {
			return point, err
		}
		if o.Foreign > maxForeign {
			if point.Discarded++; point.Discarded >= trial.MaxDiscarded {
				return point, fmt.Errorf("%d ms: %w", window, trial.ErrBusy(point.Discarded, maxForeign))
			}
			continue
		}
		point.Trials = append(point.Trials, o)
		point.Sustained = o.Sustained()
	}
	return point, nil
}

// Sustain searches for o's highest rate, beginning at o's window or one second.
func Sustain(ctx context.Context, o Options, maxForeign float64, p *trial.Progress, stderr io.Writer) (*Sustainable, error) {
	first := o.WindowMS
	if first == 0 {
		first = 1_000
	}
	s, err := Search(ctx, first, maxForeign, func(ctx context.Context, window int) (Offer, error) {
		o := o
		o.WindowMS = window
		r := &Result{}
		ran, err := trial.SelfInto(ctx, stderr, r, o.Args()...)
		if err != nil {
			return Offer{}, err
		}
		offer := Offer{Offered: r.Offered, Achieved: r.Achieved, Issued: float64(r.InOrder.Issued) / float64(r.InOrder.Window), Foreign: ran.Foreign}
		p.Alwaysf("%d ms: %.1f M block operations a second offered, %.3f of it achieved, issued within %.3f windows, %.2f foreign CPUs", window, offer.Offered/1e6, offer.Achieved/offer.Offered, offer.Issued, offer.Foreign)
		return offer, nil
	})
	if err == nil {
		s.Corpus, s.Arm = o.Corpus, o.Index
	}
	return s, err
}

// WriteSustained writes the searches as a Markdown table; the first is what ratios are of.
func WriteSustained(w io.Writer, all []*Sustainable) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Sustained: at least %.0f %% of the offered rate with everything issued within %.2f windows, in %d of %d fresh processes, to %.0f %%. Corpus %s.\n\n",
		sustainedShare*100, replay.IssuedWithin, sustainTrials, sustainTrials, (within-1)*100, filepath.Base(all[0].Corpus))
	fmt.Fprint(&b, "| | sustained, M block operations a second | not sustained | windows tried, ms | trials discarded | ratio to it |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, s := range all {
		var windows []string
		for _, p := range s.Points {
			windows = append(windows, fmt.Sprintf("%d%s", p.WindowMS, map[bool]string{false: " (no)"}[p.Sustained]))
		}
		discarded := 0
		for _, p := range s.Points {
			discarded += p.Discarded
		}
		ratio := "-"
		if s.Rate > 0 {
			ratio = fmt.Sprintf("%.2f", all[0].Rate/s.Rate)
		}
		fmt.Fprintf(&b, "| %s | %.1f | %.1f | %s | %d | %s |\n", s.Arm, s.Rate/1e6, s.Fails/1e6, strings.Join(windows, ", "), discarded, ratio)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
