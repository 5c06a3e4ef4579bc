// SPDX-License-Identifier: Apache-2.0

package shard

import "fmt"

// Kinds are the index kinds New knows, the default first.
var Kinds = []string{"positional", "reference"}

// New returns an empty index of one of [Kinds].
func New(kind string, o Options) (Index, error) {
	o.setDefaults()
	switch kind {
	case "positional":
		return newShard(newPositionalCore(o), o), nil
	case "reference":
		return NewReference(o), nil
	}
	return nil, fmt.Errorf("index kind %q: must be positional or reference", kind)
}
