// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"context"
	"fmt"
	"io"
)

// Fresh measures n times, each in a fresh process of this program with args, which
// prints one T as JSON. foreign are the mean CPUs that others kept busy in each. say
// describes a result in a few words for the progress line.
//
// Errors: the first child's that fails; ctx's.
func Fresh[T any](ctx context.Context, n int, args []string, p *Progress, stderr io.Writer, say func(*T) string) (results []*T, foreign []float64, err error) {
	for i := range n {
		r := new(T)
		ran, err := SelfInto(ctx, stderr, r, args...)
		if err != nil {
			return nil, nil, fmt.Errorf("trial %d of %d: %w", i+1, n, err)
		}
		results, foreign = append(results, r), append(foreign, ran.Foreign)
		p.Sayf("trial %d of %d: %s, %.2f foreign CPUs", i+1, n, say(r), ran.Foreign)
	}
	return results, foreign, nil
}

// Summarize returns one report for several of the same kind: the median of every
// figure, the sum of what was compared, kept up only if all did. What they have in
// common is the first one's.
func Summarize(reports []*Report) Report {
	s := *reports[0]
	of := func(f func(*Report) float64) float64 {
		var v []float64
		for _, r := range reports {
			v = append(v, f(r))
		}
		return Median(v)
	}
	s.CPUPerBlockOp = of(func(r *Report) float64 { return r.CPUPerBlockOp })
	s.BlockOpsPerS = of(func(r *Report) float64 { return r.BlockOpsPerS })
	s.Wall = of(func(r *Report) float64 { return r.Wall })
	s.CPUPerLookup = of(func(r *Report) float64 { return r.CPUPerLookup })
	s.PerMembership = of(func(r *Report) float64 { return r.PerMembership })
	s.PerBlock = of(func(r *Report) float64 { return r.PerBlock })
	s.Offered = of(func(r *Report) float64 { return r.Offered })
	s.Achieved = of(func(r *Report) float64 { return r.Achieved })
	s.Lookup, s.KeptUp, s.Exact = nil, nil, nil
	for _, r := range reports {
		if r.KeptUp != nil {
			kept := *r.KeptUp && (s.KeptUp == nil || *s.KeptUp)
			s.KeptUp = &kept
		}
		if r.Exact != nil {
			if s.Exact == nil {
				s.Exact = &Exact{}
			}
			s.Exact.Lookups += r.Exact.Lookups
			s.Exact.Wrong += r.Exact.Wrong
		}
	}
	var times []*Latency
	for _, r := range reports {
		if r.Lookup != nil {
			times = append(times, r.Lookup)
		}
	}
	s.Lookup = medianLatency(times)
	return s
}

// medianLatency takes each quantile's median; samples are the first one's.
func medianLatency(all []*Latency) *Latency {
	if len(all) == 0 {
		return nil
	}
	of := func(f func(*Latency) uint32) uint32 {
		var v []float64
		for _, l := range all {
			v = append(v, float64(f(l)))
		}
		return uint32(Median(v))
	}
	return &Latency{
		Samples: all[0].Samples,
		P50:     of(func(l *Latency) uint32 { return l.P50 }),
		P99:     of(func(l *Latency) uint32 { return l.P99 }),
		P999:    of(func(l *Latency) uint32 { return l.P999 }),
		Max:     of(func(l *Latency) uint32 { return l.Max }),
	}
}
