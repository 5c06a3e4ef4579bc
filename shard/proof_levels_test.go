// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"fmt"
	"testing"

	"kindex/asm/asmtest"
	"kindex/internal/longtest"
	"kindex/shard"
)

// TestProofLevels runs a part of the proofs at each level of the kernels: a corpus,
// wild histories, and writers that act while readers ask. The whole of the corpora runs at
// the level that the machine is used at; TestProofFuzz and TestProofTwoShards run at
// all of them.
func TestProofLevels(t *testing.T) {
	skipShort(t)
	events, wilds, wildEvents := longtest.N(5000, 30_000), uint64(longtest.N(1, 3)), longtest.N(600, 3000)
	runs, acts, reads := uint64(longtest.N(3, 20)), uint64(2000), uint64(1000)
	if shard.RaceEnabled {
		events, wildEvents, acts, reads = 1500, 300, 500, 150
	}
	asmtest.ForEachLevel(t, func(t *testing.T) {
		t.Run("corpus", func(t *testing.T) {
			t.Parallel()
			w, err := newWorld(77, 12, chainOnly(corpusSubjects()))
			if err != nil {
				t.Fatal(err)
			}
			if err := w.prove(events); err != nil {
				t.Fatal(err)
			}
			sum := w.f.account(w.events)
			sum.want(t)
			t.Logf("over %s: %v", names(chainOnly(corpusSubjects())), sum)
		})
		for seed := range wilds {
			t.Run(fmt.Sprintf("wild%d", seed), func(t *testing.T) {
				t.Parallel()
				sum, err := proveWild(100+seed, wildEvents, chainOnly(subjects()), true)
				if err != nil {
					t.Fatal(err)
				}
				sum.want(t)
				t.Logf("over %s: %v", names(chainOnly(subjects())), sum)
			})
		}
		t.Run("scripts", func(t *testing.T) {
			t.Parallel()
			for _, b := range fuzzSeeds(t) {
				if _, err := proveScript(b, chainOnly(subjects())); err != nil {
					t.Fatal(err)
				}
			}
		})
		for _, n := range []int{1, 4} {
			t.Run(fmt.Sprintf("concurrent%d", n), func(t *testing.T) { proveRuns(t, runs, acts, reads, sharded("chain", n), n) })
		}
	})
}
