// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race || purego

package shard

import "sync/atomic"

// storeWord writes a word that readers may be loading.
func storeWord(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
