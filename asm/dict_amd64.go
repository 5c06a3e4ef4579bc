// SPDX-License-Identifier: Apache-2.0

//go:build amd64 && !race && !purego

package asm

// The variants of the dictionary's kernels. All work 128 keys ahead: they have
// asked for the lines of so many keys before they touch the first, so that misses
// overlap as far as the machine can, and keep homes and tags on their stack.
//
// Saved against the twins, in ns a key, events of 300 keys at 4.5 keys a line, medians
// taken in turns on one busy core (BenchmarkDict); both variants are alike:
//
//	         table of 64 MiB     of 256 KiB, in the cache
//	insert   33 -> 9.6           15 -> 4.3
//	delete   27 -> 9.7           12 -> 3.4
//	probe    32 -> 6.1           15 -> 2.8

// dictInsertAVX512 is [dictInsertGeneric]; -1 when a key found no slot.
//
//go:noescape
func dictInsertAVX512(t *DictTable, keys []uint64, first uint32, hits []uint32) int

// dictInsertAVX2 is [dictInsertGeneric]; -1 when a key found no slot.
//
//go:noescape
func dictInsertAVX2(t *DictTable, keys []uint64, first uint32, hits []uint32) int

// dictDeleteAVX512 is [dictDeleteGeneric].
//
//go:noescape
func dictDeleteAVX512(t *DictTable, keys []uint64, first uint32) int

// dictDeleteAVX2 is [dictDeleteGeneric].
//
//go:noescape
func dictDeleteAVX2(t *DictTable, keys []uint64, first uint32) int

// dictProbeAVX512 is [dictProbeGeneric].
//
//go:noescape
func dictProbeAVX512(t *DictTable, keys []uint64, out []uint32)

// dictProbeAVX2 is [dictProbeGeneric].
//
//go:noescape
func dictProbeAVX2(t *DictTable, keys []uint64, out []uint32)

// dictPrefetchAVX2 asks for the home lines of keys.
//
//go:noescape
func dictPrefetchAVX2(t *DictTable, keys []uint64)
