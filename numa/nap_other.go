// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package numa

// Nap does nothing: threads nap on Linux only.
func Nap(int64) {}
