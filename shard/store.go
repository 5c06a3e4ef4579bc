// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"fmt"

	"kindex/internal/kv"
)

// valid refuses a store whose parts do not fit together: a caller's bug.
func (st *Store) valid() error {
	switch {
	case st.Tier >= kv.LocalTiers:
		return fmt.Errorf("shard: store in tier %v: only device, host and disk make memberships", st.Tier)
	case len(st.Contents) != 0 && len(st.Contents) != len(st.Engines):
		return fmt.Errorf("shard: store of %d engine hashes with %d content hashes", len(st.Engines), len(st.Contents))
	case st.Blocks.Len() != 0 && st.Blocks.Len() != len(st.Contents):
		return fmt.Errorf("shard: store of %d content hashes with %d blocks of tokens", len(st.Contents), st.Blocks.Len())
	}
	return nil
}

// valid refuses a removal from a tier that makes no memberships.
func (rm *Remove) valid() error {
	if rm.Tier >= kv.LocalTiers {
		return fmt.Errorf("shard: removal from tier %v: only device, host and disk make memberships", rm.Tier)
	}
	return nil
}

// clone returns a copy of st that shares nothing with it.
func (st *Store) clone() Store {
	c := *st
	c.Engines = append([]kv.EngineHash(nil), st.Engines...)
	c.Contents = append([]kv.ContentHash(nil), st.Contents...)
	c.Blocks.Tokens = append([]uint32(nil), st.Blocks.Tokens...)
	if st.Blocks.Extra != nil {
		c.Blocks.Extra = make([][]byte, len(st.Blocks.Extra))
		for i, x := range st.Blocks.Extra {
			c.Blocks.Extra[i] = append([]byte(nil), x...)
		}
	}
	return c
}

// orphanBytes is the fixed cost of one waiting store: chosen, not measured.
const orphanBytes = 256

// bytes returns the memory that st takes while it waits.
func (st *Store) bytes() uint64 {
	n := uint64(orphanBytes)
	n += 9*uint64(len(st.Engines)) + 8*uint64(len(st.Contents)) + 4*uint64(len(st.Blocks.Tokens))
	for _, x := range st.Blocks.Extra {
		n += 24 + uint64(len(x))
	}
	return n
}
