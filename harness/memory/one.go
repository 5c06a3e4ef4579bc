// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"kindex/asm"
	"kindex/harness/trial"
	"kindex/internal/kv"
	"kindex/shard"
)

// Account is what an index takes at one moment.
type Account struct {
	Memberships   uint64             `json:"memberships"`
	Blocks        uint64             `json:"distinct_blocks"`
	PerMembership float64            `json:"bytes_per_membership"`
	PerBlock      float64            `json:"bytes_per_distinct_block"`
	Purpose       map[string]float64 `json:"bytes_per_membership_by_purpose"` // the index's accounts
	Seen          trial.Bytes        `json:"bytes_seen"`                      // growth
	Accounted     uint64             `json:"bytes_accounted"`                 // the sum of the index's accounts
}

// Result is what one trial measured.
type Result struct {
	trial.Report
	Index   string   `json:"index"`
	Level   string   `json:"cpu_features"`
	Workers int      `json:"workers"`
	Holders int      `json:"holders_per_chain"`
	Private bool     `json:"private_names"`
	Mean    int      `json:"chain_blocks_mean"`
	Empty   int64    `json:"bytes_empty"` // of an index with holders and no content
	Filled  Account  `json:"filled"`
	Turned  *Account `json:"turned_over,omitempty"`
}

// fleet is an index under test.
type fleet struct {
	o       *Options
	idx     shard.Index
	ns      kv.Namespace
	holders []shard.Holder
	worker  map[uint32]int
	c       chain
	oldest  uint64 // chain that is there
	next    uint64 // chain that is not yet
	held    uint64 // memberships there must be
	blocks  int64
}

// One measures once, in this process.
//
// Errors: the index's; a count that is not as it must be; ctx's.
func One(ctx context.Context, o Options, p *trial.Progress) (*Result, error) {
	if err := asm.SetLevel(o.Level); err != nil {
		return nil, err
	}
	f := &fleet{o: &o}
	f.c.make(&o, 0) // its buffers are there before anything is counted
	f.c.contents, f.c.names, f.c.own = slices.Grow(f.c.contents, longest*o.Mean), slices.Grow(f.c.names, longest*o.Mean), slices.Grow(f.c.own, longest*o.Mean)
	before := trial.BytesNow()
	if err := f.begin(); err != nil {
		return nil, err
	}
	r := &Result{Index: o.Index, Level: asm.Level(), Workers: o.Workers, Holders: o.Holders, Private: o.Private, Mean: o.Mean}
	r.Report = trial.Report{Command: "memory", Corpus: "generated", Seed: o.Seed}
	r.Empty = trial.BytesNow().Since(before).All()
	for f.held < uint64(o.Memberships) {
		if err := f.add(ctx, p); err != nil {
			return nil, err
		}
	}
	var err error
	if r.Filled, err = f.account(before); err != nil {
		return nil, err
	}
	last := &r.Filled
	if turns := uint64(o.Turnover * float64(f.next)); turns > 0 {
		for range turns {
			if err := f.drop(); err != nil {
				return nil, err
			}
			for f.held < uint64(o.Memberships) {
				if err := f.add(ctx, p); err != nil {
					return nil, err
				}
			}
		}
		a, err := f.account(before)
		if err != nil {
			return nil, err
		}
		r.Turned, last = &a, &a
	}
	r.PerMembership, r.PerBlock = max(r.Filled.PerMembership, last.PerMembership), max(r.Filled.PerBlock, last.PerBlock)
	r.BlockOps = f.blocks
	r.Exact = f.check()
	r.Ops = int64(f.next+f.oldest)*int64(o.Holders) + r.Exact.Lookups
	runtime.KeepAlive(f)
	return r, nil
}

func (f *fleet) begin() (err error) {
	if f.idx, err = shard.New(f.o.Index, shard.Options{}); err != nil {
		return err
	}
	model := kv.MakeModelKey("", "memory", "default")
	f.ns = model.Namespace(kv.HashSeed)
	f.worker = make(map[uint32]int, f.o.Workers)
	for w := range f.o.Workers {
		h, err := f.idx.AddHolder(model)
		if err != nil {
			return err
		}
		f.holders, f.worker[uint32(h)] = append(f.holders, h), w
	}
	return nil
}

// add stores the next chain.
func (f *fleet) add(ctx context.Context, p *trial.Progress) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.c.make(f.o, f.next)
	f.next++
	for _, w := range f.c.holders {
		st := shard.Store{Namespace: f.ns, Engines: f.c.namesOf(f.o, w), Contents: f.c.contents}
		if err := f.idx.Store(f.holders[w], &st); err != nil {
			return err
		}
	}
	n := len(f.c.contents) * len(f.c.holders)
	f.held += uint64(n)
	f.blocks += int64(n)
	p.Sayf("%d holders a chain: %d chains, %d memberships", f.o.Holders, f.next-f.oldest, f.held)
	return nil
}

// drop removes the oldest chain, its end first.
func (f *fleet) drop() error {
	f.c.make(f.o, f.oldest)
	f.oldest++
	for _, w := range f.c.holders {
		names := slices.Clone(f.c.namesOf(f.o, w))
		slices.Reverse(names)
		if err := f.idx.Remove(f.holders[w], &shard.Remove{Engines: names}); err != nil {
			return err
		}
	}
	n := len(f.c.contents) * len(f.c.holders)
	f.held -= uint64(n)
	f.blocks += int64(n)
	return nil
}

// account reads all there is to count.
func (f *fleet) account(before trial.Bytes) (Account, error) {
	st := f.idx.Stats()
	a := Account{Memberships: st.Memberships, Blocks: st.Blocks, Purpose: map[string]float64{}, Seen: trial.BytesNow().Since(before)}
	if st.Memberships != f.held || st.Blocks == 0 {
		return a, fmt.Errorf("the index counts %d memberships of %d blocks, %d were stored", st.Memberships, st.Blocks, f.held)
	}
	for p, n := range st.Bytes {
		a.Accounted += n
		a.Purpose[shard.Purpose(p).String()] = float64(n) / float64(st.Memberships)
	}
	all := float64(a.Seen.Resident)
	if all == 0 {
		all = float64(a.Seen.All())
	}
	all = max(all, float64(a.Accounted))
	a.PerMembership, a.PerBlock = all/float64(st.Memberships), all/float64(st.Blocks)
	return a, nil
}

// checked is how many chains that are there, and as many that are not, are asked for.
const checked = 200

// check asks for chains and compares who holds them.
func (f *fleet) check() *trial.Exact {
	e := &trial.Exact{}
	ask := func(i uint64, there bool) {
		f.c.make(f.o, i)
		got := f.idx.Lookup(f.ns, f.c.contents, nil)
		ok := len(got) == map[bool]int{true: f.o.Holders}[there]
		for _, m := range got {
			ok = ok && int(m.Device) == len(f.c.contents) && slices.Contains(f.c.holders, f.worker[m.Holder])
		}
		e.Lookups++
		if !ok {
			e.Wrong++
		}
	}
	step := max(1, (f.next-f.oldest)/checked)
	for i := f.oldest; i < f.next; i += step {
		ask(i, true)
	}
	for i := range min(f.oldest, checked) {
		ask(i, false)
	}
	return e
}
