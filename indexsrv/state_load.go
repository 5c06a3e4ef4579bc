// SPDX-License-Identifier: Apache-2.0

// Before: a state file, or another host's state. After: the index, then the registry.

package indexsrv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"kindex/indexsrv/state"
)

// load takes up the newest state of the directory that is good: its registrations,
// and the contents of its streams, together with what is configured. It reports
// whether there was one.
//
// Errors: a configured worker that is refused.
func (k *keeper) load(ctx context.Context) (found bool, err error) {
	begun := time.Now()
	newest, streams := k.good(stateFile)
	regs, _ := k.good(registrationsFile)
	if newest == nil && regs == nil {
		k.log.Info("no state to go on from: starting cold")
		return false, nil
	}
	r := &restorer{h: k.h, ctx: ctx, start: true}
	if regs != nil && (newest == nil || regs.number > newest.number) {
		// Written since: who was unregistered meanwhile does not come back.
		var list registrationList
		if err := readStateFile(regs.path, &list); err != nil { // it was good just now
			k.log.Error("registrations not read", "file", regs.path, "error", err)
		} else {
			r.wanted, r.peers, r.decided = list.regs, list.peers, true
		}
	}
	file := "none"
	if newest != nil {
		file = newest.path
		if err := readStateFile(file, r); err != nil { // the same
			k.log.Error("state not read to its end: what is missing begins cold", "file", file, "error", err)
		}
	}
	if err := r.finish(); err != nil {
		return true, err
	}
	took := time.Since(begun)
	k.stats.restored.Add(uint64(r.streams))
	k.stats.memberships.Add(r.memberships)
	k.stats.loadSeconds.Store(uint64(took))
	k.log.Info("state restored", "file", file, "written", r.head.Written.UTC().Format(time.RFC3339), "registrations", r.registered,
		"streams", r.streams, "of", streams, "memberships", r.memberships, "took", took)
	return true, nil
}

// good returns the newest good file of a kind, and how many streams it has; nil: there
// is none. Each one refused is told.
func (k *keeper) good(kind string) (*kept, int) {
	for _, f := range files(k.dir, kind) {
		var c state.Checked
		err := readStateFile(f.path, &c)
		if err == nil {
			return &f, c.Streams
		}
		k.stats.refused.Add(1)
		k.log.Warn("state file refused", "file", f.path, "error", err)
	}
	return nil, 0
}

func readStateFile(path string, t state.Taker) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return state.Read(bufio.NewReaderSize(f, 1<<20), t)
}

// registrationList keeps the registrations of a state.
type registrationList struct {
	state.Checked
	regs  []state.Registration
	peers []string
}

// Registrations implements [state.Taker].
func (l *registrationList) Registrations(rs []state.Registration) error { l.regs = rs; return nil }

// Peers implements [state.Taker].
func (l *registrationList) Peers(urls []string) error { l.peers = urls; return nil }

// restorer takes up one state that was found good: contents go into holders as they
// are read, several at a time; then all is registered.
type restorer struct {
	h     *Host
	ctx   context.Context // of the restoring
	start bool            // of the host: what is configured is registered, too

	// What is to be registered. decided: by a younger file than the one that is read.
	wanted  []state.Registration
	peers   []string
	decided bool

	head state.Head
	regs []state.Registration     // of the state that is read
	want map[rankKey]StreamConfig // of all that will be registered
	room chan struct{}            // loads at a time
	wait sync.WaitGroup

	mu          sync.Mutex // guards what follows
	loaded      map[rankKey]loaded
	streams     int
	memberships uint64

	registered int
}

var _ state.Taker = (*restorer)(nil)

// Head implements [state.Taker].
func (r *restorer) Head(h state.Head) error { r.head = h; return nil }

// Peers implements [state.Taker].
func (r *restorer) Peers(urls []string) error {
	if !r.decided {
		r.peers = urls
	}
	return nil
}

// Registrations implements [state.Taker].
func (r *restorer) Registrations(rs []state.Registration) error {
	r.regs = rs
	if !r.decided {
		r.wanted = rs
	}
	r.plan()
	return nil
}

// plan finds out what will be registered: what is configured, and of the state what
// has no name of these nor of what is here already.
func (r *restorer) plan() {
	r.want, r.loaded = map[rankKey]StreamConfig{}, map[rankKey]loaded{}
	r.room = make(chan struct{}, runtime.GOMAXPROCS(0))
	add := func(reg *Registration, live []int) {
		cfgs, faults := reg.streams(r.h.reg.limits)
		if len(faults) > 0 {
			return // refused, and told, when it is registered
		}
		for _, c := range cfgs {
			key := rankKey{reg.name(), reg.Instance.text, c.Rank}
			if _, ok := r.want[key]; !ok && (live == nil || slices.Contains(live, c.Rank)) {
				r.want[key] = c
			}
		}
	}
	if r.start {
		for i := range r.h.cfg.Workers {
			add(&r.h.cfg.Workers[i], nil)
		}
	}
	for i := range r.wanted {
		reg := registrationOf(&r.wanted[i])
		if r.configured(&reg) {
			continue
		}
		add(&reg, r.wanted[i].Live)
	}
}

