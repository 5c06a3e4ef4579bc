// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race || purego

package shard

import "sync/atomic"

// storeWord writes a word that readers may be loading.
func storeWord(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// copyWords writes words that lie where a reader may still be looking for what was
// there before and will see that it is gone, or that a later store publishes.
func copyWords(dst, src []uint64) {
	for i, v := range src[:len(dst)] {
		storeWord(&dst[i], v)
	}
}
