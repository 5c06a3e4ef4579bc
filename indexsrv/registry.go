// SPDX-License-Identifier: Apache-2.0

// Before: registrations (HTTP, configuration). After: one stream and one holder
// of the index for each rank. Lookups read it without a lock.

package indexsrv

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/relay/feed"
	"kindex/shard"
)

// model is what one modelName stands for while it has a worker. A model that
// comes back is another one, perhaps with another block size.
type model struct {
	name      modelName
	number    uint64 // never another's, this process
	key       kv.ModelKey
	blockSize int                // tokens
	workers   map[string]*worker // by instance id; guarded by registry.mu
}

// worker is one instance of one model.
type worker struct {
	id    InstanceID
	model *model
	order uint64 // registrations before it, this process; never equal

	key   []byte // its id as a JSON object key, quotes included
	shown []byte // its id as JSON, as it was given

	ranks atomic.Pointer[[]*rank] // ascending; replaced, never changed
}

// rank is one stream of a worker, from registration to the end of its cleanup.
type rank struct {
	worker  *worker
	number  int
	key     []byte // its number as a JSON object key, quotes included
	cfg     StreamConfig
	reg     *Registration // that it came with, shared with those that came with it
	holder  shard.Holder
	shard   int // that holder lives in
	node    int // that shard belongs to
	stream  *stream
	since   time.Time
	traffic rankTraffic
	gone    chan struct{} // closed when nothing of it can touch the index any more
}

// exact reports whether all of w's streams are exact now. Lock-free.
func (w *worker) exact() bool {
	for _, r := range *w.ranks.Load() {
		if r.stream.current() != feed.StateActive {
			return false
		}
	}
	return true
}

// rankKey names a rank across registrations.
type rankKey struct {
	name modelName
	id   string
	rank int
}

func (r *rank) nameKey() rankKey { return rankKey{r.worker.model.name, r.worker.id.text, r.number} }

// registry knows who is registered, and who is on the way out.
//
// Concurrency: any goroutine. Lookups use find and holders, which take no lock.
type registry struct {
	log     *slog.Logger
	idx     *Writer
	src     feed.Source
	limits  feed.Limits
	relays  relayOptions
	maxRank int // streams at once
	cleanup time.Duration
	hooks   func(shard.Holder, int) streamHooks

	models  atomic.Pointer[map[modelName]*model] // replaced, never changed
	numbers atomic.Pointer[map[uint64]*model]    // the same, by number
	holders holderTable
	// members is counted up under mu when models, workers or ranks are others than
	// before, after the tables above say so.
	members atomic.Uint64
	changes tableChanges
	loads   tableChanges // records of engines' loads

	mu      sync.Mutex
	stopped bool
	order   uint64
	modelNo uint64            // models so far
	streams int               // registered ranks
	leaving map[rankKey]*rank // unregistered, not yet cleaned up
	bound   map[int]rankKey   // TCP ports that we bind, by ranks of both kinds
}

// newRegistry returns an empty registry whose streams come from src.
func newRegistry(cfg *Config, idx *Writer, src feed.Source, hooks func(shard.Holder, int) streamHooks, log *slog.Logger) *registry {
	g := &registry{
		log: log, idx: idx, src: src, hooks: hooks,
		limits:  cfg.feedLimits(),
		maxRank: cfg.MaxStreams,
		cleanup: cfg.CleanupTimeout,
		leaving: map[rankKey]*rank{},
		bound:   map[int]rankKey{},
	}
	g.models.Store(&map[modelName]*model{})
	g.numbers.Store(&map[uint64]*model{})
	return g
}

// find returns the model of that name, or nil. Lock-free.
func (g *registry) find(n modelName) *model { return (*g.models.Load())[n] }

// register adds all of r's ranks or none. It waits, no longer than ctx and the
// cleanup timeout, for a rank of the same name, or on an endpoint that both
// bind, to be gone.
func (g *registry) register(ctx context.Context, r *Registration) error {
	return g.registerLoaded(ctx, r, nil, nil)
}

