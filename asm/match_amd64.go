// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

package asm

// matchForwardAVX512 is [MatchForward] for two windows of n words, n >= 0.
//
//go:noescape
func matchForwardAVX512(a, b *uint64, n int) int

// matchForwardAVX2 is [MatchForward] for two windows of n words, n >= 4.
//
//go:noescape
func matchForwardAVX2(a, b *uint64, n int) int

// matchReverseAVX512 is [MatchReverse] for two windows of n words, n >= 0.
//
//go:noescape
func matchReverseAVX512(a, b *uint64, n int) int

// matchReverseAVX2 is [MatchReverse] for two windows of n words, n >= 4.
//
//go:noescape
func matchReverseAVX2(a, b *uint64, n int) int
