// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race || purego

package cpu

// Whether the level is avx512, and whether it is at least avx2: never here, so
// that the compiler drops the branches.
const (
	AVX512 = false
	AVX2   = false
)

func set(string) {}

// Lacks returns why the level name cannot run, "" when it can.
func Lacks(name string) string {
	if name == NameGeneric {
		return ""
	}
	return "this build has no assembly (tag purego, the race detector, or not amd64)"
}
