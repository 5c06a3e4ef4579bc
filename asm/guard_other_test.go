// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package asm

import "testing"

// fence is memory that is not guarded on this system.
type fence []uint64

func newFence(_ testing.TB, words int) fence { return make(fence, words) }
