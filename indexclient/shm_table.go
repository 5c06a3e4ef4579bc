// SPDX-License-Identifier: Apache-2.0

// Before: the table frames of a host's socket. After: lookups over shared memory, which
// make numbers of names and back.

package indexclient

import (
	"slices"

	"kindex/internal/shm"
)

// sharedTable is what a host's numbers mean. It is never changed: a newer one shares
// with it what is still the same.
type sharedTable struct {
	version uint64
	models  map[sharedName]*sharedModel
	numbers map[uint64]*sharedModel
	pages   []*sharedPage // of holders, by number

	newer chan struct{} // closed when there is a newer one
}

// sharedName names a model.
type sharedName struct{ tenant, model, group string }

// sharedModel is one model of a table.
type sharedModel struct {
	number    uint64
	blockSize int
	holders   []uint32 // ascending
}

// sharedHolder is whom a holder's number stands for.
type sharedHolder struct {
	instance string
	number   bool // it was given as an integer
	known    bool
	rank     int32
	tie      uint64 // orders holders as they were registered, those of one instance by rank
}

// rankBits are enough for a rank within tie: no instance has more.
const rankBits = 16

const sharedPageBits = 8

type sharedPage struct {
	live    int
	holders [1 << sharedPageBits]sharedHolder
}

func newSharedTable() *sharedTable {
	return &sharedTable{models: map[sharedName]*sharedModel{}, numbers: map[uint64]*sharedModel{}, newer: make(chan struct{})}
}

// holder returns whom h stands for; nil: nobody that this table knows.
func (t *sharedTable) holder(h uint32) *sharedHolder {
	i := int(h >> sharedPageBits)
	if i >= len(t.pages) || t.pages[i] == nil {
		return nil
	}
	if s := &t.pages[i].holders[h&(1<<sharedPageBits-1)]; s.known {
		return s
	}
	return nil
}

// with returns the table that c makes of t.
func (t *sharedTable) with(c *shm.Change) *sharedTable {
	n := newSharedTable()
	n.version = c.Version
	if !c.Whole {
		for name, m := range t.models {
			n.models[name], n.numbers[m.number] = m, m
		}
		n.pages = slices.Clone(t.pages)
	}
	for _, gone := range c.GoneModels {
		for name, m := range n.models {
			if m.number == gone {
				delete(n.models, name)
				delete(n.numbers, gone)
			}
		}
	}
	for _, m := range c.Models {
		one := &sharedModel{number: m.Number, blockSize: m.BlockSize}
		n.models[sharedName{m.Tenant, m.Name, m.Group}], n.numbers[m.Number] = one, one
	}
	n.changeHolders(c)
	return n
}

// changeHolders takes holders out of a table in the making and puts others in. What
// it shares with an older one it copies before.
func (t *sharedTable) changeHolders(c *shm.Change) {
	own := map[int]bool{} // pages that are this table's alone
	page := func(h uint32) *sharedPage {
		i := int(h >> sharedPageBits)
		for i >= len(t.pages) {
			t.pages = append(t.pages, nil)
		}
		if !own[i] {
			own[i] = true
			p := &sharedPage{}
			if t.pages[i] != nil {
				*p = *t.pages[i]
			}
			t.pages[i] = p
		}
		return t.pages[i]
	}
	touched := map[uint64]bool{}
	for _, gone := range c.GoneHolders {
		h := uint32(gone)
		if t.holder(h) == nil {
			continue
		}
		p := page(h)
		p.holders[h&(1<<sharedPageBits-1)] = sharedHolder{}
		if p.live--; p.live == 0 {
			t.pages[h>>sharedPageBits] = nil
			own[int(h>>sharedPageBits)] = false
		}
	}
	for _, m := range t.numbers { // few; their lists are rebuilt where one of them went
		if slices.ContainsFunc(m.holders, func(h uint32) bool { return t.holder(h) == nil }) {
			touched[m.number] = true
		}
	}
	added := map[uint64][]uint32{}
	for i := range c.Holders {
		h := &c.Holders[i]
		p := page(h.Holder)
		s := &p.holders[h.Holder&(1<<sharedPageBits-1)]
		if !s.known {
			p.live++
		}
		*s = sharedHolder{instance: h.Instance, number: h.Number, known: true, rank: int32(h.Rank), tie: h.Order<<rankBits | uint64(h.Rank)&(1<<rankBits-1)}
		added[h.Model] = append(added[h.Model], h.Holder)
		touched[h.Model] = true
	}
	for number := range touched {
		m := t.numbers[number]
		if m == nil {
			continue
		}
		holders := slices.DeleteFunc(slices.Clone(m.holders), func(h uint32) bool { return t.holder(h) == nil })
		holders = append(holders, added[number]...)
		slices.Sort(holders)
		next := &sharedModel{number: m.number, blockSize: m.blockSize, holders: slices.Compact(holders)}
		t.numbers[number] = next
		for name, old := range t.models {
			if old == m {
				t.models[name] = next
			}
		}
	}
}
