// SPDX-License-Identifier: Apache-2.0

package live

import "kindex/internal/kv"

// tableParts is how many tables of their own a table is: each grows by itself, so
// that no insertion moves more than a 256th of all.
const tableParts = 256

// minSlots is what a part begins with.
const minSlots = 8

// table finds records by a 64-bit key: held ones by engine hash, ghosts by
// position. A part is linear probing over words of 32 hash bits and a record's
// number; 0 is an empty word. Keys may repeat in a table of ghosts: any is found.
//
// Load: at most 7/8, after growth 7/12. So a record takes 9 to 14 bytes.
type table struct {
	parts      [tableParts]part
	seed       uint64 // so that nobody outside can choose what collides
	byPosition bool
	slots      int // of all parts
}

type part struct {
	slots []uint64
	used  int
}

// mix spreads key over 64 bits. Source: the finaliser of splitmix64, one round.
func (t *table) mix(key uint64) uint64 {
	h := key ^ t.seed
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

func (t *table) key(r *record) uint64 {
	if t.byPosition {
		return r.position
	}
	return r.engine
}

// home returns where a word belongs among n slots. It is monotone in the word, for
// deletion's sake.
func home(word uint64, n int) int { return int((word >> 32) * uint64(n) >> 32) }

// find returns the record with key, or 0.
func (t *table) find(recs *slab[record], key uint64) uint32 {
	h := t.mix(key)
	p := &t.parts[h>>56]
	if p.used == 0 {
		return 0
	}
	word := h << 8 &^ (1<<32 - 1)
	for i := home(word, len(p.slots)); ; {
		w := p.slots[i]
		if w == 0 {
			return 0
		}
		if w&^(1<<32-1) == word {
			if r := uint32(w); t.key(recs.at(r)) == key {
				return r
			}
		}
		if i++; i == len(p.slots) {
			i = 0
		}
	}
}

// insert adds record r under key, which for a table of held blocks is not there.
func (t *table) insert(key uint64, r uint32) {
	h := t.mix(key)
	p := &t.parts[h>>56]
	if (p.used+1)*8 > len(p.slots)*7 {
		t.slots += p.grow()
	}
	p.put(h<<8&^(1<<32-1) | uint64(r))
	p.used++
}

func (p *part) put(word uint64) {
	i := home(word, len(p.slots))
	for p.slots[i] != 0 {
		if i++; i == len(p.slots) {
			i = 0
		}
	}
	p.slots[i] = word
}

// grow makes p half as large again and returns by how many slots.
func (p *part) grow() int {
	old := p.slots
	p.slots = make([]uint64, max(minSlots, len(old)+len(old)/2))
	for _, w := range old {
		if w != 0 {
			p.put(w)
		}
	}
	return len(p.slots) - len(old)
}

// slot returns the part and the place of record r, which is there under key.
func (t *table) slot(key uint64, r uint32) (*part, int) {
	h := t.mix(key)
	p := &t.parts[h>>56]
	word := h<<8&^(1<<32-1) | uint64(r)
	for i := home(word, len(p.slots)); ; {
		switch p.slots[i] {
		case word:
			return p, i
		case 0:
			panic("BUG: live: a record is not in its table")
		}
		if i++; i == len(p.slots) {
			i = 0
		}
	}
}

// replace puts record to in the place of record from under the same key.
func (t *table) replace(key uint64, from, to uint32) {
	p, i := t.slot(key, from)
	p.slots[i] = p.slots[i]&^(1<<32-1) | uint64(to)
}

// remove takes record r out and closes the gap, so that there are no tombstones.
func (t *table) remove(key uint64, r uint32) {
	p, gap := t.slot(key, r)
	n := len(p.slots)
	for i := gap; ; {
		if i++; i == n {
			i = 0
		}
		w := p.slots[i]
		if w == 0 {
			break
		}
		// Both distances go forward round the end: w may move to the gap unless its
		// home lies between.
		fromHome, fromGap := i-home(w, n), i-gap
		if fromHome < 0 {
			fromHome += n
		}
		if fromGap < 0 {
			fromGap += n
		}
		if fromHome >= fromGap {
			p.slots[gap] = w
			gap = i
		}
	}
	p.slots[gap] = 0
	p.used--
}

func (t *table) bytes() uint64 { return tableParts*32 + 8*uint64(t.slots) }

// touch reads where keys are looked up first, all at once, so that what the caches
// lack comes together and not one after another; and the records found there. What
// it returns means nothing.
func (t *table) touch(recs *slab[record], keys []kv.EngineHash) (sum uint64) {
	for _, e := range keys {
		h := t.mix(uint64(e))
		p := &t.parts[h>>56]
		if p.used == 0 {
			continue
		}
		if w := p.slots[home(h<<8, len(p.slots))]; w>>32 == h<<8>>32 {
			sum += recs.at(uint32(w)).position
		}
	}
	return sum
}
