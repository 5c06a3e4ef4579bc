// SPDX-License-Identifier: Apache-2.0

//go:build amd64 && !race && !purego

package shard

// storeWord writes a word that readers may be loading. Stores become visible in
// program order on amd64, so that a plain one publishes what was written before
// it; an atomic one costs an exchange each.
func storeWord(p *uint64, v uint64) { *p = v }

// copyWords writes words that lie where a reader may still be looking for what was
// there before and will see that it is gone, or that a later store publishes.
func copyWords(dst, src []uint64) { copy(dst, src) }
