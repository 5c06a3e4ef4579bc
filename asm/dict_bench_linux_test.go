// SPDX-License-Identifier: Apache-2.0

package asm

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kindex/asm/internal/cpu"
)

// BenchmarkDict takes events of 300 keys out of a table of 64 MiB at 4.5 keys a
// line and puts others in, at every level in turn, so that all see the same
// machine. It reports medians over rounds, in ns a key.
func BenchmarkDict(b *testing.B) {
	const event, lines = 300, 1 << 20
	const events = lines * 9 / 2 / event
	r := rand.New(rand.NewPCG(1, 2))
	raw, err := unix.Mmap(-1, 0, (lines+100)*DictLineWords*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = unix.Munmap(raw) }()
	_ = unix.Madvise(raw, unix.MADV_HUGEPAGE) // as the index's own
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&raw[0])), len(raw)/8)
	table := &DictTable{Words: words, Lines: lines, Old: lines}
	keys := make([]uint64, events*event)
	hits, found := make([]uint32, event), make([]uint32, event)
	fresh := func(k int) ([]uint64, uint32) {
		own := keys[k*event : (k+1)*event]
		for i := range own {
			own[i] = r.Uint64()
		}
		return own, uint32(k*event) + 1
	}
	for k := range events {
		own, first := fresh(k)
		DictInsert(table, own, first, hits)
	}
	before := cpu.Level()
	defer func() { _ = cpu.Set(before) }()
	times := map[string][]float64{}
	note := func(name string, begin time.Time, n int) {
		times[name] = append(times[name], float64(time.Since(begin))/float64(n))
	}
	const batch = 16 // events between two looks at the clock
	var owns [batch][]uint64
	var firsts [batch]uint32
	for b.Loop() {
		for _, level := range cpu.Had() {
			if err := cpu.Set(level); err != nil {
				b.Fatal(err)
			}
			for i := range batch {
				k := r.IntN(events)
				owns[i], firsts[i] = keys[k*event:(k+1)*event], uint32(k*event)+1
				for slices.Contains(firsts[:i], firsts[i]) {
					k = r.IntN(events)
					owns[i], firsts[i] = keys[k*event:(k+1)*event], uint32(k*event)+1
				}
			}
			warm(owns[:])
			begin := time.Now()
			for i := range batch {
				DictProbe(table, owns[i], found)
			}
			note("probe-"+level, begin, batch*event)
			for w := 0; w < len(table.Words)/2; w += DictLineWords { // probe's lines out of the cache
				found[0] += uint32(table.Words[w])
			}
			warm(owns[:])
			begin = time.Now()
			for i := range batch {
				if DictDelete(table, owns[i], firsts[i]) != 0 {
					b.Fatal("missing")
				}
			}
			note("delete-"+level, begin, batch*event)
			for i := range batch {
				fresh(int(firsts[i]-1) / event)
			}
			begin = time.Now()
			for i := range batch {
				DictInsert(table, owns[i], firsts[i], hits)
			}
			note("insert-"+level, begin, batch*event)
		}
	}
	for name, v := range times {
		slices.Sort(v)
		b.ReportMetric(v[len(v)/2], name)
	}
	b.ReportMetric(0, "ns/op")
}

// warm reads the keys, as whoever has them read them before.
func warm(owns [][]uint64) (sum uint64) {
	for _, own := range owns {
		for _, k := range own {
			sum += k
		}
	}
	return sum
}
