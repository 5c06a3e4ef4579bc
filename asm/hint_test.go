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
		Prefetch(nil)
		PrefetchLines(nil, nil)
		PrefetchLines(nil, []uint32{0, 1, ^uint32(0)})
		PrefetchRange(nil, 0)
		PrefetchRange(nil, 100)
		Pause()
	}, "prefetch", "prefetchLines", "prefetchRange", "pause")
}

func BenchmarkHints(b *testing.B) {
	lines := make([]uint64, 1<<10)
	at, numbers := unsafe.Pointer(&lines[0]), make([]uint32, 32)
	for i := range numbers {
		numbers[i] = uint32(i * 2)
	}
	for _, f := range []struct {
		name string
		call func()
	}{
		{"one", func() { Prefetch(at) }},
		{"lines=32", func() { PrefetchLines(at, numbers) }},
		{"range=8", func() { PrefetchRange(at, 8) }},
		{"pause", Pause},
	} {
		b.Run(f.name, func(b *testing.B) {
			for b.Loop() {
				f.call()
			}
		})
	}
}
