// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"cmp"

	"kindex/internal/kv"
)

// MaxInstances bounds [Query.Only].
const MaxInstances = 1 << 16

// MaxResults bounds [Query.Limit].
const MaxResults = 1<<31 - 1

// Query asks who holds how much of one prompt. Nobody keeps it, or what it points
// to, after the call that it is given to; a caller may use it again.
type Query struct {
	// Texts, and the ids of Only, are UTF-8.
	Model, Group, Tenant string // the latter two "": default
	LoRA, Salt           string

	// Tokens is the prompt; a tail that fills no block is left out. Or, where there
	// are no Tokens, Hashes are content hashes of its blocks, made of tokens alone
	// under the seed of LoRA and Salt.
	Tokens []uint32
	Hashes []kv.ContentHash
	// Extra is empty, or has one entry a block: its extra keys as kv.AppendExtraKey
	// encodes them, one after the other; an empty entry is a block without any.
	// Of Tokens it may have one more, for the tail.
	Extra [][]byte

	Only  []string // instance ids that may be in the answer; nil: all
	Limit int      // the deepest so many matches; 0: all
}

// Answer says who holds how much of a prompt. It belongs to the caller, who may
// give it to the next call, which uses its memory again.
type Answer struct {
	BlockSize int     // tokens
	Matches   []Match // the deepest first: see [Match.Compare]

	// Of several hosts only.

	// Missing are the hosts whose part is not in the answer, where the caller
	// allowed that. Empty: the answer is whole.
	Missing []string
	// Twice counts the matches that two hosts named, a fault in how workers are
	// split over them; the deeper of the two is in the answer.
	Twice int
}

// Reset empties a for the next answer.
func (a *Answer) Reset() {
	a.BlockSize, a.Matches, a.Missing, a.Twice = 0, a.Matches[:0], a.Missing[:0], 0
}

// Match is what one data-parallel rank of one instance holds of a prompt, in whole
// blocks from its beginning. Device <= Host <= Any, and Any is never 0.
type Match struct {
	Instance string // its id as an object key: in decimal, or as it is
	Number   bool   // the id was given as an integer
	Rank     int
	Device   uint32 // on the device
	Host     uint32 // there or in host memory
	Any      uint32 // in any local tier
	// Degraded: the instance's streams are not all exact now.
	Degraded bool
}

// Compare orders by depth, the deepest first: Any, then Host, then Device. Equal
// matches of one host stand in the order in which their instances were registered,
// then by rank; of several hosts, in the order of the hosts.
func (m *Match) Compare(o *Match) int {
	return cmp.Or(cmp.Compare(o.Any, m.Any), cmp.Compare(o.Host, m.Host), cmp.Compare(o.Device, m.Device))
}
