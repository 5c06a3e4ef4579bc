// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"testing"

	"kindex/gateway/fleet"
)

// fleetOf returns a registry of n workers of one model.
func fleetOf(b *testing.B, n int) *fleet.Registry {
	b.Helper()
	r := fleet.NewRegistry()
	b.Cleanup(r.Close)
	for i := range n {
		add(b, r, fleet.Spec{URL: fmt.Sprintf("http://10.0.%d.%d:8000", i/250, i%250), Models: []string{"m"}}).SetState(fleet.Ready)
	}
	return r
}

var sizes = []int{128, 1_024, 4_095}

func BenchmarkPool(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := fleetOf(b, n)
			at := r.Workers()[n/2].Spec.Instance
			b.ReportAllocs()
			for b.Loop() {
				if r.Pool("m").Holder(at, 0) == nil {
					b.Fatal("nobody")
				}
			}
		})
	}
}

func BenchmarkLease(b *testing.B) {
	h := fleet.NewWorker("w", &fleet.Spec{URL: "http://h:1"}).Holders[0]
	b.ReportAllocs()
	for b.Loop() {
		l := h.TryTake(fleet.Work{Prompt: 1_000, Cached: 10, Stream: true})
		l.Moved(l.Since + 1)
		l.Release()
	}
}

func BenchmarkJoinAndLeave(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := fleetOf(b, n)
			for b.Loop() {
				w := add(b, r, fleet.Spec{URL: "http://h:1", Models: []string{"m"}})
				if _, err := r.Remove(w.ID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
