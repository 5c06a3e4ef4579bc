// SPDX-License-Identifier: Apache-2.0

// Before: internal/shm's threads, with batches of requests out of clients' rings.
// After: one shard's lookup; the registry says whom its holders stand for.

package indexsrv

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"kindex/internal/kv"
	"kindex/internal/shm"
	"kindex/numa"
	"kindex/shard"
)

// shmPart gives lookups to processes of this machine through shared memory. A thread
// for each shard answers with the holders of that shard; the client unites them.
type shmPart struct {
	h       *Host
	srv     *shm.Server
	threads []shmThread // by shard
	table   shmTable
	waits   *shmWaits
}

// shmThread is what the thread of one shard needs for a batch.
type shmThread struct {
	batcher shard.Batcher
	index   shard.Index
	queries []shard.Query
	which   []int // the request of each query
	hits    []hit
	stripe  int // of the histograms
}

// addShm gives h the part, where its configuration asks for it.
func (h *Host) addShm() error {
	c := &h.cfg.Shm
	if c.Listen == "" {
		return nil
	}
	allow, err := parseShmAllow(c.Allow)
	if err != nil {
		return fmt.Errorf("shm-allow: %w", err)
	}
	p := &shmPart{h: h, table: shmTable{reg: h.reg}}
	for i := range h.pool.Shards() {
		t := shmThread{index: h.idx.shard(i), stripe: histogramStripes - 1 - i}
		t.batcher, _ = t.index.(shard.Batcher)
		p.threads = append(p.threads, t)
	}
	waits, err := p.plan()
	if err != nil {
		return fmt.Errorf("shm-listen: %w", err)
	}
	p.waits = waits
	h.shm, h.parts = p, append(h.parts, p)
	p.srv, err = shm.NewServer(shm.ServerOptions{
		Path:       c.Listen,
		Layout:     shm.Layout{Shards: len(p.threads), Requests: int(c.RequestBytes), Replies: int(c.ReplyBytes)},
		MaxClients: c.Clients, Allow: allow.has,
		Handler: p, Tables: &p.table, Asker: p,
		Spin: waits.spin, Place: p.place, Thread: waits.pin, Event: p.event,
	})
	return err
}

// shmWaits says how the threads wait, and where.
type shmWaits struct {
	spin time.Duration // 0: they sleep at once
	cpus [][]int       // by shard; none: not pinned
	log  func(shard int, err error)
}

// plan decides from the topology how threads wait: one that spins must have a core
// that nobody else wants, and so must who waits for it.
func (p *shmPart) plan() (*shmWaits, error) {
	cfg := &p.h.cfg
	w := &shmWaits{cpus: make([][]int, len(p.threads))}
	w.log = func(i int, err error) { p.h.log.Warn("a thread of lookups is not pinned", "shard", i, "error", err) }
	t, err := numa.Discover(orDefault(cfg.SysRoot, "/"))
	if err != nil {
		return nil, err
	}
	most := 1
	for _, n := range p.h.plans {
		most = max(most, n.lanes+n.shards)
	}
	spare := true
	pins := numa.PlanPins(t, cfg.Pin, most, runtime.GOMAXPROCS(0))
	for i := range p.threads {
		host := p.h.planOf(i).host
		for _, pin := range pins {
			if pin.Node == host {
				w.cpus[i] = pin.CPUs
			}
		}
		spare = spare && len(w.cpus[i]) >= most+spareCPUs && runtime.GOMAXPROCS(0) >= most+spareCPUs
	}
	if cfg.Shm.Wait == shmWaitSpin || cfg.Shm.Wait == shmWaitAuto && spare {
		w.spin = cfg.Shm.Spin
	}
	return w, nil
}

// pin puts the calling goroutine where shard i's memory is.
func (w *shmWaits) pin(i int) func() {
	if len(w.cpus[i]) == 0 {
		return func() {}
	}
	undo, err := numa.LockAndPin(w.cpus[i])
	if err != nil {
		w.log(i, err)
		return func() {}
	}
	return undo
}

// place puts a shard's part of a client's memory on the shard's node.
func (p *shmPart) place(i int, part []byte) error {
	_, err := numa.Place(part, p.h.planOf(i).memory)
	return err
}

// planOf returns the plan of the node that carries shard i.
func (h *Host) planOf(i int) *nodePlan {
	node := h.pool.NodeOf(i)
	for k := range h.plans {
		if h.plans[k].node == node {
			return &h.plans[k]
		}
	}
	panic("BUG: indexsrv: a shard lies on a node without a plan")
}

