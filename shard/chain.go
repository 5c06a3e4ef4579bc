// SPDX-License-Identifier: Apache-2.0

package shard

// chainCore is the chain index's core.
type chainCore struct {
	*naiveCore
}

var _ core = (*chainCore)(nil)

// newChainCore returns an empty core. Options bound its arena.
func newChainCore(_ Options) (*chainCore, error) {
	return &chainCore{naiveCore: newNaiveCore()}, nil
}
