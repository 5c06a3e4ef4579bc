// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"

	"kindex/internal/livedigest"
	"kindex/relay/normal"
)

// digest takes the sum over what a snapshot brought. It sees operations before
// anything is left out of them, so that it is the relay's.
type digest struct {
	book livedigest.Book
	most int // blocks
}

// apply adds ops. An error says that they cannot be of a snapshot.
func (d *digest) apply(ops []Op) error {
	for i := range ops {
		op := &ops[i]
		switch op.Kind {
		case normal.Store, normal.Mismatch:
			st := livedigest.Store{
				Tier: op.Tier, Group: op.Group, Parent: op.Parent, HasParent: op.HasParent,
				Seed: op.Seed, Engines: op.Engines, Contents: op.Contents,
			}
			if !d.book.Store(&st) {
				return fmt.Errorf("the snapshot stores blocks below one that it has not stored")
			}
		case normal.Remove:
			if !d.book.Remove(op.Tier, op.Group, op.Engines) {
				return fmt.Errorf("the snapshot removes blocks that it has not stored")
			}
		case normal.Clear:
			d.book.Clear()
		}
		if d.book.Blocks() > d.most {
			return fmt.Errorf("the snapshot has more than %d blocks", d.most)
		}
	}
	return nil
}
