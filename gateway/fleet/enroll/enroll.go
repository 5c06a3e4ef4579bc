// SPDX-License-Identifier: Apache-2.0

// Before: POST /workers, flags, files, and the health of workers. After: the registry.

package enroll

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"kindex/gateway/fleet"
)

// A Getter asks a worker over HTTP. Its errors are one line each.
type Getter interface {
	Get(ctx context.Context, w *fleet.Worker, path string, limit int) (status int, body []byte, err error)
	Forget(w *fleet.Worker)
}

// Options are a prober's. A zero field means its default.
type Options struct {
	Timeout time.Duration // of asking once, all questions together; 5 s
	First   time.Duration // pause after the first failure; 50 ms, 1.6 times more each time
	Most    time.Duration // pause between failures at most; 2 s
	Failed  time.Duration // and after as many failures as a registration allows; 10 s
	Recheck time.Duration // pause between questions to one that is known; 60 s, below 0: never
	Confirm time.Duration // pause before one that seems to be another engine is believed; 300 ms
	AtOnce  int           // engines asked at the same time; 64
	TLS     *tls.Config   // to grpcs workers; nil: the system's roots
}

func (o *Options) setDefaults() {
	for _, d := range []struct {
		of *time.Duration
		is time.Duration
	}{
		{&o.Timeout, 5 * time.Second},
		{&o.First, 50 * time.Millisecond},
		{&o.Most, 2 * time.Second},
		{&o.Failed, 10 * time.Second},
		{&o.Recheck, 60 * time.Second},
		{&o.Confirm, 300 * time.Millisecond},
	} {
		if *d.of == 0 {
			*d.of = d.is
		}
	}
	if o.AtOnce <= 0 {
		o.AtOnce = 64
	}
}

// A Prober finds out about registrations, each in a goroutine of its own until the
// registration or the prober ends.
//
// Concurrency: any goroutine.
type Prober struct {
	fleet *fleet.Registry
	get   Getter
	o     Options
	log   *slog.Logger
	turns chan struct{} // one in it for each engine that is being asked

	ctx  context.Context
	end  context.CancelFunc
	done sync.WaitGroup

	mu    sync.Mutex
	known map[*fleet.Registration]*following // guarded by mu
}

// following is what others than its goroutine know of one registration.
type following struct {
	wake chan struct{}
	away *fleet.Worker // was seen not to serve; nil: none was
}

// New returns a prober that knows nobody.
func New(r *fleet.Registry, get Getter, o Options, log *slog.Logger) *Prober {
	o.setDefaults()
	p := &Prober{fleet: r, get: get, o: o, log: log, turns: make(chan struct{}, o.AtOnce), known: make(map[*fleet.Registration]*following)}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.done.Go(p.look)
	return p
}

// lookPeriod is how often it is looked who came back.
const lookPeriod = 250 * time.Millisecond

// look has whoever comes back after an absence asked again, for it may be another engine,
// and ends the goroutines of who was removed.
func (p *Prober) look() {
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
		}
		p.mu.Lock()
		for reg, f := range p.known {
			w := reg.Worker()
			switch {
			case p.fleet.Get(reg.ID) != reg:
				f.again() // to its end
			case w == nil:
			case w.State() != fleet.Ready || w.Vetoes()&(fleet.Unreachable|fleet.BreakerOpen) != 0:
				f.away = w
			case f.away != nil:
				if f.away == w {
					f.again()
				}
				f.away = nil
			}
		}
		p.mu.Unlock()
	}
}

// again wakes the goroutine. The prober's mu is held.
func (f *following) again() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Close ends all questions.
func (p *Prober) Close() {
	p.mu.Lock()
	p.end()
	p.mu.Unlock()
	p.done.Wait()
}

// Register takes a registration in and begins to find out about it. It returns at once.
//
// Errors: of [fleet.Registry.Enroll].
func (p *Prober) Register(s fleet.Spec) (*fleet.Registration, error) {
	reg, err := p.fleet.Enroll(s)
	if err != nil {
		return reg, err
	}
	wake := make(chan struct{}, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return reg, nil
	}
	p.known[reg] = &following{wake: wake}
	p.done.Go(func() {
		p.follow(reg, wake)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.known, reg)
	})
	return reg, nil
}

// Again has a worker asked again soon: it came back after an absence, or its
// registration changed. It returns at once.
func (p *Prober) Again(id string) {
	reg := p.fleet.Get(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.known[reg]; f != nil {
		f.again()
	}
}

// standing is what the goroutine of one registration remembers.
type standing struct {
	failures int
	pause    time.Duration
	told     string // the reason last logged
}

// follow asks about reg until it is no more.
func (p *Prober) follow(reg *fleet.Registration, wake <-chan struct{}) {
	st := standing{pause: p.o.First}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
		if w := reg.Worker(); p.fleet.Get(reg.ID) != reg || w != nil && w.State() >= fleet.Draining {
			return
		}
		next := p.step(reg, &st)
		if next < 0 {
			continue // only when it is woken
		}
		timer.Reset(next/2 + rand.N(next/2+1))
	}
}

