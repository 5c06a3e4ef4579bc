// SPDX-License-Identifier: Apache-2.0

//go:build race || purego || !amd64

package asm

import (
	"sync/atomic"
	"unsafe"
)

// matchShared returns how many words of chain, from its beginning, equal those
// at run, which the writer may be changing: word by word with atomic loads, so
// that the race detector can verify the protocol.
func matchShared(run unsafe.Pointer, chain []uint64) int {
	for i, w := range chain {
		if atomic.LoadUint64((*uint64)(unsafe.Add(run, i*8))) != w {
			return i
		}
	}
	return len(chain)
}
