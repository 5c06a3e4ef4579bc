// SPDX-License-Identifier: Apache-2.0

// Before: Normaliser. After: a state file, and another Normaliser.

package normal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"kindex/internal/kv"
)

// memoryVersion begins what AppendMemory appends.
const memoryVersion = 1

// AppendMemory appends what n remembers of its stream's earlier events, in a form
// that [Normaliser.Restore] reads: whoever goes on with a content needs it, too. It
// holds no token.
//
// Cost: some bytes, and 8 for each keyed hash, of which most streams have none.
func (n *Normaliser) AppendMemory(b []byte) []byte {
	b = append(b, memoryVersion)
	b = binary.AppendUvarint(b, uint64(n.blockSize))
	b = binary.AppendUvarint(b, uint64(n.lookahead))
	b = binary.AppendUvarint(b, uint64(len(n.groups)))
	for _, g := range slices.Sorted(maps.Keys(n.groups)) {
		b = binary.AppendVarint(b, int64(g))
		b = append(b, byte(n.groups[g]))
	}
	for _, keyed := range []map[kv.EngineHash]struct{}{n.keyedBefore, n.keyed} {
		b = binary.AppendUvarint(b, uint64(len(keyed)))
		for h := range keyed {
			b = binary.LittleEndian.AppendUint64(b, uint64(h))
		}
	}
	return b
}

// Restore makes n remember what another normaliser appended. On an error n is as it
// was.
func (n *Normaliser) Restore(memory []byte) error {
	r := memoryReader{b: memory}
	if v := r.octet(); v != memoryVersion && !r.short {
		return fmt.Errorf("a normaliser's memory of version %d: this program reads version %d", v, memoryVersion)
	}
	blockSize, lookahead := r.number(math.MaxInt32), r.number(math.MaxInt32)
	groups := make(map[int]kv.SpecKind)
	for range r.number(maxGroups) {
		g, kind := r.signed(), kv.SpecKind(r.octet())
		if kind > kv.SpecOther {
			r.short = true
		}
		groups[g] = kind
	}
	before, keyed := r.hashes(), r.hashes()
	if r.short || len(r.b) > 0 {
		return errors.New("a normaliser's memory that is cut short or not one")
	}
	if n.cfg.BlockSize != 0 && blockSize != n.cfg.BlockSize {
		return fmt.Errorf("a normaliser's memory of blocks of %d tokens: the stream's are of %d", blockSize, n.cfg.BlockSize)
	}
	n.blockSize, n.lookahead, n.groups, n.keyedBefore, n.keyed = blockSize, lookahead, groups, before, keyed
	return nil
}

// memoryReader takes a memory apart. short is set where it is not one; what was read
// then is of no use.
type memoryReader struct {
	b     []byte
	short bool
}

func (r *memoryReader) octet() byte {
	if len(r.b) == 0 {
		r.short = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *memoryReader) number(most uint64) int {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > most {
		r.short = true
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

func (r *memoryReader) signed() int {
	v, n := binary.Varint(r.b)
	if n <= 0 || v < math.MinInt32 || v > math.MaxInt32 {
		r.short = true
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

// hashes reads one generation; nil where it is empty.
func (r *memoryReader) hashes() map[kv.EngineHash]struct{} {
	n := r.number(keyedGeneration)
	if r.short || n == 0 {
		return nil
	}
	if len(r.b) < 8*n {
		r.short = true
		return nil
	}
	m := make(map[kv.EngineHash]struct{}, n)
	for i := range n {
		m[kv.EngineHash(binary.LittleEndian.Uint64(r.b[8*i:]))] = struct{}{}
	}
	r.b = r.b[8*n:]
	return m
}
