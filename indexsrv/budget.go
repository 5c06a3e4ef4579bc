// SPDX-License-Identifier: Apache-2.0

// Before: indexSink, within its shard's turn. After: the index, whose stores are
// tight for a worker that the budget refuses.

package indexsrv

import (
	"sync/atomic"

	"kindex/shard"
)

// budget keeps one shard below its bound of memory by refusing new blocks of the
// worker that has most of it, then of the next as memory goes on filling up, long
// before the index would refuse everybody. Nothing that is there is taken away:
// whoever is refused is degraded until its content is known anew.
//
// The bytes of a worker are reckoned by its memberships in the shard: a block that
// several hold counts for each of them.
//
// Concurrency: a call of the shard's turn, but for load.
type budget struct {
	idx   shard.Sized
	bound uint64 // bytes
	begin uint64 // the first worker is refused at
	mark  uint64 // the next one is refused at
	calm  uint64 // below it everybody is taken again; lower where the index was full early

	accounts map[*worker]*account

	used, refused atomic.Uint64 // bytes, workers; as of the last batch
}

// account is what one worker has in one shard. The streams of its ranks share it.
type account struct {
	memberships uint64
	streams     int
	refused     atomic.Bool
}

// The budget's band begins a sixteenth below the bound; half of what is left of it
// goes before the next worker is refused; everybody is taken again a thirty-second
// below its beginning. Chosen: wide enough that one batch does not cross it.
const (
	budgetBand = 16
	budgetCalm = 32
)

// newBudget returns the budget of idx; nil where it has no bound.
func newBudget(idx shard.Index) *budget {
	s, ok := idx.(shard.Sized)
	if !ok {
		return nil
	}
	_, bound := s.Memory()
	if bound == 0 {
		return nil
	}
	begin := bound - bound/budgetBand
	return &budget{
		idx: s, bound: bound, begin: begin, mark: begin, calm: begin - bound/budgetCalm,
		accounts: map[*worker]*account{},
	}
}

// charge is one stream's part of its worker's account. The zero value charges
// nobody.
type charge struct {
	*account
	of          *worker
	budget      *budget
	memberships uint64 // of the stream
}

// open begins the charge of a stream of w.
func (b *budget) open(w *worker) charge {
	if b == nil {
		return charge{}
	}
	a := b.accounts[w]
	if a == nil {
		a = new(account)
		b.accounts[w] = a
	}
	a.streams++
	return charge{account: a, of: w, budget: b}
}

// close ends c: the stream's holder is gone.
func (c *charge) close() {
	if c.account == nil {
		return
	}
	c.settle(0)
	if c.streams--; c.streams == 0 {
		if c.refused.Load() {
			c.budget.refused.Add(^uint64(0))
		}
		delete(c.budget.accounts, c.of)
	}
	c.account = nil
}

// tight reports whether new blocks of the stream are refused.
//
// Concurrency: any goroutine, until close.
func (c *charge) tight() bool { return c.account != nil && c.refused.Load() }

// settle notes what the stream holds now, and what follows for everybody.
func (c *charge) settle(memberships uint64) {
	if c.account == nil {
		return
	}
	c.account.memberships += memberships - c.memberships
	c.memberships = memberships
	c.budget.settle()
}

// settle refuses the next worker where the index has filled up to the mark, or takes
// everybody again where there is room.
func (b *budget) settle() {
	used, _ := b.idx.Memory()
	b.used.Store(used)
	pressed := b.idx.Pressed()
	switch {
	case pressed >= b.mark:
		b.refuseNext(pressed)
	case (b.mark > b.begin || b.refused.Load() > 0) && pressed < b.calm:
		for _, a := range b.accounts {
			a.refused.Store(false)
		}
		b.refused.Store(0)
		b.mark, b.calm = b.begin, b.begin-b.bound/budgetCalm
	}
}

// full notes that the index refused what it was to take: memory that is free is not
// always of use. Where nobody is refused yet the worker with most is, so that what
// comes free is the others'.
func (c *charge) full() {
	if b := c.budget; c.account != nil && b.refused.Load() == 0 {
		pressed := b.idx.Pressed()
		b.refuseNext(pressed)
		b.calm = min(b.calm, pressed-min(pressed, b.bound/budgetCalm))
	}
}

func (b *budget) refuseNext(pressed uint64) {
	if most := b.most(); most != nil {
		most.refused.Store(true)
		b.refused.Add(1)
	}
	b.mark = max(b.mark, pressed+(b.bound-min(pressed, b.bound))/2)
}

// most returns the account of the worker that has most and is not refused yet; nil
// where all are, or nobody has anything.
func (b *budget) most() *account {
	var most *account
	for _, a := range b.accounts {
		if !a.refused.Load() && a.memberships > 0 && (most == nil || a.memberships > most.memberships) {
			most = a
		}
	}
	return most
}
