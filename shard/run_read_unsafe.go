// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package shard

import "kindex/asm"

// readRunAnd is [asm.ReadRunAnd] of the run at line: one call for the run and for
// who of cand hold it by bit.
func (m *arenaMemory) readRunAnd(line uint32, chain []uint64, out *asm.RunRead, cand, keep []uint64) (match int, all, ok bool) {
	return asm.ReadRunAnd(m.w(line, 0), chain, out, m.base, cand, keep)
}
