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

	mu     sync.Mutex
	seats  map[string]*seat // by model and instance id
	closed bool
	busy   sync.WaitGroup
}

// seat is a name that one worker after the other has at the host. While what is there
// is not what is wanted a goroutine of its own makes it so.
type seat struct {
	want *fleet.Worker // nil: nobody
	have *fleet.Worker
	reg  indexsrv.Registration // have's
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
	e := &embedded{host: h, log: log, seats: map[string]*seat{}}
	e.ctx, e.end = context.WithCancel(context.Background())
	e.loads = startLoads(h, &e.names, log)
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
	if len(w.Spec.Models) == 0 || streamless(w.Spec) {
		return
	}
	e.want(w, w)
}

// Left implements [Index].
func (e *embedded) Left(w *fleet.Worker) {
	e.names.remove(w)
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
	select {
	case s.kick <- struct{}{}:
	default:
	}
	if !s.busy {
		s.busy = true
		e.busy.Go(func() { e.settle(key, s) })
	}
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
		if want == have || e.closed {
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
		var err error
		if have != nil {
			if err = e.host.Unregister(e.ctx, reg, false); errors.Is(err, lookup.ErrNotFound) {
				err = nil
			}
			have = nil
		} else {
			reg = e.registration(want.Spec)
			if err = e.host.Register(e.ctx, reg); err == nil {
				have = want
			}
		}
		if !e.settled(s, want, have, reg, err) && !e.pause(s, &pause) {
			continue // closed: seen above
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

// pause waits before the next try; false: there is none.
func (e *embedded) pause(s *seat, d *time.Duration) bool {
	t := time.NewTimer(*d)
	defer t.Stop()
	*d = min(2**d, retryMost)
	select {
	case <-t.C:
	case <-s.kick:
		*d = retryFirst
	case <-e.ctx.Done():
		return false
	}
	return true
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
	if r.BlockSize == 0 {
		r.BlockSize = defaultBlock
	}
	return r
}

// Unready implements [Index].
func (e *embedded) Unready() []string {
	why := e.host.Unready()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.seats {
		if s.want != s.have && s.want != nil {
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
