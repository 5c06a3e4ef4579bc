// SPDX-License-Identifier: Apache-2.0

// Hop before: the writer, when a slot begins or ends to speak for a holder.
// Hop after: lookups, which turn slots into holders.

package shard

// seatTable says for whom slots speak. It never changes: the writer publishes
// another one. So a lookup that finds the same table at its end as at its beginning
// has seen slots and holders that belong together, and a grouped answer stays
// readable for as long as it is kept.
type seatTable struct {
	pages [1 << 16 / seatPageSlots]*seatPage // none is nil
	odd   int                                // slots that answer some classes only
}

const seatPageSlots = 1 << 10

// seatPage is a page of a table.
type seatPage struct {
	holders [seatPageSlots]uint32 // 0: the slot speaks for nobody
	// plain has the slots that answer all classes for their holder, odd those that
	// answer some. A holder has one plain slot, or odd ones.
	plain, odd [seatPageSlots / 64]uint64
	// info is, for odd slots, any | classes<<16, where any is the slot that answers
	// the widest class for the same holder.
	info [seatPageSlots]uint32
}

const (
	seatClasses   = 16    // bit of info where the classes begin
	seatPageBytes = 8_448 // of a seatPage
)

// emptySeats is a page of slots that speak for nobody.
var emptySeats seatPage

func newSeatTable() *seatTable {
	t := &seatTable{}
	for i := range t.pages {
		t.pages[i] = &emptySeats
	}
	return t
}

func (t *seatTable) page(s slot) *seatPage { return t.pages[s/seatPageSlots] }

// with returns a table in which h's slots answer classes instead of those that did
// so far.
//
// Cost: a table and a page of about 10 KiB, more where h's slots lie far apart.
func (t *seatTable) with(h *holder, classes [numClasses]slot) *seatTable {
	next := *t
	var own [2 * numClasses]slot // pages already copied, by any of their slots; 0: none
	copied := own[:0]
	page := func(s slot) *seatPage {
		for _, o := range copied {
			if o/seatPageSlots == s/seatPageSlots {
				return next.page(s)
			}
		}
		p := *next.page(s)
		next.pages[s/seatPageSlots] = &p
		copied = append(copied, s)
		return &p
	}
	for _, s := range h.class {
		if s == 0 || next.page(s).holders[s%seatPageSlots] == 0 {
			continue
		}
		p, k, bit := page(s), s%seatPageSlots, uint64(1)<<(s%64)
		if p.odd[k/64]&bit != 0 {
			next.odd--
		}
		p.holders[k], p.info[k] = 0, 0
		p.plain[k/64] &^= bit
		p.odd[k/64] &^= bit
	}
	for c, s := range classes {
		if s == 0 || c > 0 && classes[c-1] == s {
			continue
		}
		mask := uint32(0)
		for d, o := range classes {
			if o == s {
				mask |= 1 << d
			}
		}
		p, k, bit := page(s), s%seatPageSlots, uint64(1)<<(s%64)
		p.holders[k] = uint32(h.id)
		if mask == 1<<numClasses-1 {
			p.plain[k/64] |= bit
			continue
		}
		p.odd[k/64] |= bit
		p.info[k] = uint32(classes[classAny]) | mask<<seatClasses
		next.odd++
	}
	return &next
}

// bytes is the memory of t.
func (t *seatTable) bytes() uint64 {
	n := uint64(len(t.pages) * 8)
	for _, p := range t.pages {
		if p != &emptySeats {
			n += seatPageBytes
		}
	}
	return n
}
