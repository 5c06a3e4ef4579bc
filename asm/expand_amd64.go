// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

package asm

// Times below are nanoseconds a call for the twin, AVX2 and AVX-512, measured as
// those of match_amd64.go, with so many bits of 128 or of 1,024 set in both.
//
//	8 of 128    32 of 128   128 of 128    128 of 1,024   1,024 of 1,024
//	16 17 13    49 23 18    179 25 23     194 136 91     1,413 166 162

// expandSlotsAVX512 is [ExpandSlots] for room elements of dst and words >= 1 words of
// set and mask. Saves 156 ns for 128 bits of 128, 31 ns for 32. Where dst has no room it goes on counting.
//
//go:noescape
func expandSlotsAVX512(dst *uint32, room int, ids *uint32, set, mask *uint64, words int, depth uint32) int

// expandSlotsAVX2 is [ExpandSlots] for room elements of dst and words >= 1 words of
// set and mask. Saves 154 ns for 128 bits of 128, 26 ns for 32. Where dst has no room it goes on counting.
//
//go:noescape
func expandSlotsAVX2(dst *uint32, room int, ids *uint32, set, mask *uint64, words int, depth uint32, lists *[256]uint64) int
