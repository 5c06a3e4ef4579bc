// SPDX-License-Identifier: Apache-2.0

// Before: an index host, asked all the time. After: a drill's judge.

package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"kindex/harness/publish"
)

// watchEvery is the pause between two looks at an index.
const watchEvery = 20 * time.Millisecond

// maxWrong bounds how many dishonest moments are told.
const maxWrong = 3

// watch looks at an index host while a fault is under way: a stream that is told to be
// active, before and after its content was read, holds the truth of its cursor; lookups
// are answered, and in time.
type watch struct {
	f      *face
	t      truth // nil: nobody knows it at every number
	sample func(*rand.Rand) (publish.Prompt, bool)
	e      *Env
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	seen    int         // looks at all content
	lives   map[int]int // the newest life whose truth a rank held
	armed   time.Time
	shown   time.Time // when first, since armed, some stream was not active
	lookups []time.Duration
	stale   int // lookups that were answered as degraded
	slow    int // lookups that took longer than the rule allows
	wrong   []string
	wrongs  int
	away    bool // the host is down on purpose
}

// watch begins to look. Stop ends it.
func (r *rig) watch(ctx context.Context, f *face) *watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{f: f, e: r.e, cancel: cancel, lives: map[int]int{}, armed: time.Now()}
	switch src := r.src.(type) {
	case *publish.Publisher:
		w.t, w.sample = src, src.Sample
	case *liveEngine:
		w.sample = src.sample
	}
	w.done.Go(func() {
		rng := rand.New(rand.NewPCG(r.e.o.Seed, 7)) //nolint:gosec // seeded on purpose
		for ctx.Err() == nil {
			w.look(ctx)
			w.ask(ctx, rng)
			_ = pause(ctx, watchEvery)
		}
	})
	r.e.later(func() error { w.stop(); return nil })
	return w
}

func (w *watch) stop() {
	w.cancel()
	w.done.Wait()
}

// arm forgets when a stream was last seen not to be active.
func (w *watch) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed, w.shown = time.Now(), time.Time{}
}

// shownAfter returns how long after it was armed a stream was not active any more.
func (w *watch) shownAfter() (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown.Sub(w.armed), !w.shown.IsZero()
}

// leave tells that the host is down on purpose, or not any more.
func (w *watch) leave(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = on
}

// fault notes what must not be. The lock is held.
func (w *watch) fault(what string) {
	w.wrongs++
	if len(w.wrong) < maxWrong {
		w.wrong = append(w.wrong, what)
	}
}

// look reads the host's streams, its content and the streams again.
func (w *watch) look(ctx context.Context) {
	index := w.f.host()
	before, err := index.listeners(ctx)
	at := time.Now()
	var seen map[int]observation
	if err == nil && w.t != nil {
		seen, err = index.observe(ctx)
	}
	var after map[int]listener
	if err == nil {
		after, err = index.listeners(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil || w.away || index != w.f.host() {
		return
	}
	if err != nil {
		w.fault("not answered: " + err.Error())
		return
	}
	w.seen++
	for _, l := range before {
		if l.Status != "active" && w.shown.IsZero() && at.After(w.armed) {
			w.shown = at
		}
	}
	if w.t == nil {
		return
	}
	if what := overclaims(before, seen, after, w.t, w.lives); what != "" {
		w.fault(what)
	}
}

// overclaims says which stream calls itself active and holds what is not the truth of
// its cursor; "" for none. lives are the newest lives known of each rank: a rank never
// goes back to an older one.
func overclaims(before map[int]listener, seen map[int]observation, after map[int]listener, t truth, lives map[int]int) string {
	for rank, o := range seen {
		if before[rank].Status != "active" || after[rank].Status != "active" || o.status != "active" {
			continue
		}
		if !o.has {
			if o.sum != 0 {
				return fmt.Sprintf("rank %d is active, holds blocks, and no batch that they are of", rank)
			}
			continue
		}
		found := false
		for life := t.Life(); life >= lives[rank] && !found; life-- {
			if rec, ok := t.Record(rank, life, o.seq); ok && rec.Truth == o.sum {
				lives[rank], found = life, true
			}
		}
		if !found {
			return fmt.Sprintf("rank %d is active and does not hold the truth of batch %d", rank, o.seq)
		}
	}
	return ""
}

// ask looks one prompt up.
func (w *watch) ask(ctx context.Context, rng *rand.Rand) {
	if w.sample == nil {
		return
	}
	p, ok := w.sample(rng)
	if !ok {
		return
	}
	index := w.f.host()
	began := time.Now()
	depth, degraded, err := index.lookup(ctx, &p)
	took := time.Since(began)
	slow := w.slowed(began, took)
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil || w.away || index != w.f.host() {
		return
	}
	if slow {
		w.slow++
	}
	if err != nil {
		w.fault("a lookup was not answered: " + err.Error())
		return
	}
	w.lookups = append(w.lookups, took)
	if degraded {
		w.stale++
	}
	for rank, d := range depth {
		if d > len(p.Tokens) {
			w.fault(fmt.Sprintf("a lookup of %d tokens finds %d on rank %d", len(p.Tokens), d, rank))
		}
	}
}

// slowed reports whether a lookup took longer than the rule allows.
func (w *watch) slowed(began time.Time, took time.Duration) bool {
	limit := w.e.within(lookupTime)
	if took <= limit || w.e.strict {
		return took > limit
	}
	return took > w.e.waits.allows(limit, began, began.Add(took))
}

// verdict is what was seen, and an error where that must not be.
func (w *watch) verdict() (string, error) {
	w.stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	if w.seen == 0 {
		errs = append(errs, errors.New("the index was never seen"))
	}
	if w.wrongs > 0 {
		errs = append(errs, fmt.Errorf("%d moments that must not be: %v", w.wrongs, w.wrong))
	}
	said := fmt.Sprintf("%d looks", w.seen)
	if n := len(w.lookups); n > 0 {
		slices.Sort(w.lookups)
		slowest := w.lookups[n-1]
		said += fmt.Sprintf(", %d lookups, %d of them answered as degraded, the slowest %s", n, w.stale, round(slowest))
		if w.slow > 0 {
			errs = append(errs, fmt.Errorf("%d lookups took longer than the rule allows (%s), the slowest %s", w.slow, lookupTime, round(slowest)))
		}
	}
	return said, errors.Join(errs...)
}

func (w *watch) armedAt() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.armed
}
