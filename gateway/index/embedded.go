// SPDX-License-Identifier: Apache-2.0

// Before: the registry's hooks and the router's lookups. After: an index host in this
// process, which follows the workers' streams.

package index

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kindex/gateway/fleet"
	"kindex/indexsrv"
	"kindex/internal/lookup"
)

// embedded is an index host without any server.
type embedded struct {
	host  *indexsrv.Host
	log   *slog.Logger
	guard guard // counts only: a lookup in process has no deadline
	names names
	loads *loads

	// aliases are further names of models, by name: the one they are registered under.
	// nil: none. Replaced, never changed.
	aliases atomic.Pointer[map[string]string]

	ctx context.Context // ends with Close
	end context.CancelFunc

	mu      sync.Mutex
	seats   map[string]*seat // by model and instance id
	closed  bool
	learned map[string]int // block sizes that engines' events told, by model
	busy    sync.WaitGroup
}

// seat is a name that one worker after the other has at the host. While what is there
// is not what is wanted a goroutine of its own makes it so.
type seat struct {
	want *fleet.Worker // nil: nobody
	have *fleet.Worker
	reg  indexsrv.Registration // have's
	none *fleet.Worker         // found to serve no events: as good as nobody
	busy bool
	why  string        // want could not be registered
	kick chan struct{} // want has changed
}

// Times of a seat, chosen, not measured.
const (
	retryFirst = 100 * time.Millisecond // after a refusal
	retryMost  = 5 * time.Second
)

// streamless workers tell of no events, so nobody follows them.
func streamless(s *fleet.Spec) bool {
	return s.Events.Endpoint == "" && s.Events.Relay == "" && !s.GRPC()
}

func openEmbedded(o *Options, log *slog.Logger) (Index, error) {
	cfg := indexsrv.DefaultConfig()
	cfg.KVIndex = o.Kind
	if o.Kind == "" || o.Kind == Run {
		cfg.KVIndex = Chain
	}
	cfg.Memory = o.Memory
	cfg.RelayTLS, cfg.RelayCA, cfg.RelayCert = o.Relay.TLS, o.Relay.CA, o.Relay.Cert
	cfg.RelayKey, cfg.RelayTokenFile = o.Relay.Key, o.Relay.TokenFile
	h, err := indexsrv.New(cfg, log)
	if err != nil {
		return nil, fmt.Errorf("kv-index: %w", err)
	}
	e := &embedded{host: h, log: log, seats: map[string]*seat{}, learned: map[string]int{}}
	e.ctx, e.end = context.WithCancel(context.Background())
	e.loads = startLoads(h, "", "", &e.names, log)
	return e, nil
}

// Lookup implements [Index].
func (e *embedded) Lookup(ctx context.Context, q *lookup.Query, a *lookup.Answer) error {
	asked := q
	if to := e.aliases.Load(); to != nil {
		if name, ok := (*to)[q.Model]; ok {
			own := *q
			own.Model = name
			asked = &own
		}
	}
	err := e.host.Lookup(ctx, asked, a)
	if err == nil {
		e.guard.answered.Add(1)
		return nil
	}
	if ctx.Err() == nil {
		r, _ := reasonOf(err)
		e.guard.failed[r].Add(1)
	}
	return err
}

// Joined implements [Index].
func (e *embedded) Joined(w *fleet.Worker) {
	e.names.add(w)
	e.loads.joined(w)
	if len(w.Spec.Models) == 0 || streamless(w.Spec) {
		return
	}
	e.want(w, w)
}

// Left implements [Index].
func (e *embedded) Left(w *fleet.Worker) {
	e.names.remove(w)
	e.loads.left(w)
	if len(w.Spec.Models) == 0 || streamless(w.Spec) {
		return
	}
	e.want(w, nil)
}

// seatKey names the seat of a worker.
func seatKey(s *fleet.Spec) string { return s.Models[0] + "\x00" + s.Instance }

// want seats next where w sits, or is to: w itself, or nobody. Nobody is wanted in
// place of w alone.
func (e *embedded) want(w, next *fleet.Worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := seatKey(w.Spec)
	s := e.seats[key]
	switch {
	case e.closed, next == nil && (s == nil || s.want != w):
		return
	case s == nil:
		s = &seat{kick: make(chan struct{}, 1)}
		e.seats[key] = s
	}
	s.want, s.why = next, ""
	e.realias()
	e.stir(key, s)
}

