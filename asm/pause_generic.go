// SPDX-License-Identifier: Apache-2.0

package asm

// Pause tells the processor that the caller waits for another one's store. The
// generic twin does nothing.
func Pause() {}
