// SPDX-License-Identifier: Apache-2.0

//go:build !linux || race

package numa

// NewBlock returns a block of words uint64s on the Go heap, which lies anywhere.
// It never fails.
func NewBlock(words int, p Placement) (*Block, error) {
	b := &Block{words: make([]uint64, words)}
	if !p.Anywhere() {
		b.set(p, PolicyFirstTouch, "on the Go heap, which is placed nowhere")
	}
	usage.blocks.Add(int64(words) * 8)
	enlist(b, p)
	return b, nil
}

// PagesByNode returns nothing: pages of the Go heap are not asked for.
func (b *Block) PagesByNode(int) ([]NodePages, error) { return nil, nil }

// Placed returns what became of the placement asked for.
func (b *Block) Placed() Placed { return b.placed() }

// Release gives the block back. Nobody may touch its words any more.
func (b *Block) Release() error {
	delist(b)
	usage.blocks.Add(-int64(len(b.words)) * 8)
	b.words = nil
	return nil
}
