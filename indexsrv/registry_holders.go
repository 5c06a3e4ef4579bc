// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"sync/atomic"

	"github.com/zeebo/xxh3"

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

// pageBits: 5 KiB a page, so that short-lived holders leave little behind.
const pageBits = 8

type holderPage struct {
	live  int // ranks in it; the setter's
	ranks [1 << pageBits]atomic.Pointer[rank]

	// Of the ranks, so that a lookup passes over most of what it finds without one.
	keys  [1 << pageBits]atomic.Uint64 // see rank.place; 0: nobody
	names [1 << pageBits]atomic.Uint32 // see nameHash
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

// holderReader reads what a table says of holders, for one lookup. Holders' numbers
// mostly ascend within one: it keeps the page of the one before.
type holderReader struct {
	pages []*holderPage
	page  *holderPage
	at    shard.Holder // of page
}

// reader returns a reader of what is there now.
func (t *holderTable) reader() holderReader {
	r := holderReader{page: &emptyPage, at: ^shard.Holder(0)}
	if pages := t.pages.Load(); pages != nil {
		r.pages = *pages
	}
	return r
}

// emptyPage is a page without a rank.
var emptyPage holderPage

func (r *holderReader) turn(at shard.Holder) {
	r.page, r.at = &emptyPage, at
	if p := int(at); p < len(r.pages) && r.pages[p] != nil {
		r.page = r.pages[p]
	}
}

// key returns the key of the rank that h is now; 0: nobody. It touches no rank.
func (r *holderReader) key(h shard.Holder) uint64 {
	if at := h >> pageBits; at != r.at {
		r.turn(at)
	}
	return r.page.keys[h&(1<<pageBits-1)].Load()
}

// name returns the hash of the instance id of the rank that h is now; that of nobody
// means nothing. It touches no rank.
func (r *holderReader) name(h shard.Holder) uint32 {
	if at := h >> pageBits; at != r.at {
		r.turn(at)
	}
	return r.page.names[h&(1<<pageBits-1)].Load()
}

// nameHash tells most instances from most others.
func nameHash(id string) uint32 { return uint32(xxh3.HashString(id)) }

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
		page.names[h&(1<<pageBits-1)].Store(nameHash(r.worker.id.text))
		page.keys[h&(1<<pageBits-1)].Store(r.place())
	} else {
		page.keys[h&(1<<pageBits-1)].Store(0)
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
// number. It is never 0.
func (r *rank) place() uint64 { return r.worker.order<<20 | uint64(r.number) + 1 }
