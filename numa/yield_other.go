// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package numa

// Yield does nothing: threads are yielded on Linux only.
func Yield() {}
