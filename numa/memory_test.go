// SPDX-License-Identifier: Apache-2.0

package numa

import "testing"

func TestBlock(t *testing.T) {
	before := Used().Blocks
	for _, words := range []int{1, 8, 512, 1 << 19} {
		b, err := NewBlock(words, Placement{})
		if err != nil {
			t.Fatalf("NewBlock(%d): %v", words, err)
		}
		if got := len(b.Words()); got != words {
			t.Errorf("NewBlock(%d): got %d words", words, got)
		}
		if got, want := Used().Blocks-before, uint64(words)*8; got != want {
			t.Errorf("NewBlock(%d): accounted %d bytes, want %d", words, got, want)
		}
		for i, w := range b.Words() {
			if w != 0 {
				t.Fatalf("NewBlock(%d): word %d is %#x, want 0", words, i, w)
			}
		}
		b.Words()[0], b.Words()[words-1] = 1, 2
		if err := b.Release(); err != nil {
			t.Errorf("Release: %v", err)
		}
		if got := Used().Blocks; got != before {
			t.Errorf("after Release: accounted %d bytes, want %d", got, before)
		}
	}
}
