// SPDX-License-Identifier: Apache-2.0

package asm

import "unsafe"

// Prefetch asks for the cache line at p. The generic twin does nothing: Go has
// no way to say it, and a plain load would wait for what is only a wish.
func Prefetch(p unsafe.Pointer) { _ = p }
