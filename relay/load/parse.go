// SPDX-License-Identifier: Apache-2.0

package load

// Before this file: the body of an HTTP answer. After it: readings, one a rank.

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"slices"
	"time"
)

// answer is what one body says.
type answer struct {
	readings []Reading
	version  string
}

// parse reads an answer whatever its form: JSON begins with a brace or bracket,
// and Prometheus text cannot. at is when it was asked for.
func parse(body []byte, at time.Time) (answer, error) {
	text := bytes.TrimLeft(body, " \t\r\n")
	switch {
	case len(text) == 0:
		return answer{}, errors.New("an empty answer")
	case text[0] == '{' || text[0] == '[':
		return parseJSON(text, at)
	}
	rs, err := parseProm(text, at)
	return answer{readings: rs}, err
}

func sortByRank(rs []Reading) {
	slices.SortFunc(rs, func(a, b Reading) int { return cmp.Compare(a.Rank, b.Rank) })
}

// The conversions below take any number of an answer. One that cannot be meant is
// as if unsaid.

func toCount(v float64) Opt[uint32] {
	if !(v >= 0) {
		return Opt[uint32]{}
	}
	return Some(uint32(min(math.Round(v), math.MaxUint32)))
}

func toTokens(v float64) Opt[int32] {
	if !(v >= 0) {
		return Opt[int32]{}
	}
	return Some(int32(min(math.Round(v), math.MaxInt32)))
}

func toRate(v float64) Opt[float64] {
	if !(v >= 0) || math.IsInf(v, 0) {
		return Opt[float64]{}
	}
	return Some(v)
}

// toShare takes shares only: 1.0 is all.
func toShare(v float64) Opt[float64] {
	if !(v >= 0) || math.IsInf(v, 0) {
		return Opt[float64]{}
	}
	return Some(min(v, 1))
}
