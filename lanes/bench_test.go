// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"fmt"
	"testing"

	"kindex/numa"
)

func currentCPU(t testing.TB) int {
	cpu, _, err := numa.CurrentNode()
	if err != nil {
		t.Fatal(err)
	}
	return cpu
}

// allowedCPU returns a CPU that this process may use.
func allowedCPU(t testing.TB) int { return currentCPU(t) }

// empty is a job of a number of batches that take no time.
type empty struct{ batches, left int }

func (e *empty) Prepare() bool {
	if e.left--; e.left >= 0 {
		return true
	}
	e.left = e.batches
	return false
}

func (e *empty) Apply() {}

// BenchmarkBatch measures what a batch costs beside its own work: handed over and
// waited for, as a stream does it; handed over in a full queue; and from
// several submitters at once.
func BenchmarkBatch(b *testing.B) {
	for _, lanes := range []int{1, 2} {
		for _, batches := range []int{1, 16} {
			name := fmt.Sprintf("lanes=%d/burst=%d", lanes, batches)
			b.Run("do/"+name, func(b *testing.B) {
				p := newPool(b, Options{Nodes: []Node{{Shards: 1, Lanes: lanes}}})
				w := add(b, p, 0)
				j := &empty{batches, batches}
				b.ReportAllocs()
				for i := 0; i < b.N; i += batches {
					if err := w.Do(j); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("submit/"+name, func(b *testing.B) {
				p := newPool(b, Options{Queue: 64, Nodes: []Node{{Shards: 1, Lanes: lanes}}})
				w := add(b, p, 0)
				jobs := make([]empty, 128)
				for i := range jobs {
					jobs[i] = empty{batches, batches}
				}
				b.ReportAllocs()
				for i, k := 0, 0; i < b.N; i, k = i+batches, k+1 {
					if err := w.Submit(&jobs[k%len(jobs)]); err != nil {
						b.Fatal(err)
					}
				}
				if err := w.Fence(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