// registerLoaded is register of those of r's ranks that are live (nil: all), whose
// holders have content already where old says so. Those that it did not take stay the
// caller's: they are still in old.
func (g *registry) registerLoaded(ctx context.Context, r *Registration, live []int, old map[int]loaded) error {
	if faults := r.Validate(); len(faults) > 0 {
		return faults[0]
	}
	cfgs, faults := r.streams(g.limits)
	if len(faults) > 0 {
		return faults[0]
	}
	if live != nil {
		cfgs = slices.DeleteFunc(cfgs, func(c StreamConfig) bool { return !slices.Contains(live, c.Rank) })
	}
	if len(cfgs) == 0 {
		return refuse(ErrInvalid, "dp_rank: the registration has none of these ranks")
	}
	if group := cfgs[0].Relay; group != nil {
		group.opts, group.size = g.relays, len(cfgs)
	}
	for i := range cfgs {
		if l, ok := old[cfgs[i].Rank]; ok {
			cfgs[i].Resume, cfgs[i].holder = l.at, l.holder
		}
	}
	ctx, cancel := context.WithTimeout(ctx, g.cleanup)
	defer cancel()
	for {
		g.mu.Lock()
		old := g.inTheWay(r, cfgs)
		if old == nil {
			break
		}
		g.mu.Unlock()
		select {
		case <-old.gone:
		case <-ctx.Done():
			return refuse(ErrUnavailable, "instance_id: %s dp_rank %d was unregistered and its cleanup still runs: try again",
				old.worker.id, old.number)
		}
	}
	defer g.mu.Unlock()
	if err := g.admissible(r, cfgs); err != nil {
		return err
	}
	clear(old) // whatever becomes of them is add's affair
	if err := g.add(r, cfgs); err != nil {
		return err
	}
	return nil
}

// inTheWay returns a leaving rank that r must wait for, or nil. The caller
// holds mu.
func (g *registry) inTheWay(r *Registration, cfgs []StreamConfig) *rank {
	for i := range cfgs {
		if old := g.leaving[rankKey{r.name(), r.Instance.text, cfgs[i].Rank}]; old != nil {
			return old
		}
		if key, ok := g.bound[feed.BoundPort(cfgs[i].Endpoint)]; ok && g.leaving[key] != nil {
			return g.leaving[key]
		}
	}
	return nil
}

// admissible returns why r contradicts what is registered. The caller holds mu.
func (g *registry) admissible(r *Registration, cfgs []StreamConfig) error {
	if g.stopped {
		return refuse(ErrUnavailable, "this host is stopping")
	}
	name := r.name()
	m := g.find(name)
	if m != nil && m.blockSize != r.BlockSize {
		return refuse(ErrConflict, "block_size: must be %d, as model %q in routing group %q has it", m.blockSize, name.model, name.group)
	}
	for i := range cfgs {
		c := &cfgs[i]
		if m != nil {
			if w := m.workers[r.Instance.text]; w != nil && w.rank(c.Rank) != nil {
				return refuse(ErrConflict, "instance_id: %s dp_rank %d is already registered for model %q in routing group %q: unregister it first",
					r.Instance, c.Rank, name.model, name.group)
			}
		}
		if key, ok := g.bound[feed.BoundPort(c.Endpoint)]; ok {
			return refuse(ErrConflict, "endpoint: %s is bound here already, for instance %s dp_rank %d", c.Endpoint, key.id, key.rank)
		}
	}
	if g.streams+len(cfgs) > g.maxRank {
		return refuse(ErrUnavailable, "instance_id: %d more streams would be over this host's limit of %d (max-streams): %d are registered",
			len(cfgs), g.maxRank, g.streams)
	}
	return nil
}

// rank returns w's rank of that number, or nil.
func (w *worker) rank(number int) *rank {
	for _, r := range *w.ranks.Load() {
		if r.number == number {
			return r
		}
	}
	return nil
}

