// SPDX-License-Identifier: Apache-2.0

package shard

import "fmt"

// Kinds are the index kinds New knows, the default first.
var Kinds = []string{"chain", "positional", "reference"}

// New returns an empty index of one of [Kinds].
func New(kind string, o Options) (Index, error) {
	o.setDefaults()
	switch kind {
	case "chain":
		c, err := newChainCore(o)
		if err != nil {
			return nil, err
		}
		return newShard(c, o), nil
	case "positional":
		return newShard(newPositionalCore(o), o), nil
	case "reference":
		return NewReference(o), nil
	}
	return nil, fmt.Errorf("index kind %q: must be chain, positional or reference", kind)
}
