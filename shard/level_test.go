// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"math/rand/v2"
	"os"
	"testing"

	"kindex/asm/asmtest"
)

func TestMain(m *testing.M) { os.Exit(asmtest.Main(m, os.Stdout, nil)) }

// TestLevels runs a little of everything at each level of the kernels: random
// streams against plain maps, and readers against a writer.
func TestLevels(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		for _, name := range []string{"clean-9", "deep", "wild30-9", "wild100-70", "seeds"} {
			r := rand.New(rand.NewPCG(21, 12))
			p := newPair(t, loads[name])
			for range 60 {
				p.step(t, r)
				p.lookups(t, r, 2)
			}
			p.compare(t)
		}
		for _, shape := range []struct{ slots, blocks int }{{8, 40}, {70, 24}, {4, 700}} {
			s := makeScript(3, shape.slots, shape.blocks, 2000/(1+shape.slots/20)/(1+shape.blocks/200))
			c := newChain(t, Options{})
			n := s.run(t, c, 3, 2)
			c.check()
			t.Logf("%d slots, %d blocks: %d lookups while writing", shape.slots, shape.blocks, n)
		}
	})
}
