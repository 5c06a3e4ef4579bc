// SPDX-License-Identifier: Apache-2.0

//go:build !linux || race

package numa

// NewBlock returns a block of words uint64s on the Go heap. It never fails.
func NewBlock(words int) (*Block, error) {
	usage.blocks.Add(int64(words) * 8)
	return &Block{words: make([]uint64, words)}, nil
}

// Release gives the block back. Nobody may touch its words any more.
func (b *Block) Release() error {
	usage.blocks.Add(-int64(len(b.words)) * 8)
	b.words = nil
	return nil
}
