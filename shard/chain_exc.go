// SPDX-License-Identifier: Apache-2.0

// Hop before: the chain core's stores and removals of hashes that fit no row.
// Hop after: none.

package shard

import "maps"

// exceptions are a slot's engine hashes that its row does not have at their
// position, or had not when they came. A slot without any has nil.
//
// A slot with a few is as fast as one without wherever they are not: the runs they
// lie in are known, and a hash that is none of them mostly shows by one bit.
type exceptions struct {
	byHash map[uint64]uint32
	byPos  map[uint32]exception
	runs   map[uint32]uint32    // entries of byPos by their run's index
	bits   [excBits / 64]uint64 // by hash: one whose bit is not set is not in byHash
}

// excBits is how many hashes' bits there are: with 50 exceptions 19 of 20 other
// hashes are told from them. Chosen.
const excBits = 1 << 10

// exception is a position that a slot holds by hashes of its own.
type exception struct {
	n         uint32 // hashes of its own
	canonical bool   // it holds the position by the hash of its row, too
}

// exceptionBytes is what one takes on the Go heap: an estimate from the maps'
// load of 7/16 to 7/8 and their slot sizes.
const exceptionBytes = 64

// excBit returns the word and the bit of e.
func excBit(e uint64) (word int, bit uint64) {
	h := e * 0x9E3779B97F4A7C15 >> 54
	return int(h / 64), 1 << (h % 64)
}

// find returns the position that x maps e to.
func (x *exceptions) find(e uint64) (uint32, bool) {
	if x == nil {
		return 0, false
	}
	if word, bit := excBit(e); x.bits[word]&bit == 0 {
		return 0, false
	}
	p, ok := x.byHash[e]
	return p, ok
}

// in reports whether x has a position of run idx.
func (x *exceptions) in(idx uint32) bool { return x != nil && x.runs[idx] > 0 }

// any reports whether x has one of engines.
func (x *exceptions) any(engines []uint64) bool {
	if x == nil {
		return false
	}
	for _, e := range engines {
		if _, ok := x.find(e); ok {
			return true
		}
	}
	return false
}

// clone returns a copy of x.
func (x *exceptions) clone() *exceptions {
	return &exceptions{byHash: maps.Clone(x.byHash), byPos: maps.Clone(x.byPos), runs: maps.Clone(x.runs), bits: x.bits}
}

// addHash makes e, which the slot maps to nothing, an exception at p; held says
// whether the slot holds p.
func (st *slotState) addHash(p uint32, e uint64, held bool) {
	if st.exc == nil {
		st.exc = &exceptions{byHash: map[uint64]uint32{}, byPos: map[uint32]exception{}, runs: map[uint32]uint32{}}
	}
	x, ok := st.exc.byPos[p]
	if !ok {
		x.canonical = held
		st.exc.runs[p>>offsetBits]++
	}
	x.n++
	st.exc.byPos[p] = x
	st.exc.byHash[e] = p
	word, bit := excBit(e)
	st.exc.bits[word] |= bit
}

// dropHash ends the mapping of e to p, as far as exceptions know of it, and
// reports whether the slot holds p no more.
func (st *slotState) dropHash(p uint32, e uint64) bool {
	if st.exc == nil {
		return true
	}
	x, ok := st.exc.byPos[p]
	if !ok {
		return true
	}
	if _, own := st.exc.byHash[e]; !own {
		x.canonical = false
		st.exc.byPos[p] = x
		return false
	}
	delete(st.exc.byHash, e)
	if x.n--; x.n > 0 {
		st.exc.byPos[p] = x
		return false
	}
	delete(st.exc.byPos, p)
	if idx := p >> offsetBits; st.exc.runs[idx] > 1 {
		st.exc.runs[idx]--
	} else {
		delete(st.exc.runs, idx)
	}
	if len(st.exc.byHash) == 0 {
		st.exc = nil
	}
	return !x.canonical
}
