// SPDX-License-Identifier: Apache-2.0

//go:build amd64 && !race && !purego

package asm

// The variants of the dictionary's kernels. All keep the mixed hash of up to
// [dictRing] keys on their stack and have asked for the lines of as many keys as
// they work on: the misses overlap as far as the machine can.

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
