// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"sync/atomic"

	"kindex/shard"
)

// holderTable maps the index's holders to registered ranks. Holder numbers only
// grow and are never used again, so it is an array in pages: a page is dropped
// when the last of its ranks is gone.
//
// Concurrency: get from any goroutine, lock-free; set one call at a time.
type holderTable struct {
	pages atomic.Pointer[[]*holderPage] // replaced to grow; entries stay
}

// pageBits: 4 KiB a page, so that short-lived holders leave little behind.
const pageBits = 8

type holderPage struct {
	live  int // ranks in it; the setter's
	ranks [1 << pageBits]atomic.Pointer[rank]
	keys  [1 << pageBits]atomic.Uint64 // of the ranks: see rank.place
}

// get returns the rank that h is now, or nil.
func (t *holderTable) get(h shard.Holder) *rank {
	pages := t.pages.Load()
	p := int(h >> pageBits)
	if pages == nil || p >= len(*pages) || (*pages)[p] == nil {
		return nil
	}
	return (*pages)[p].ranks[h&(1<<pageBits-1)].Load()
}

// key returns the key of the rank that h is now; false: nobody. It touches no rank.
func (t *holderTable) key(h shard.Holder) (uint64, bool) {
	pages := t.pages.Load()
	p := int(h >> pageBits)
	if pages == nil || p >= len(*pages) || (*pages)[p] == nil {
		return 0, false
	}
	page := (*pages)[p]
	i := h & (1<<pageBits - 1)
	return page.keys[i].Load(), page.ranks[i].Load() != nil
}

// set makes h name r; nil: nobody.
func (t *holderTable) set(h shard.Holder, r *rank) {
	p := int(h >> pageBits)
	var pages []*holderPage
	if old := t.pages.Load(); old != nil {
		pages = *old
	}
	if p >= len(pages) || pages[p] == nil {
		if r == nil {
			return
		}
		grown := make([]*holderPage, max(p+1, len(pages)))
		copy(grown, pages)
		grown[p] = &holderPage{}
		t.pages.Store(&grown)
		pages = grown
	}
	page := pages[p]
	if r != nil {
		page.keys[h&(1<<pageBits-1)].Store(r.place())
	}
	was := page.ranks[h&(1<<pageBits-1)].Swap(r)
	switch {
	case was == nil && r != nil:
		page.live++
	case was != nil && r == nil:
		page.live--
	}
	if page.live == 0 {
		shrunk := append([]*holderPage(nil), pages...)
		shrunk[p] = nil
		t.pages.Store(&shrunk)
	}
}

// place orders ranks as equal matches are ordered: by their workers' registration, then by
// number.
func (r *rank) place() uint64 { return r.worker.order<<20 | uint64(r.number) }
