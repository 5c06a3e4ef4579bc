// SPDX-License-Identifier: Apache-2.0

package asm

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// dictModel is a dictionary in plain Go: positions by key.
type dictModel map[uint64]map[uint32]bool

// step inserts, finds or deletes a random batch and compares.
func (m dictModel) step(t *testing.T, r *rand.Rand, dict []uint64, next *uint32, keySpace uint64, n *int, room int) {
	t.Helper()
	switch {
	case r.IntN(3) > 0 && *n < room:
		keys := make([]uint64, 1+r.IntN(min(70, room-*n)))
		hits := make([]uint32, len(keys))
		for i := range keys {
			keys[i] = r.Uint64N(keySpace)
		}
		first := *next
		*next += uint32(len(keys))
		got := hits[:DictInsert(dict, keys, first, hits)]
		for i, k := range keys {
			// A hit may be a tag's accident, but no known key may be missed.
			if len(m[k]) > 0 && !slices.Contains(got, uint32(i)) {
				t.Fatalf("insert of key %d: already at %v, and no hit", k, m[k])
			}
			if m[k] == nil {
				m[k] = map[uint32]bool{}
			}
			m[k][first+uint32(i)] = true
		}
		*n += len(keys)
	default:
		for k, positions := range m {
			for p := range positions {
				if missing := DictDelete(dict, []uint64{k}, p); missing != 0 {
					t.Fatalf("delete of key %d at %d: not found", k, p)
				}
				delete(positions, p)
				*n--
			}
			if len(positions) == 0 {
				delete(m, k)
			}
			if r.IntN(3) == 0 {
				break
			}
		}
	}
}

func (m dictModel) compare(t *testing.T, dict []uint64, k uint64) {
	t.Helper()
	out := make([]uint32, 4)
	n := DictFind(dict, k, out)
	if n > len(out) {
		out = make([]uint32, n)
		if again := DictFind(dict, k, out); again != n {
			t.Fatalf("find of key %d: %d candidates, then %d", k, n, again)
		}
	}
	out = out[:n]
	for p := range m[k] {
		if !slices.Contains(out, p) {
			t.Fatalf("find of key %d: got %v, want %d among them", k, out, p)
		}
	}
	var one [1]uint32
	DictProbe(dict, []uint64{k}, one[:])
	if n > 0 && one[0] != out[0] || n == 0 && one[0] != 0 {
		t.Fatalf("probe of key %d: got %d, want first of %v", k, one[0], out)
	}
}

// TestDictAgainstMap runs random batches against plain maps: tables from nearly
// empty to nearly full, and keys from all different to nearly all the same.
func TestDictAgainstMap(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		lines := 1 + r.IntN(40)
		keySpace := []uint64{3, 40, 1000, 1 << 62}[seed%4]
		dict := make([]uint64, lines*DictLineWords)
		m := dictModel{}
		next, n := uint32(512), 0
		for range 300 {
			m.step(t, r, dict, &next, keySpace, &n, lines*DictSlots*9/10)
			m.compare(t, dict, r.Uint64N(keySpace))
			for k := range m {
				m.compare(t, dict, k)
				break
			}
		}
		for k, positions := range m {
			for p := range positions {
				DictDelete(dict, []uint64{k}, p)
			}
		}
		for i, w := range dict {
			if i%DictLineWords < 3 && w != 0 {
				t.Fatalf("seed %d: word %d is %#x after all keys went, want 0", seed, i, w)
			}
		}
		if DictDelete(dict, []uint64{5}, 7) != 1 {
			t.Fatalf("seed %d: delete from an empty table found something", seed)
		}
	}
}

// TestDictOverflowSaturates holds that a count at its maximum stays, so that what
// lies behind is found for ever.
func TestDictOverflowSaturates(t *testing.T) {
	dict := make([]uint64, 4*DictLineWords)
	key := []uint64{0}
	hits := make([]uint32, 1)
	for p := range uint32(DictSlots) {
		DictInsert(dict, key, p+1, hits)
	}
	line, _ := dictHash(0, 4)
	count := &dict[line*DictLineWords+2]
	*count |= (dictFull - 1) << 32
	for p := range uint32(3) {
		DictInsert(dict, key, 100+p, hits)
	}
	if got := *count >> 32; got != dictFull {
		t.Fatalf("overflow count: got %d, want %d", got, dictFull)
	}
	DictDelete(dict, key, 100)
	DictDelete(dict, key, 101)
	if got := *count >> 32; got != dictFull {
		t.Errorf("overflow count after deletions: got %d, want %d", got, dictFull)
	}
	if n := DictFind(dict, 0, nil); n != DictSlots+1 {
		t.Errorf("got %d candidates, want %d", n, DictSlots+1)
	}
}
