// SPDX-License-Identifier: Apache-2.0

// Before: Rank, whose block size is learned. After: Subscription, which is refused.

package relay

import "fmt"

// DefaultMinHashBlock is the size of a block, in tokens, below which its content
// hash is no cover at all.
//
// The hash has no key, and its seed goes out with it, so that anybody can make a
// table of what might be hashed. XXH3 adds up what it makes of each 16 bytes, four
// tokens: at eight tokens there are two such parts, and a search that sets one half
// against the other still needs a table of one half. With a vocabulary of 2^17 that
// is 2^68 entries for any four tokens. At four tokens there is no second part, and
// one token is a table of 2^17. That bounds tables of the vocabulary only: a text
// that is known or can be guessed is found at any size.
const DefaultMinHashBlock = 8

// shortBlocks says why blocks of size tokens are not served by their hashes.
func shortBlocks(size, least int) string {
	return fmt.Sprintf("blocks of %d tokens serve no events under hash-tokens, so short a block is found from its hash: "+
		"raise the engine's block size to %d, leave hash-tokens out, or knowingly set hash-tokens-min-block=%d", size, least, size)
}

// tooShort says why the rank serves no events; "" where it does. The rank is
// locked.
func (r *Rank) tooShort() string {
	cfg := &r.engine.cfg
	if !cfg.HashTokens || r.blockSize == 0 || r.blockSize >= cfg.MinHashBlock {
		return ""
	}
	return shortBlocks(r.blockSize, cfg.MinHashBlock)
}

// refuseShort is the end of a subscription to the rank, or nil. The rank is locked.
func (r *Rank) refuseShort() error {
	if why := r.tooShort(); why != "" {
		return endf(EndNoForm, "engine %s, rank %d: %s", r.engine.cfg.Name, r.number, why)
	}
	return nil
}