// step asks once and does what follows. It returns when to ask again; below 0: only when
// woken.
func (p *Prober) step(reg *fleet.Registration, st *standing) time.Duration {
	w := reg.Worker()
	if w == nil {
		reg.Note(fleet.Job{Status: "processing", Attempts: st.failures, Message: st.told})
	}
	found, err := p.ask(reg)
	if p.ctx.Err() != nil {
		return -1
	}
	if err == nil {
		err = p.settle(reg, w, found)
	}
	if err == nil {
		*st = standing{pause: p.o.First}
		return p.o.Recheck
	}
	if w != nil && st.failures == 0 && reg.Job().Status == "done" {
		// It serves, or health says that it does not: one answer that failed is no news.
		return p.o.Recheck
	}
	return p.failed(reg, st, err)
}

// failed notes why reg is not known yet. One whose models were given joins all the same,
// so that they are known to be served, by nobody yet.
func (p *Prober) failed(reg *fleet.Registration, st *standing, err error) time.Duration {
	st.failures++
	given := reg.Given()
	why := oneLine(err)
	over := given.MaxAttempts > 0 && st.failures >= given.MaxAttempts
	status := "processing"
	if over {
		status = "failed"
	}
	reg.Note(fleet.Job{Status: status, Attempts: st.failures, Message: why})
	if why != st.told {
		st.told = why
		p.log.Warn("worker not known yet", "worker", reg.ID, "url", given.URL, "attempts", st.failures, "error", why)
	}
	if reg.Worker() == nil && len(given.Models) > 0 {
		if _, err := p.fleet.Join(reg, *given); err != nil {
			p.log.Warn("worker cannot join", "worker", reg.ID, "url", given.URL, "error", oneLine(err))
		}
	}
	if over {
		return p.o.Failed
	}
	pause := st.pause
	st.pause = min(st.pause*8/5, p.o.Most)
	return pause
}

// settle makes what was found so.
func (p *Prober) settle(reg *fleet.Registration, w *fleet.Worker, f *found) error {
	given := reg.Given()
	if w != nil {
		f.remember(w.Spec)
	}
	s := f.onto(given)
	switch {
	case w == nil || reg.Job().Status != "done": // it joined as it was given, if it did
		if w != nil && sameEngine(w, s) {
			return p.settleModels(reg, w, f, s)
		}
	case sameEngine(w, s):
		return p.settleModels(reg, w, f, s)
	default:
		select {
		case <-p.ctx.Done():
			return p.ctx.Err()
		case <-time.After(p.o.Confirm):
		}
		var err error
		if f, err = p.ask(reg); err != nil {
			return err
		}
		f.remember(w.Spec)
		if s = f.onto(reg.Given()); sameEngine(w, s) {
			return nil
		}
		p.log.Warn("worker is another engine now", "worker", reg.ID, "url", given.URL, "was", describe(w.Spec), "is", describe(s))
	}
	joined, err := p.fleet.Join(reg, *s)
	if err != nil {
		if errors.Is(err, fleet.ErrUnknown) || errors.Is(err, fleet.ErrLeaving) {
			return nil // removed meanwhile
		}
		return err
	}
	reg.Note(fleet.Job{Status: "done", Message: f.odd(given)})
	p.log.Debug("worker known", "worker", reg.ID, "url", joined.Spec.URL, "engine", joined.Spec.Engine, "version", f.version,
		"models", joined.Spec.Models, "ranks", len(joined.Holders), "block_size", joined.Spec.BlockSize)
	return nil
}

// settleModels brings the adapters of an engine that is still the same up to date.
func (p *Prober) settleModels(reg *fleet.Registration, w *fleet.Worker, f *found, s *fleet.Spec) error {
	if reg.Job().Status != "done" {
		reg.Note(fleet.Job{Status: "done", Message: f.odd(reg.Given())})
	}
	if maps.Equal(w.Serves().Adapters, s.Adapters) {
		return nil
	}
	p.log.Info("worker's adapters changed", "worker", reg.ID, "url", w.Spec.URL, "adapters", len(s.Adapters))
	err := p.fleet.Adapters(w, s.Adapters)
	if errors.Is(err, fleet.ErrUnknown) {
		return nil
	}
	return err
}

// ask asks the engine of reg everything once.
func (p *Prober) ask(reg *fleet.Registration) (*found, error) {
	select {
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	case p.turns <- struct{}{}:
	}
	defer func() { <-p.turns }()
	ctx, cancel := context.WithTimeout(p.ctx, p.o.Timeout)
	defer cancel()
	given := reg.Given()
	if given.GRPC() {
		return p.askGRPC(ctx, given)
	}
	f, err := p.askHTTP(ctx, reg)
	if err == nil || !strings.HasPrefix(given.URL, "http://") || !errors.Is(err, errNotHTTP) {
		return f, err
	}
	as := *given
	as.URL = "grpc" + strings.TrimPrefix(given.URL, "http")
	if f, grpcErr := p.askGRPC(ctx, &as); grpcErr == nil {
		return f, nil
	}
	return nil, err
}

// oneLine returns what err says, in one line of bounded length.
func oneLine(err error) string {
	s := strings.Join(strings.Fields(err.Error()), " ")
	if len(s) > 500 {
		s = strings.ToValidUTF8(s[:500], "") + "..."
	}
	return s
}
