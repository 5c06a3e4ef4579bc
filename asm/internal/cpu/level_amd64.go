// SPDX-License-Identifier: Apache-2.0

//go:build amd64 && !race && !purego

package cpu

import (
	"strings"

	"github.com/klauspost/cpuid/v2"
)

// Whether the level is avx512, and whether it is at least avx2. Written by [Set]
// only.
var (
	AVX512 = Lacks(NameAVX512) == ""
	AVX2   = Lacks(NameAVX2) == ""
)

func set(name string) {
	AVX512 = name == NameAVX512
	AVX2 = AVX512 || name == NameAVX2
}

// Lacks returns why the level name cannot run, "" when it can. cpuid asks the
// operating system, too, whether it keeps the wide registers.
func Lacks(name string) string {
	need := []cpuid.FeatureID{cpuid.AVX2, cpuid.BMI1, cpuid.BMI2, cpuid.LZCNT, cpuid.POPCNT}
	switch name {
	case NameGeneric:
		return ""
	case NameAVX512:
		need = append(need, cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL)
	}
	var missing []string
	for _, f := range need {
		if !cpuid.CPU.Supports(f) {
			missing = append(missing, f.String())
		}
	}
	if missing == nil {
		return ""
	}
	return "this CPU lacks " + strings.Join(missing, ", ")
}
