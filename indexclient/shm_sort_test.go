// SPDX-License-Identifier: Apache-2.0

package indexclient

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSortRows: few rows and many are ordered alike.
func TestSortRows(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2_000 {
		rows := make([]sharedRow, r.IntN(120))
		for i := range rows {
			rows[i] = sharedRow{depth: r.Uint64N(4), tie: uint64(i), match: int32(i)}
		}
		r.Shuffle(len(rows), func(i, k int) { rows[i], rows[k] = rows[k], rows[i] })
		want := slices.Clone(rows)
		slices.SortFunc(want, func(a, b sharedRow) int {
			return cmp.Or(cmp.Compare(b.depth, a.depth), cmp.Compare(a.tie, b.tie))
		})
		if sortRows(rows); !slices.Equal(rows, want) {
			t.Fatalf("got %v, want %v", rows, want)
		}
	}
}