func (p *shmPart) listen() error {
	if err := p.srv.Listen(); err != nil {
		return err
	}
	if err := p.srv.Blind(); err != nil {
		p.h.log.Warn("lookups over shared memory are found by looking again and again", "error", err)
	}
	return nil
}

func (p *shmPart) serve() error {
	p.h.log.Info("serving shared memory", "socket", p.h.cfg.Shm.Listen, "shards", len(p.threads))
	return p.srv.Serve()
}

func (p *shmPart) drain(ctx context.Context) error { return p.srv.Drain(ctx) }

// Answer implements [shm.Handler].
func (p *shmPart) Answer(i int, batch []shm.Request) {
	t, g := &p.threads[i], p.h.reg
	models := *g.numbers.Load()
	t.queries, t.which = t.queries[:0], t.which[:0]
	for k := range batch {
		r := &batch[k]
		m := models[r.Model]
		if m == nil {
			r.Status, r.Version = shm.StatusModel, g.members.Load()
			continue
		}
		r.Status = shm.StatusOK
		if len(r.Hashes) == 0 {
			r.Version = g.members.Load()
			continue
		}
		t.queries = append(t.queries, shard.Query{Namespace: m.key.Namespace(r.Seed), Chain: r.Hashes, Matches: r.Matches})
		t.which = append(t.which, k)
	}
	if len(t.queries) == 0 {
		return
	}
	start := shm.Now() // half of what time.Now costs
	if t.batcher != nil {
		t.batcher.LookupBatch(t.queries)
	} else {
		for k := range t.queries {
			q := &t.queries[k]
			q.Matches = t.index.Lookup(q.Namespace, q.Chain, q.Matches)
		}
	}
	each := time.Duration(shm.Now()-start) / time.Duration(len(t.queries))
	for k := range t.queries {
		p.h.met.lookup.observe(t.stripe, each)
		r := &batch[t.which[k]]
		if p.h.traffic.due(t.stripe) {
			p.note(t, i, models[r.Model], r, t.queries[k].Matches)
		}
		r.Matches = p.choose(t, r, models[r.Model], t.queries[k].Matches)
		// After the holders were looked up: a table of this version knows those that were
		// there when that was registered or is newer and knows them gone.
		r.Version = g.members.Load()
	}
	clear(t.queries)
}

// note counts r, which found ms in shard i, among the sampled lookups.
func (p *shmPart) note(t *shmThread, i int, m *model, r *shm.Request, ms []kv.Match) {
	t.hits = t.hits[:0]
	for _, one := range ms {
		if rk := p.h.reg.holders.get(shard.Holder(one.Holder)); rk != nil {
			t.hits = append(t.hits, hit{rk, one.Device, one.Host, one.Any})
		}
	}
	p.h.traffic.note(m, r.Seed, r.Hashes, t.hits, i == 0)
	clear(t.hits) // hold no unregistered rank
}

// choose leaves in ms, a shard's matches, what r asks for and the registry knows.
func (p *shmPart) choose(t *shmThread, r *shm.Request, m *model, ms []kv.Match) []kv.Match {
	limited := r.Limit > 0 && len(ms) > r.Limit
	if r.Filtered {
		slices.Sort(r.Holders)
	}
	t.hits = t.hits[:0]
	n := 0
	for _, one := range ms {
		rk := p.h.reg.holders.get(shard.Holder(one.Holder))
		// A holder without a rank was unregistered while the index was asked. One of
		// another model is found by a seed that no names have.
		if rk == nil || rk.worker.model != m {
			continue
		}
		if r.Filtered {
			if _, ok := slices.BinarySearch(r.Holders, one.Holder); !ok {
				continue
			}
		}
		if limited {
			t.hits = append(t.hits, hit{rk, one.Device, one.Host, one.Any})
			continue
		}
		if !rk.worker.exact() {
			one.Any |= shm.DegradedBit
		}
		ms[n] = one
		n++
	}
	if !limited {
		return ms[:n]
	}
	slices.SortFunc(t.hits, compareHits)
	ms = ms[:0]
	for _, one := range t.hits[:min(r.Limit, len(t.hits))] {
		match := kv.Match{Holder: uint32(one.holder), Device: one.device, Host: one.host, Any: one.any}
		if !one.worker.exact() {
			match.Any |= shm.DegradedBit
		}
		ms = append(ms, match)
	}
	clear(t.hits) // hold no unregistered rank
	return ms
}