// realias makes the models' further names anew. The caller holds mu.
func (e *embedded) realias() {
	var to map[string]string
	first := map[string]bool{}
	for _, s := range e.seats {
		if s.want != nil {
			first[s.want.Spec.Models[0]] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(e.seats)) {
		s := e.seats[key]
		if s.want == nil {
			continue
		}
		for _, m := range s.want.Spec.Models[1:] {
			if first[m] {
				continue
			}
			if to == nil {
				to = map[string]string{}
			}
			if _, ok := to[m]; !ok {
				to[m] = s.want.Spec.Models[0]
			}
		}
	}
	if to == nil {
		e.aliases.Store(nil)
		return
	}
	e.aliases.Store(&to)
}

// settle seats who is wanted, until that is so.
func (e *embedded) settle(key string, s *seat) {
	pause := retryFirst
	for {
		e.mu.Lock()
		want, have, reg := s.want, s.have, s.reg
		if want == s.none {
			want = nil
		}
		right := want == have && (have == nil || reg.BlockSize == e.blockSize(have.Spec))
		if e.closed || right && !provisional(have, &reg) {
			s.busy = false
			if s.want == nil {
				delete(e.seats, key)
			}
			e.mu.Unlock()
			return
		}
		select {
		case <-s.kick:
		default:
		}
		e.mu.Unlock()
		if right {
			e.look(s, have, &reg, &pause)
			continue
		}
		var err error
		if have != nil {
			if err = e.host.Unregister(e.ctx, reg, false); errors.Is(err, lookup.ErrNotFound) {
				err = nil
			}
			have = nil
		} else {
			e.mu.Lock()
			reg = e.registration(want.Spec)
			e.mu.Unlock()
			if err = e.host.Register(e.ctx, reg); err == nil {
				have = want
			}
		}
		if e.settled(s, want, have, reg, err) {
			pause = retryFirst
		} else {
			e.pause(s, &pause)
		}
	}
}

// settled notes how a step of s ended, and reports whether the next may follow at once.
func (e *embedded) settled(s *seat, want, have *fleet.Worker, reg indexsrv.Registration, err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.have, s.reg = have, reg
	if err == nil {
		s.why = ""
		return true
	}
	if s.want == want && want != nil && s.why != err.Error() {
		s.why = err.Error()
		e.log.Warn("the index does not follow a worker", "instance_id", want.Spec.Instance, "error", err)
	}
	return false
}

// pause waits before the next try, until something else is wanted, or the end.
func (e *embedded) pause(s *seat, d *time.Duration) {
	t := time.NewTimer(*d)
	defer t.Stop()
	*d = min(2**d, retryMost)
	select {
	case <-t.C:
	case <-s.kick:
		*d = retryFirst
	case <-e.ctx.Done():
	}
}

// provisional reports whether w's registration may yet show to be wrong: nobody has said
// that there are events, or how long blocks are.
func provisional(w *fleet.Worker, r *indexsrv.Registration) bool {
	return w != nil && r.BlockSize != 0 && (w.Spec.BlockSize == 0 || implied(w.Spec))
}

// implied reports whether a worker's events are looked for at its own server, where
// nobody but a guess says that they are.
func implied(s *fleet.Spec) bool {
	return s.Events.Endpoint == "" && (s.Events.Relay == "" || s.GRPC() && s.Events.Relay == addressOf(s.URL))
}

// look looks whether what was assumed of have is so, and waits where that is not known
// yet.
func (e *embedded) look(s *seat, have *fleet.Worker, reg *indexsrv.Registration, pause *time.Duration) {
	f, ok := e.host.Following(reg.Model, reg.Instance.String())
	e.mu.Lock()
	switch {
	case !ok: // it is being unregistered
	case f.Unserved && implied(have.Spec):
		s.none, s.why = have, errNoEvents.Error()
		e.log.Info("the index does not follow a worker", "instance_id", have.Spec.Instance, "why", errNoEvents)
		e.mu.Unlock()
		return
	case f.BlockSize != 0 && f.Held == 0 && have.Spec.BlockSize == 0 && e.learn(reg.Model, reg.BlockSize, f.BlockSize):
		e.mu.Unlock()
		return
	}
	e.mu.Unlock()
	e.pause(s, pause)
}

// defaultBlock is the tokens of a block where nobody has said it yet: vLLM's. Where it
// is wrong the engine's events say so.
const defaultBlock = 16

// registration is how a worker is registered at the host.
func (e *embedded) registration(s *fleet.Spec) indexsrv.Registration {
	r := indexsrv.Registration{
		Instance: indexsrv.TextID(s.Instance), Model: s.Models[0], BlockSize: s.BlockSize, Ranks: s.Ranks, Engine: s.Engine,
	}
	switch {
	case s.Events.Relay != "":
		r.Source, r.Endpoint = "relay", s.Events.Relay
	case s.Events.Endpoint != "":
		r.Endpoint, r.ReplayEndpoint = s.Events.Endpoint, s.Events.Replay
	default:
		r.Source, r.Endpoint = "relay", addressOf(s.URL)
	}
	r.BlockSize = e.blockSize(s)
	return r
}

// blockSize returns the tokens of a block of s's model: as registered, else as another
// worker of the model is registered, else as engines' events told, else a guess. The
// caller holds mu.
func (e *embedded) blockSize(s *fleet.Spec) int {
	if s.BlockSize != 0 {
		return s.BlockSize
	}
	for _, other := range e.seats {
		if w := other.want; w != nil && w.Spec.BlockSize != 0 && w.Spec.Models[0] == s.Models[0] {
			return w.Spec.BlockSize
		}
	}
	if n := e.learned[s.Models[0]]; n != 0 {
		return n
	}
	return defaultBlock
}

// learn takes what an engine's events say of its blocks, where nobody else has said it,
// and has all workers of the model registered anew. It reports whether it did. The
// caller holds mu.
func (e *embedded) learn(model string, was, is int) bool {
	if e.learned[model] != 0 && e.learned[model] != was {
		return false // it was learned anew already
	}
	for _, s := range e.seats {
		if s.have == nil || s.reg.Model != model {
			continue
		}
		if f, ok := e.host.Following(model, s.reg.Instance.String()); ok && f.Held > 0 {
			return false // others' blocks are of that size
		}
	}
	e.learned[model] = is
	e.log.Info("blocks are of another size than assumed", "model_name", model, "block_size", is, "assumed", was)
	for key, s := range e.seats {
		if s.reg.Model == model {
			e.stir(key, s)
		}
	}
	return true
}

// stir has s settled. The caller holds mu.
func (e *embedded) stir(key string, s *seat) {
	select {
	case s.kick <- struct{}{}:
	default:
	}
	if !s.busy {
		s.busy = true
		e.busy.Go(func() { e.settle(key, s) })
	}
}

// Unready implements [Index].
func (e *embedded) Unready() []string {
	why := e.host.Unready()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.seats {
		if s.want != s.have && s.want != nil && s.want != s.none {
			why = append(why, s.want.Spec.Instance+": "+orElse(s.why, "is about to be followed"))
		}
	}
	return why
}

// Stream implements [Index].
func (e *embedded) Stream(w *fleet.Worker) Stream {
	if len(w.Spec.Models) == 0 || streamless(w.Spec) {
		return Stream{Status: "none", Why: "no event source is given"}
	}
	e.mu.Lock()
	s := e.seats[seatKey(w.Spec)]
	if s != nil && s.none == w {
		e.mu.Unlock()
		return Stream{Status: "none", Why: errNoEvents.Error()}
	}
	if s == nil || s.have != w {
		why := "is about to be followed"
		if s != nil && s.want == w && s.why != "" {
			why = s.why
		}
		e.mu.Unlock()
		return Stream{Status: "pending", Why: why}
	}
	e.mu.Unlock()
	return e.loads.stream(w)
}

// Host returns the host, to be looked into.
func (e *embedded) Host() *indexsrv.Host { return e.host }

// Stats implements [Index].
func (e *embedded) Stats() Stats {
	s := e.guard.stats()
	e.loads.count(&s)
	return s
}

// Close implements [Index].
func (e *embedded) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.end()
	e.busy.Wait()
	e.loads.close()
	return e.host.Close()
}