// add starts the streams of r and publishes them. The caller holds mu.
func (g *registry) add(r *Registration, cfgs []StreamConfig) error {
	name := r.name()
	m := g.find(name)
	if m == nil {
		g.modelNo++
		m = &model{name: name, number: g.modelNo, key: cfgs[0].Model, blockSize: r.BlockSize, workers: map[string]*worker{}}
	}
	w := m.workers[r.Instance.text]
	if w == nil {
		w = &worker{id: r.Instance, model: m, order: g.order, key: lookup.AppendJSONString(nil, r.Instance.text)}
		w.shown = w.key
		if r.Instance.number {
			w.shown = []byte(r.Instance.text)
		}
		w.ranks.Store(&[]*rank{})
		g.order++
	}
	added := make([]*rank, 0, len(cfgs))
	reg := new(Registration)
	*reg = *r
	for i := range cfgs {
		rk, err := g.start(w, &cfgs[i])
		if err != nil {
			for _, rk := range added {
				g.leave(rk)
			}
			for _, c := range cfgs[i+1:] {
				if c.holder != 0 {
					_ = g.idx.Drop(c.holder) // known: it was just loaded
				}
			}
			return err
		}
		rk.reg = reg
		added = append(added, rk)
	}
	ranks := append(slices.Clone(*w.ranks.Load()), added...)
	slices.SortFunc(ranks, func(a, b *rank) int { return a.number - b.number })
	w.ranks.Store(&ranks)
	m.workers[w.id.text] = w
	if g.find(name) == nil {
		g.replaceModels(func(ms map[modelName]*model) { ms[name] = m })
	}
	for _, rk := range added {
		g.streams++
		g.holders.set(rk.holder, rk)
	}
	g.members.Add(1)
	g.changes.note()
	g.log.Info("registered", "model_name", name.model, "routing_group", name.group, "instance_id", w.id.text,
		"ranks", len(added), "endpoint", added[0].cfg.Endpoint, "block_size", m.blockSize)
	return nil
}

// start begins the stream of one rank. The caller holds mu.
func (g *registry) start(w *worker, cfg *StreamConfig) (*rank, error) {
	h := cfg.holder
	if h == 0 {
		var err error
		if h, err = g.idx.AddHolder(cfg.Model); err != nil {
			return nil, refuse(ErrUnavailable, "instance_id: %v", err)
		}
	}
	log := g.log.With("model_name", w.model.name.model, "instance_id", w.id.text, "dp_rank", cfg.Rank)
	hooks := g.hooks(h, g.idx.shardOf(h))
	hooks.Standing, hooks.Load = g.changes.note, g.loads.note
	hooks.Charge = g.idx.charge(h, w)
	s, err := startStream(g.src, *cfg, g.idx, h, hooks, log)
	if err != nil {
		_ = g.idx.Drop(h) // known: it was just added
		g.idx.discharge(h, &hooks.Charge)
		if errors.Is(err, feed.ErrNoSockets) {
			return nil, refuse(ErrUnavailable, "endpoint: %v", err)
		}
		return nil, refuse(ErrInvalid, "endpoint: %v", err)
	}
	rk := &rank{
		worker: w, number: cfg.Rank, key: lookup.AppendJSONString(nil, strconv.Itoa(cfg.Rank)),
		cfg: *cfg, holder: h, shard: g.idx.shardOf(h), node: g.idx.nodeOf(h), stream: s, since: time.Now(), gone: make(chan struct{}),
	}
	if port := feed.BoundPort(cfg.Endpoint); port != 0 {
		g.bound[port] = rk.nameKey()
	}
	return rk, nil
}

// leave begins the cleanup of a rank that no table names any more; the rank's
// name and a bound endpoint stay taken until it is done. The caller holds mu.
func (g *registry) leave(r *rank) {
	g.leaving[r.nameKey()] = r
	go func() {
		r.stream.stop() // the fence: nothing of r can touch the index after it
		if err := g.idx.Drop(r.holder); err != nil {
			g.log.Error("holder not dropped", "instance_id", r.worker.id.text, "dp_rank", r.number, "error", err)
		}
		g.idx.discharge(r.holder, &r.stream.sink.charge)
		g.mu.Lock()
		delete(g.leaving, r.nameKey())
		if port := feed.BoundPort(r.cfg.Endpoint); port != 0 {
			delete(g.bound, port)
		}
		g.mu.Unlock()
		close(r.gone)
	}()
}

// unregistration names what to take out.
type unregistration struct {
	instance    InstanceID
	model       string
	group       string // "": the default group, or else the only one it stands in
	tenant      string // the same
	rank        int
	oneRankOnly bool
}

// unregister takes out one rank or a whole instance. Lookups no longer name it
// when this returns, and when it returns nil nothing of it is left in the index.
func (g *registry) unregister(ctx context.Context, u *unregistration) error {
	g.mu.Lock()
	out, err := g.detach(u)
	g.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, g.cleanup)
	defer cancel()
	return waitGone(ctx, out)
}

func waitGone(ctx context.Context, ranks []*rank) error {
	for _, r := range ranks {
		select {
		case <-r.gone:
		case <-ctx.Done():
			return refuse(ErrUnavailable, "instance_id: %s dp_rank %d is unregistered, but its cleanup still runs", r.worker.id, r.number)
		}
	}
	return nil
}

