// SPDX-License-Identifier: Apache-2.0

package asm

import (
	"testing"
	"unsafe"

	"kindex/asm/asmtest"
)

// TestHints shows that no address, mapped or not, does any harm: there is nothing
// else to see.
func TestHints(t *testing.T) {
	asmtest.ForEachLevel(t, func(*testing.T) {
		PrefetchRange(nil, 0)
		PrefetchRange(nil, 100)
		PrefetchLines(nil, nil)
		PrefetchLines(nil, []uint32{0, 1, 1<<32 - 1})
		Pause()
	}, "prefetchRange", "prefetchLines", "pause")
}

func BenchmarkHints(b *testing.B) {
	lines := make([]uint64, 1<<10)
	at := unsafe.Pointer(&lines[0])
	for _, f := range []struct {
		name string
		call func()
	}{
		{"lines=1", func() { PrefetchRange(at, 1) }},
		{"lines=8", func() { PrefetchRange(at, 8) }},
		{"pause", Pause},
	} {
		b.Run(f.name, func(b *testing.B) {
			for b.Loop() {
				f.call()
			}
		})
	}
}
