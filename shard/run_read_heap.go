// SPDX-License-Identifier: Apache-2.0

//go:build !linux || race

package shard

import "kindex/asm"

// readRunAnd reads the run at line alone: slabs have no common base, and who holds
// it is read apart.
func (m *arenaMemory) readRunAnd(line uint32, chain []uint64, out *asm.RunRead, _, _ []uint64) (match int, all, ok bool) {
	match, ok = asm.ReadRun(m.w(line, 0), chain, &out.Header)
	return match, false, ok
}