// detach takes u's ranks out of all tables and begins their cleanup. The caller
// holds mu.
func (g *registry) detach(u *unregistration) ([]*rank, error) {
	w, err := g.worker(u)
	if err != nil {
		return nil, err
	}
	all := *w.ranks.Load()
	out, stay := all, []*rank{}
	if u.oneRankOnly {
		one := w.rank(u.rank)
		if one == nil {
			return nil, refuse(ErrNotFound, "dp_rank: instance %s of model %q has no rank %d", w.id, w.model.name.model, u.rank)
		}
		out = []*rank{one}
		stay = slices.DeleteFunc(slices.Clone(all), func(r *rank) bool { return r == one })
	}
	w.ranks.Store(&stay)
	if len(stay) == 0 {
		m := w.model
		delete(m.workers, w.id.text)
		if len(m.workers) == 0 {
			g.replaceModels(func(ms map[modelName]*model) { delete(ms, m.name) })
		}
	}
	for _, r := range out {
		g.streams--
		g.holders.set(r.holder, nil)
		g.leave(r)
	}
	g.members.Add(1)
	g.changes.note()
	g.log.Info("unregistered", "model_name", w.model.name.model, "routing_group", w.model.name.group,
		"instance_id", w.id.text, "ranks", len(out))
	return out, nil
}

// worker returns the one that u names. The caller holds mu.
func (g *registry) worker(u *unregistration) (*worker, error) {
	var found []*worker
	for n, m := range *g.models.Load() {
		w := m.workers[u.instance.text]
		if w == nil || n.model != u.model || u.group != "" && n.group != u.group || u.tenant != "" && n.tenant != u.tenant {
			continue
		}
		if n == makeModelName(u.tenant, u.model, u.group) {
			return w, nil
		}
		found = append(found, w)
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, refuse(ErrNotFound, "instance_id: %s is not registered for model %q%s", u.instance, u.model, g.elsewhere(u))
	}
	places := make([]string, len(found))
	for i, w := range found {
		places[i] = w.model.name.String()
	}
	slices.Sort(places)
	return nil, refuse(ErrConflict, "routing_group: must be given, instance %s stands in %s", u.instance, strings.Join(places, ", "))
}

// elsewhere helps whoever named the wrong model or group. The caller holds mu.
func (g *registry) elsewhere(u *unregistration) string {
	var places []string
	for n, m := range *g.models.Load() {
		if m.workers[u.instance.text] != nil {
			places = append(places, n.String())
		}
	}
	if len(places) == 0 {
		return ""
	}
	slices.Sort(places)
	if len(places) > 3 {
		places = append(places[:3], "...")
	}
	return " there (it is in " + strings.Join(places, ", ") + ")"
}

// replaceModels publishes a changed copy of the models. The caller holds mu.
func (g *registry) replaceModels(change func(map[modelName]*model)) {
	ms := maps.Clone(*g.models.Load())
	change(ms)
	numbers := make(map[uint64]*model, len(ms))
	for _, m := range ms {
		numbers[m.number] = m
	}
	g.numbers.Store(&numbers)
	g.models.Store(&ms)
}

// stop unregisters all and refuses what comes after. It returns when all are
// cleaned up, or with ctx.
func (g *registry) stop(ctx context.Context) error {
	g.mu.Lock()
	g.stopped = true
	for _, m := range *g.models.Load() {
		for id := range m.workers {
			u := &unregistration{instance: m.workers[id].id, model: m.name.model, group: m.name.group, tenant: m.name.tenant}
			if _, err := g.detach(u); err != nil {
				g.log.Error("not unregistered", "instance_id", id, "error", err)
			}
		}
	}
	out := slices.Collect(maps.Values(g.leaving))
	g.mu.Unlock()
	return waitGone(ctx, out)
}

// workers returns all workers, or those of the models that want accepts, in the
// order of their registration.
func (g *registry) workers(want func(modelName) bool) []*worker {
	g.mu.Lock()
	defer g.mu.Unlock()
	var ws []*worker
	for n, m := range *g.models.Load() {
		if want == nil || want(n) {
			ws = slices.AppendSeq(ws, maps.Values(m.workers))
		}
	}
	slices.SortFunc(ws, func(a, b *worker) int {
		if a.order < b.order {
			return -1
		}
		return 1
	})
	return ws
}