// configured reports whether the command line has a worker of that name.
func (r *restorer) configured(reg *Registration) bool {
	return r.start && slices.ContainsFunc(r.h.cfg.Workers, func(c Registration) bool {
		return c.name() == reg.name() && c.Instance.text == reg.Instance.text
	})
}

// Stream implements [state.Taker].
func (r *restorer) Stream(st *state.Stream) error {
	reg := registrationOf(&r.regs[st.Registration])
	key := rankKey{reg.name(), reg.Instance.text, st.Rank}
	want, ok := r.want[key]
	if !ok || !st.HasSeq {
		return r.ctx.Err()
	}
	cfgs, faults := reg.streams(r.h.reg.limits)
	i := slices.IndexFunc(cfgs, func(c StreamConfig) bool { return c.Rank == st.Rank })
	if len(faults) > 0 || i < 0 || !sameStream(&cfgs[i], &want) {
		return nil // of another stream than the one that will be registered
	}
	if r.h.reg.has(key) {
		return nil
	}
	select {
	case r.room <- struct{}{}:
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
	r.wait.Go(func() {
		defer func() { <-r.room }()
		r.load(key, &want, st)
	})
	return nil
}

// load puts one stream's content into a holder of its own.
func (r *restorer) load(key rankKey, cfg *StreamConfig, st *state.Stream) {
	idx := r.h.idx
	rebase(&st.Content, cfg.Model.Namespace)
	holder, err := idx.AddHolder(cfg.Model)
	if err != nil {
		return // registering it is refused, and told, too
	}
	if err := idx.Load(holder, cfg.Model, &st.Content); err != nil {
		_ = idx.Drop(holder) // known: it was just added
		r.h.log.Warn("a stream's content finds no room: it begins cold", "model_name", key.name.model, "instance_id", key.id, "dp_rank", key.rank, "error", err)
		return
	}
	at := &Resume{Position: st.Position, Memory: st.Memory, Relay: st.Relay}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, twice := r.loaded[key]; twice {
		_ = idx.Drop(holder)
		return
	}
	r.loaded[key] = loaded{holder, at}
	r.streams++
	if hs, err := idx.HolderStats(holder); err == nil {
		r.memberships += hs.Memberships
	}
}

// finish registers what the state has, once all of it is loaded: what is configured
// first, then what has no name of these nor of what is here already.
//
// Errors: a configured worker that is refused.
func (r *restorer) finish() error {
	if r.want == nil {
		r.plan()
	}
	r.wait.Wait()
	defer func() { dropLoaded(r.h.idx, r.loaded) }()
	if r.start {
		for i := range r.h.cfg.Workers {
			reg := r.h.cfg.Workers[i]
			if err := r.register(&reg, nil, actorConfig, "register"); err != nil {
				return fmt.Errorf("worker %s: %w", reg.Instance, err)
			}
		}
	}
	for i := range r.wanted {
		reg := registrationOf(&r.wanted[i])
		if r.configured(&reg) {
			continue
		}
		live := slices.DeleteFunc(slices.Clone(r.wanted[i].Live), func(rank int) bool {
			return r.h.reg.has(rankKey{reg.name(), reg.Instance.text, rank})
		})
		if len(live) > 0 && r.register(&reg, live, actorState, "restore") == nil {
			r.registered++
		}
	}
	for _, p := range r.peers {
		r.h.peers.add(p)
	}
	return nil
}

// abandon ends what was loaded and will not be registered.
func (r *restorer) abandon() {
	r.wait.Wait()
	dropLoaded(r.h.idx, r.loaded)
}

func (r *restorer) register(reg *Registration, live []int, a actor, action string) error {
	old := r.take(reg, live)
	err := r.h.reg.registerLoaded(r.ctx, reg, live, old)
	r.h.auditRegistration(a, action, reg, err)
	dropLoaded(r.h.idx, old)
	return err
}

// take returns the contents loaded for the ranks of reg.
func (r *restorer) take(reg *Registration, live []int) map[int]loaded {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[int]loaded{}
	first, n := reg.Rank, max(reg.Ranks, 1)
	for rank := first; rank < first+n; rank++ {
		key := rankKey{reg.name(), reg.Instance.text, rank}
		if l, ok := r.loaded[key]; ok && (live == nil || slices.Contains(live, rank)) {
			out[rank] = l
			delete(r.loaded, key)
		}
	}
	return out
}

// dropLoaded ends the holders that nobody took.
func dropLoaded[K comparable](idx *Writer, old map[K]loaded) {
	for _, l := range old {
		_ = idx.Drop(l.holder) // known: it was just added
	}
}

// has reports whether a rank of that name is registered.
func (g *registry) has(key rankKey) bool {
	m := g.find(key.name)
	if m == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	w := m.workers[key.id]
	return w != nil && w.rank(key.rank) != nil
}
