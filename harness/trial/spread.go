// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"fmt"
	"slices"
)

// Spread is one figure over several trials.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf reads f of each of all; zeros of none.
func SpreadOf[T any](all []T, f func(T) float64) Spread {
	if len(all) == 0 {
		return Spread{}
	}
	v := make([]float64, len(all))
	for i, x := range all {
		v[i] = f(x)
	}
	return Spread{Median: Median(v), Min: slices.Min(v), Max: slices.Max(v)}
}

// Text writes s with so many decimals, the range only where there is one.
func (s Spread) Text(decimals int) string {
	if s.Min == s.Max {
		return fmt.Sprintf("%.*f", decimals, s.Median)
	}
	return fmt.Sprintf("%.*f (%.*f to %.*f)", decimals, s.Median, decimals, s.Min, decimals, s.Max)
}
