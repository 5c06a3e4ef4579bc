// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// Resamples is how many times a bootstrap draws.
const Resamples = 10_000

// Median returns the middle of samples, the mean of the middle two where their
// number is even; 0 of none.
func Median(samples []float64) float64 { return medianSorted(slices.Sorted(slices.Values(samples))) }

func medianSorted(s []float64) float64 {
	n := len(s)
	if n == 0 {
		return 0
	}
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// Quantile returns the nearest-rank quantile of sorted samples, the zero value of none.
func Quantile[T cmp.Ordered](sorted []T, p float64) T {
	if len(sorted) == 0 {
		var zero T
		return zero
	}
	rank := int(p*float64(len(sorted)) + 0.999_999)
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Estimate is a median with its 95 % interval.
type Estimate struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	N      int     `json:"n"` // samples
}

// Bootstrap estimates the median of samples: the interval is the middle 95 % of the
// medians of Resamples samples drawn from them with replacement.
func Bootstrap(samples []float64, seed uint64) Estimate {
	rng := rand.New(rand.NewPCG(seed, 0x626f6f74)) //nolint:gosec // seeded on purpose
	medians := make([]float64, Resamples)
	draw := make([]float64, len(samples))
	for i := range medians {
		medians[i] = resample(rng, samples, draw)
	}
	return estimate(Median(samples), medians, len(samples))
}

// BootstrapRatio estimates the ratio of two medians, a's to b's, both resampled.
// It is zero where either has no samples.
func BootstrapRatio(a, b []float64, seed uint64) Estimate {
	if len(a) == 0 || len(b) == 0 || Median(b) == 0 {
		return Estimate{}
	}
	rng := rand.New(rand.NewPCG(seed, 0x72617469)) //nolint:gosec // seeded on purpose
	ratios := make([]float64, 0, Resamples)
	da, db := make([]float64, len(a)), make([]float64, len(b))
	for range Resamples {
		x, y := resample(rng, a, da), resample(rng, b, db)
		if y != 0 {
			ratios = append(ratios, x/y)
		}
	}
	return estimate(Median(a)/Median(b), ratios, min(len(a), len(b)))
}

// resample fills draw from samples and returns its median.
func resample(rng *rand.Rand, samples, draw []float64) float64 {
	for i := range draw {
		draw[i] = samples[rng.IntN(len(samples))]
	}
	slices.Sort(draw)
	return medianSorted(draw)
}

func estimate(median float64, drawn []float64, n int) Estimate {
	slices.Sort(drawn)
	return Estimate{Median: median, Low: Quantile(drawn, 0.025), High: Quantile(drawn, 0.975), N: n}
}
