// SPDX-License-Identifier: Apache-2.0

package numa

import "sync/atomic"

// HugePage is the size of a transparent huge page in bytes; regions grow by it.
const HugePage = 2 << 20

// Usage counts the bytes that this process holds through this package.
type Usage struct {
	Reserved  uint64 // address space of all regions
	Committed uint64 // usable prefixes of all regions
	Blocks    uint64 // all blocks
}

var usage struct {
	reserved, committed, blocks atomic.Int64
}

// Used returns the totals. Safe from any goroutine; the three numbers are read
// one after the other.
func Used() Usage {
	return Usage{
		Reserved:  uint64(usage.reserved.Load()),
		Committed: uint64(usage.committed.Load()),
		Blocks:    uint64(usage.blocks.Load()),
	}
}

// Block is zeroed memory of fixed size, for one owner.
//
// Concurrency: none; the owner synchronises.
type Block struct {
	words []uint64
	raw   []byte // the mapping; nil on the Go heap
	binding
}

// Words returns the memory. The slice is valid until Release.
func (b *Block) Words() []uint64 { return b.words }

// Bytes returns the size in bytes.
func (b *Block) Bytes() uint64 { return uint64(len(b.words)) * 8 }

func (b *Block) size() uint64 { return b.Bytes() }

// roundUp returns n rounded up to a multiple of unit, a power of two.
func roundUp(n, unit uint64) uint64 { return (n + unit - 1) &^ (unit - 1) }
