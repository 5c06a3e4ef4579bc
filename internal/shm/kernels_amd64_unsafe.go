// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package shm

import (
	"unsafe"
)

// pause makes a thread that looks at a word again and again wait n times some 20 to
// 60 cycles, n > 0, without taking much from the core's other thread.
//
//go:noescape
func pause(n int)

// own asks for so many lines from p on, to be written soon, and does not wait.
//
//go:noescape
func own(p unsafe.Pointer, lines int)
